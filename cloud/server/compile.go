package server

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// order is everything that a job is made of: a value, so that compile is a
// function of values.
type order struct {
	organization, project, stack string

	id           string // of the deployment
	version      int
	operation    string // empty only with steps of the caller's own
	settings     settings
	steps        []ownStep // instead of the compiled ones; not Pulumi's
	timeout      cloud.Duration
	defaultImage string
}

// ownStep is a step that a caller wrote himself, in the field cmwaSteps of a
// deployment request. It is an extension of this service and not Pulumi's.
type ownStep struct {
	Name       string         `json:"name"`
	Run        string         `json:"run"`
	WorkingDir string         `json:"workingDir"`
	Timeout    cloud.Duration `json:"timeout"`
}

// Names of steps as users of Pulumi Deployments know them.
const (
	stepSetup   = "Setup"
	stepSource  = "Get source"
	stepInstall = "Download dependencies"
	stepPreRun  = "Pre-run command "
	stepPulumi  = "pulumi "
)

// compile makes the job of an order. Its errors are the caller's: something in
// the order cannot be done. What depends on where and when the job runs (URLs,
// tokens) is not in it; see environment.
func compile(o order) (cloud.Definition, error) {
	d := cloud.Definition{OS: "linux", Shell: o.settings.Operation.Options.Shell, Timeout: o.timeout}
	d.Image = cloud.Image{Reference: o.defaultImage, IsDefault: true}
	for _, name := range slices.Sorted(maps.Keys(o.settings.Operation.Env)) {
		if o.settings.Operation.Env[name].Secret {
			d.SecretVariables = append(d.SecretVariables, name)
		}
	}
	if image := o.settings.Executor.Image; image != nil && image.Reference != "" {
		d.Image = *image
		d.Image.IsDefault = false
		if login := d.Image.Credentials; login != nil {
			d.Image.Credentials = &cloud.Credentials{Username: login.Username, Password: cloud.SecretValue{Value: login.Password.Value, Secret: true}}
		}
	}
	env, err := variables(o)
	if err != nil {
		return d, err
	}
	steps := []cloud.Step{{Name: stepSetup}}
	if o.operation != "" && !slices.Contains(operations(), o.operation) {
		return d, badRequest("operation must be one of %s", strings.Join(operations(), ", "))
	}
	if o.steps != nil {
		own, err := ownSteps(o.steps)
		if err != nil {
			return d, err
		}
		d.Steps, d.Env = append(steps, own...), values(env)
		return d, nil
	}
	compiled, err := scripts(o, env)
	if err != nil {
		return d, err
	}
	d.Steps, d.Env = append(steps, compiled...), values(env)
	return d, nil
}

// variables are those of the whole job, without the ones that depend on where
// it runs. What the user sets wins.
func variables(o order) (map[string]string, error) {
	env := map[string]string{
		"PULUMI_CI_SYSTEM":       "Pulumi Deployments",
		"PULUMI_CI_BUILD_ID":     o.id,
		"PULUMI_CI_BUILD_NUMBER": strconv.Itoa(o.version),
		"PULUMI_CI_ORGANIZATION": o.organization,
		"PULUMI_CI_PROJECT":      o.project,
		"PULUMI_CI_STACK":        o.stack,
	}
	if o.operation != "" {
		env["PULUMI_CI_OPERATION"] = o.operation
	}
	for _, name := range slices.Sorted(maps.Keys(o.settings.Operation.Env)) {
		value := o.settings.Operation.Env[name].Value.Reveal()
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, badRequest("environmentVariables: %q cannot be a variable: a name has no =, and neither name nor value has a zero byte", name)
		}
		env[name] = value
	}
	return env, nil
}

// values puts variables into the form of a definition: plain strings, since
// runners were seen to refuse anything else.
func values(env map[string]string) map[string]cloud.SecretValue {
	out := make(map[string]cloud.SecretValue, len(env))
	for name, value := range env {
		out[name] = cloud.SecretValue{Value: secret.New(value)}
	}
	return out
}

// environment adds what is known only when the job is fetched: the token of the
// job's programs, and the service's URL as the job reaches it.
func environment(d *cloud.Definition, url string, token secret.String, build string) {
	if d.Env == nil {
		d.Env = map[string]cloud.SecretValue{}
	}
	for name, value := range map[string]secret.String{
		"PULUMI_ACCESS_TOKEN": token,
		"PULUMI_BACKEND_URL":  secret.New(url),
		"PULUMI_SERVICE_URL":  secret.New(url + "/api"),
		"PULUMI_CI_BUILD_URL": secret.New(url + build),
	} {
		if _, set := d.Env[name]; !set {
			d.Env[name] = cloud.SecretValue{Value: value}
		}
	}
}

