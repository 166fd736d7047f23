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

// jobSpec is the input of compile.
type jobSpec struct {
	organization, project, stack string

	id           string // of the deployment
	version      int
	operation    string // empty only with custom steps
	settings     settings
	steps        []customStep // replace the compiled steps; nil if there are none
	timeout      cloud.Duration
	defaultImage string
}

// customStep is a step in the field cmwaSteps of a deployment request, which is an
// extension of this service.
type customStep struct {
	Name       string         `json:"name"`
	Run        string         `json:"run"`
	WorkingDir string         `json:"workingDir"`
	Timeout    cloud.Duration `json:"timeout"`
}

// Names of steps, as in Pulumi Deployments.
const (
	stepSetup       = "Setup"
	stepCredentials = "Fetch provider credentials via OIDC"
	stepSource      = "Get source"
	stepInstall     = "Download dependencies"
	stepPreRun      = "Pre-run command "
	stepPulumi      = "pulumi "
)

// compile returns the definition of a job. An error is a *problem: the request is invalid.
// The definition does not contain values that are known only when the job is fetched
// (URLs, tokens): see addEnvironment.
func compile(spec jobSpec) (cloud.Definition, error) {
	d := cloud.Definition{OS: "linux", Shell: spec.settings.Operation.Options.Shell, Timeout: spec.timeout}
	for _, name := range slices.Sorted(maps.Keys(spec.settings.Operation.Env)) {
		if spec.settings.Operation.Env[name].Secret {
			d.SecretVariables = append(d.SecretVariables, name)
		}
	}

	d.Image = cloud.Image{Reference: spec.defaultImage, IsDefault: true}
	if image := spec.settings.Executor.Image; image != nil && image.Reference != "" {
		d.Image = *image
		d.Image.IsDefault = false
		if login := d.Image.Credentials; login != nil {
			password := cloud.SecretValue{Value: login.Password.Value, Secret: true}
			d.Image.Credentials = &cloud.Credentials{Username: login.Username, Password: password}
		}
	}

	// Make the steps. The steps of an operation may add variables to env.
	env, err := variables(spec)
	if err != nil {
		return d, err
	}
	steps := []cloud.Step{{Name: stepSetup}}
	if spec.operation != "" && !slices.Contains(Operations(), spec.operation) {
		return d, badRequest("operation must be one of %s", strings.Join(Operations(), ", "))
	}
	if spec.steps != nil {
		custom, err := customSteps(spec.steps)
		if err != nil {
			return d, err
		}
		d.Steps, d.Env = append(steps, custom...), values(env)
		return d, nil
	}
	compiled, err := scripts(spec, env)
	if err != nil {
		return d, err
	}
	d.Steps, d.Env = append(steps, compiled...), values(env)
	return d, nil
}

// variables returns the environment variables of the job, without those of
// addEnvironment. Variables of the user take precedence.
func variables(spec jobSpec) (map[string]string, error) {
	env := map[string]string{
		"PULUMI_CI_SYSTEM":       "Pulumi Deployments",
		"PULUMI_CI_BUILD_ID":     spec.id,
		"PULUMI_CI_BUILD_NUMBER": strconv.Itoa(spec.version),
		"PULUMI_CI_ORGANIZATION": spec.organization,
		"PULUMI_CI_PROJECT":      spec.project,
		"PULUMI_CI_STACK":        spec.stack,
	}
	if spec.operation != "" {
		env["PULUMI_CI_OPERATION"] = spec.operation
	}
	for _, name := range slices.Sorted(maps.Keys(spec.settings.Operation.Env)) {
		value := spec.settings.Operation.Env[name].Value.Reveal()
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, badRequest("environmentVariables: %q cannot be a variable: "+
				"a name must not be empty or contain =, and neither name nor value may contain a zero byte", name)
		}
		env[name] = value
	}
	return env, nil
}

// values returns variables in the form of a definition. They are plain strings, because
// some runners refuse other forms.
func values(env map[string]string) map[string]cloud.SecretValue {
	out := make(map[string]cloud.SecretValue, len(env))
	for name, value := range env {
		out[name] = cloud.SecretValue{Value: secret.New(value)}
	}
	return out
}

