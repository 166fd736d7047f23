package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const ciDirectory = "../../examples/gitops/ci"

// ciJob is the example for a CI service: the patterns of the files that trigger it, and the
// scripts that it then runs one after the other.
type ciJob struct {
	triggers []string
	scripts  []string
}

// ciJobs reads the examples, without the step that installs cmwa.
func ciJobs(t *testing.T) map[string]ciJob {
	t.Helper()
	read := func(name string, into any) {
		content, err := os.ReadFile(filepath.Join(ciDirectory, name))
		noError(t, err)
		noError(t, yaml.Unmarshal(content, into))
	}
	var github struct {
		On struct {
			PullRequest struct{ Paths []string } `yaml:"pull_request"`
		}
		Jobs map[string]struct {
			Defaults struct{ Run struct{ Shell string } }
			Env      map[string]string
			Steps    []struct{ Run string }
		}
	}
	read("github.yml", &github)
	var gitlab map[string]struct {
		Rules     []struct{ Changes []string }
		Variables map[string]string
		Script    []string
	}
	read("gitlab.yml", &gitlab)

	hub, lab := github.Jobs["vet"], gitlab["agent configuration"]
	if hub.Defaults.Run.Shell != "bash" || hub.Env["BASE"] == "" || lab.Variables["BASE"] == "" ||
		len(lab.Rules) != 1 {
		t.Fatalf("this test cannot run the examples: %+v, %+v", hub, lab)
	}
	fetches := func(script string) bool { return strings.HasPrefix(script, "go install ") }
	var scripts []string
	for _, step := range hub.Steps {
		if step.Run != "" && !fetches(step.Run) {
			scripts = append(scripts, step.Run)
		}
	}
	return map[string]ciJob{
		"github.yml": {github.On.PullRequest.Paths, scripts},
		// A runner of GitLab gives all lines to one shell.
		"gitlab.yml": {lab.Rules[0].Changes, []string{strings.Join(slices.DeleteFunc(lab.Script, fetches), "\n")}},
	}
}

func TestGitOpsVetsTheFilesThatTriggerIt(t *testing.T) {
	pathspec := regexp.MustCompile(`':\(glob\)([^']+)'`)
	for name, job := range ciJobs(t) {
		var vetted []string
		for _, found := range pathspec.FindAllStringSubmatch(strings.Join(job.scripts, "\n"), -1) {
			vetted = append(vetted, found[1])
		}
		if len(vetted) == 0 || !slices.Equal(vetted, job.triggers) {
			t.Errorf("%s: the files %v trigger the job, but the job vets %v", name, job.triggers, vetted)
		}
	}
}