// maxSteps is more than any honest job has.
const maxSteps = 1000

func ownSteps(steps []ownStep) ([]cloud.Step, error) {
	if len(steps) == 0 || len(steps) > maxSteps {
		return nil, badRequest("cmwaSteps must have 1 to %d steps", maxSteps)
	}
	var out []cloud.Step
	for i, step := range steps {
		if step.Name == "" {
			step.Name = fmt.Sprintf("Step %d", i+1)
		}
		if err := sound(map[string]string{"name": step.Name, "run": step.Run, "workingDir": step.WorkingDir}); err != nil {
			return nil, err
		}
		out = append(out, cloud.Step{Name: step.Name, Run: step.Run, WorkingDir: step.WorkingDir, Timeout: step.Timeout})
	}
	return out, nil
}

// scripts are the steps of a Pulumi operation. It may add variables.
func scripts(o order, env map[string]string) ([]cloud.Step, error) {
	s, options := o.settings, o.settings.Operation.Options
	if len(s.Operation.OIDC) > 0 {
		return nil, badRequest("operationContext.oidc is not supported: this service issues no OIDC tokens")
	}
	if err := sound(map[string]string{"executorRootPath": s.Executor.Root, "shell": options.Shell}); err != nil {
		return nil, err
	}
	w := workplace{root: s.Executor.Root}
	var steps []cloud.Step
	if s.Source != nil && (s.Source.Hg != nil || s.Source.Template != nil) {
		return nil, badRequest("sourceContext: this service gets sources from git only")
	}
	if s.Source != nil && s.Source.Git != nil && s.Source.Git.URL != "" {
		git, err := soundGit(*s.Source.Git)
		if err != nil {
			return nil, err
		}
		login := loginAt(git.Auth, env)
		w.source, w.dir, w.forget = true, git.Dir, login.variables
		steps = append(steps, cloud.Step{Name: stepSource, Run: w.fetch(git, login)})
	}
	if !options.SkipInstall {
		steps = append(steps, cloud.Step{Name: stepInstall, Run: w.inside(installScript)})
	}
	if len(s.Operation.PreRun) > maxSteps {
		return nil, badRequest("preRunCommands must be at most %d", maxSteps)
	}
	for i, command := range s.Operation.PreRun {
		if err := sound(map[string]string{"preRunCommands": command}); err != nil {
			return nil, err
		}
		steps = append(steps, cloud.Step{Name: stepPreRun + strconv.Itoa(i+1), Run: w.inside(command)})
	}
	name, own := o.organization+"/"+o.project+"/"+o.stack, env["PULUMI_BACKEND_URL"] != ""
	if own {
		name = o.stack
	}
	script, err := operationScript(o.operation, name, own, options)
	if err != nil {
		return nil, err
	}
	return append(steps, cloud.Step{Name: stepPulumi + o.operation, Run: w.inside(script)}), nil
}

// sound refuses texts that no script can hold.
func sound(texts map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.Contains(texts[name], "\x00") {
			return badRequest("%s has a zero byte", name)
		}
	}
	return nil
}

// soundGit checks and normalises where a source comes from.
func soundGit(git gitSource) (gitSource, error) {
	if err := sound(map[string]string{"repoUrl": git.URL, "branch": git.Branch, "tag": git.Tag, "repoDir": git.Dir}); err != nil {
		return git, err
	}
	switch {
	case git.Branch != "" && git.Commit != "":
		return git, badRequest("sourceContext.git: name a branch or a commit, not both")
	case git.Branch != "" && git.Tag != "":
		return git, badRequest("sourceContext.git: name a branch or a tag, not both")
	case git.Commit != "" && !regexp.MustCompile(`^[0-9a-fA-F]{4,64}$`).MatchString(git.Commit):
		return git, badRequest("sourceContext.git.commit must be the hexadecimal hash of a commit")
	}
	dir := strings.TrimLeft(git.Dir, "/")
	if slices.Contains(strings.Split(dir, "/"), "..") {
		return git, badRequest("sourceContext.git.repoDir must be a folder inside the repository")
	}
	if git.Dir = path.Clean("/" + dir)[1:]; git.Dir == "." {
		git.Dir = ""
	}
	git.Branch = strings.TrimPrefix(git.Branch, "refs/heads/")
	git.Tag = strings.TrimPrefix(git.Tag, "refs/tags/")
	return git, nil
}