// addEnvironment adds the variables that are known only when the job is fetched: the
// token of the job's programs, and the URL of the service. It adds no PULUMI_CI_BUILD_URL, because the
// service has no page of a job.
func addEnvironment(d *cloud.Definition, url string, token secret.String) {
	if d.Env == nil {
		d.Env = map[string]cloud.SecretValue{}
	}
	for name, value := range map[string]secret.String{
		"PULUMI_ACCESS_TOKEN": token,
		"PULUMI_BACKEND_URL":  secret.New(url),
		"PULUMI_SERVICE_URL":  secret.New(url + "/api"),
	} {
		if _, set := d.Env[name]; !set {
			d.Env[name] = cloud.SecretValue{Value: value}
		}
	}
}

// maxSteps limits the steps of a job.
const maxSteps = 1000

func customSteps(steps []customStep) ([]cloud.Step, error) {
	if len(steps) == 0 || len(steps) > maxSteps {
		return nil, badRequest("cmwaSteps must have 1 to %d steps", maxSteps)
	}
	var out []cloud.Step
	for i, step := range steps {
		if step.Name == "" {
			step.Name = fmt.Sprintf("Step %d", i+1)
		}
		texts := map[string]string{"name": step.Name, "run": step.Run, "workingDir": step.WorkingDir}
		if err := checkTexts(texts); err != nil {
			return nil, err
		}
		out = append(out, cloud.Step{
			Name: step.Name, Run: step.Run, WorkingDir: step.WorkingDir, Timeout: step.Timeout,
		})
	}
	return out, nil
}

// scripts returns the steps of a Pulumi operation, and adds the variables that they need to
// env.
func scripts(spec jobSpec, env map[string]string) ([]cloud.Step, error) {
	s, options := spec.settings, spec.settings.Operation.Options
	if err := checkTexts(map[string]string{"executorRootPath": s.Executor.Root, "shell": options.Shell}); err != nil {
		return nil, err
	}

	w := workspace{root: s.Executor.Root}
	var steps []cloud.Step
	if !s.Operation.OIDC.empty() {
		script, err := credentialsScript(s.Operation.OIDC)
		if err != nil {
			return nil, err
		}
		steps = append(steps, cloud.Step{Name: stepCredentials, Run: script})
	}
	if s.Source != nil && s.Source.Git != nil && s.Source.Git.URL != "" {
		git, err := checkGit(*s.Source.Git)
		if err != nil {
			return nil, err
		}
		login := chooseLogin(git.Auth, env)
		w.source, w.dir, w.unset = true, git.Dir, login.variables
		steps = append(steps, cloud.Step{Name: stepSource, Run: w.fetch(git, login)})
	}

	if !options.SkipInstall {
		steps = append(steps, cloud.Step{Name: stepInstall, Run: w.inside(installScript)})
	}
	if len(s.Operation.PreRun) > maxSteps {
		return nil, badRequest("preRunCommands must have at most %d commands", maxSteps)
	}
	for i, command := range s.Operation.PreRun {
		if err := checkTexts(map[string]string{"preRunCommands": command}); err != nil {
			return nil, err
		}
		steps = append(steps, cloud.Step{Name: stepPreRun + strconv.Itoa(i+1), Run: w.inside(command)})
	}

	stackName, ownBackend := spec.organization+"/"+spec.project+"/"+spec.stack, env["PULUMI_BACKEND_URL"] != ""
	if ownBackend {
		stackName = spec.stack
	}
	script, err := operationScript(spec.operation, stackName, ownBackend, options)
	if err != nil {
		return nil, err
	}
	return append(steps, cloud.Step{Name: stepPulumi + spec.operation, Run: w.inside(script)}), nil
}

// checkTexts refuses texts with a zero byte, which no script can contain.
func checkTexts(texts map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.Contains(texts[name], "\x00") {
			return badRequest("%s has a zero byte", name)
		}
	}
	return nil
}

// checkGit checks and normalises a git source.
func checkGit(git gitSource) (gitSource, error) {
	texts := map[string]string{"repoUrl": git.URL, "branch": git.Branch, "tag": git.Tag, "repoDir": git.Dir}
	if err := checkTexts(texts); err != nil {
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
		return git, badRequest("sourceContext.git.repoDir must be a directory inside the repository")
	}
	if git.Dir = path.Clean("/" + dir)[1:]; git.Dir == "." {
		git.Dir = ""
	}
	git.Branch = strings.TrimPrefix(git.Branch, "refs/heads/")
	git.Tag = strings.TrimPrefix(git.Tag, "refs/tags/")
	return git, nil
}