func TestGitOpsStopsBrokenMerges(t *testing.T) {
	t.Parallel()
	bin, err := staticPrograms()
	noError(t, err)
	const (
		file     = "pulumi-workflow-agent.yaml"
		good     = "token_file: /etc/cmwa/token\n"
		other    = good + "polling_interval: 7m\n"
		bad      = good + "log_level: loud\n"
		misspelt = good + "poling_interval: 1m\n"
		old      = "the file as it was before this change cannot be used"
	)
	manifest := func(level string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cmwa}\ndata:\n  " + file +
			": |\n    token_file: /etc/cmwa/token\n    log_level: " + level + "\n"
	}
	type files map[string]string // content by name; a file without content is removed
	jobs := ciJobs(t)
	for name, test := range map[string]struct {
		before, after files // without before, there is no base
		stops         bool
		want, hides   []string
	}{
		"a base that is not there": {
			nil, files{file: good}, true, []string{"before...HEAD"}, []string{"a new file"},
		},
		"a new file":             {files{}, files{file: good}, false, []string{file, "a new file"}, []string{old}},
		"a new file that is bad": {files{}, files{file: bad}, true, []string{file, "log_level"}, nil},
		"a file that is fixed":   {files{file: bad}, files{file: good}, false, []string{"log_level", old}, nil},
		"a file that was empty":  {files{file: "\n"}, files{file: good}, false, []string{"token_file"}, nil},
		"a file that is broken":  {files{file: good}, files{file: bad}, true, []string{file, "log_level"}, nil},
		"a misspelt key": {
			files{file: good}, files{file: misspelt}, true, []string{file, "polling_interval"}, nil,
		},
		"a misspelt key, fixed": {
			files{file: misspelt}, files{file: good}, false, []string{"poling_interval", old}, nil,
		},
		"a file that is changed": {
			files{file: good}, files{file: other}, false, []string{"polling_interval", "7m"},
			[]string{old, "a new file"},
		},
		"a comment in a file": {
			files{file: good}, files{file: good + "# why\n"}, false, []string{"no change"}, []string{old},
		},
		"a file that is the same": {files{file: bad}, files{"README.md": "more\n"}, false, nil, []string{file}},
		"a file that is removed":  {files{file: good}, files{file: ""}, false, nil, []string{file}},
		"a file that is moved": {
			files{file: good}, files{file: "", "prod/" + file: good}, false, []string{"prod/" + file, "a new file"},
			nil,
		},
		"a target of a later release": {
			files{file: good}, files{file: good + "deploy_target: ecs\n"},
			false, []string{"warning", "ecs is not in this release"}, []string{old, "drained"},
		},
		"a manifest": {
			files{"k8s/agent.yaml": manifest("info")}, files{"k8s/agent.yaml": manifest("debug")}, false,
			[]string{"k8s/agent.yaml", "log_level"}, nil,
		},
		"a manifest, broken": {
			files{"k8s/agent.yaml": manifest("info")}, files{"k8s/agent.yaml": manifest("loud")}, true,
			[]string{"k8s/agent.yaml", "log_level"}, nil,
		},
		"two configurations in a manifest": {
			files{"agent.yaml": manifest("info") + "---\n" + manifest("info")},
			files{"agent.yaml": manifest("info") + "---\n" + manifest("debug")},
			false, []string{"2 configurations"}, []string{old},
		},
		"several files, the last one bad": {
			files{file: good}, files{file: other, "a/" + file: good, "b/c/" + file: bad}, true,
			[]string{"b/c/" + file}, nil,
		},
		"names that a shell might run": {
			files{}, files{"x $(touch ran)/agent.yaml": good, "a\n'; touch ran/agent.yaml": good}, false,
			[]string{"a new file"}, nil,
		},
	} {
		for service, job := range jobs {
			t.Run(name+", "+service, func(t *testing.T) {
				t.Parallel()
				directory, temp := t.TempDir(), t.TempDir()
				summary := filepath.Join(temp, "summary")
				run := func(name string, args ...string) (string, error) {
					cmd := exec.Command(name, args...)
					cmd.Dir = directory
					cmd.Env = []string{
						"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "BASE=before",
						"HOME=" + temp, "TMPDIR=" + temp, "RUNNER_TEMP=" + temp, "GITHUB_STEP_SUMMARY=" + summary,
						"GIT_CONFIG_NOSYSTEM=1",
						"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
						"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
					}
					out, err := cmd.CombinedOutput()
					var exit *exec.ExitError
					if err != nil && !errors.As(err, &exit) {
						t.Fatal(err)
					}
					return string(out), err
				}
				git := func(args ...string) {
					if out, err := run("git", args...); err != nil {
						t.Fatalf("git %v: %v\n%s", args, err, out)
					}
				}
				commit := func(state files) {
					for name, content := range state {
						path := filepath.Join(directory, name)
						noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
						noError(t, os.WriteFile(path, []byte(content), 0o644))
						if content == "" {
							noError(t, os.Remove(path))
						}
					}
					git("add", "--all")
					git("commit", "--quiet", "--allow-empty", "--message", "a change")
				}
				git("init", "--quiet", "--initial-branch", "after")
				commit(test.before)
				if test.before != nil {
					git("branch", "before")
				}
				commit(test.after)

				var output strings.Builder
				stopped := false
				for _, script := range job.scripts {
					out, err := run("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
					output.WriteString(out)
					if stopped = err != nil; stopped {
						break
					}
				}
				if stopped != test.stops {
					t.Errorf("the job has failed: %t, want %t\n%s", stopped, test.stops, output.String())
				}
				for _, want := range test.want {
					if !strings.Contains(output.String(), want) {
						t.Errorf("there is no %q in\n%s", want, output.String())
					}
				}
				for _, hidden := range test.hides {
					if strings.Contains(output.String(), hidden) {
						t.Errorf("the output contains %q:\n%s", hidden, output.String())
					}
				}
				// The log has annotations, and the summary has none.
				log := regexp.MustCompile(`(?m)^::warning .*\n`).ReplaceAllString(output.String(), "")
				if shown, _ := os.ReadFile(summary); service == "github.yml" && !stopped && string(shown) != log {
					t.Errorf("the summary is\n%s\nand the log\n%s", shown, output.String())
				}
				if _, err := os.Stat(filepath.Join(directory, "ran")); err == nil {
					t.Error("a file name was executed as a command")
				}
				if left, _ := run("git", "status", "--porcelain"); left != "" {
					t.Errorf("the job has changed the repository: %s", left)
				}
			})
		}
	}
}
