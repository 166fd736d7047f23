package runner_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestRun(t *testing.T) {
	t.Run("steps run in order and are reported", func(t *testing.T) {
		w := newFixture(t, steps("echo one; echo two >&2", "pwd"))
		w.run(runtime.CodeSucceeded)
		w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Succeeded)
		w.wantLog(0, "the agent was here\n", "Workflow runner test", "Steps run in "+w.handoff.Root)
		w.wantLog(1, "$ echo one; echo two >&2\none\ntwo\n")
		w.wantLog(2, "$ pwd\n"+w.handoff.Root+"\n")
		if last := w.lastProgress(); last.Step != 2 || last.Lines != 2 || last.Status != runtime.Succeeded ||
			last.StepName != "step" {
			t.Errorf("the last progress is %+v, want the success of step 2 with 2 lines", last)
		}
		if left := w.leftovers(); len(left) > 0 {
			t.Errorf("the runner has left %v", left)
		}
		if heartbeats := w.record().Heartbeats; heartbeats < 1 {
			t.Error("there was no heartbeat")
		}
	})

	t.Run("first failing step ends the job", func(t *testing.T) {
		w := newFixture(t, steps("echo before; exit 3", "echo never"))
		w.run(runtime.CodeFailed)
		w.wantSteps(runtime.Succeeded, runtime.Failed, runtime.NotStarted)
		w.wantLog(1, "before\nError: the script ended with exit code 3\n")
		if last := w.lastProgress(); last.Step != 1 || last.Status != runtime.Failed || last.Stopped ||
			last.StepName != "step" || last.Reason != "the script ended with exit code 3" {
			t.Errorf("the last progress is %+v, want the failure of step 1 with its name and reason", last)
		}
	})

	t.Run("step without a script succeeds", func(t *testing.T) {
		w := newFixture(t, steps("", "echo after"))
		w.run(runtime.CodeSucceeded)
		w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Succeeded)
	})

	t.Run("script of step 0 runs only without other steps", func(t *testing.T) {
		t.Run("alone", func(t *testing.T) {
			w := newFixture(t, cloud.Definition{Steps: []cloud.Step{{Name: "all", Run: "echo it runs; exit 4"}}})
			w.run(runtime.CodeFailed)
			w.wantLog(0, "one step only", "$ echo it runs; exit 4\nit runs\nError: the script ended with exit code 4\n")
			w.wantSteps(runtime.Failed)
		})
		t.Run("alone and empty", func(t *testing.T) {
			w := newFixture(t, cloud.Definition{Steps: []cloud.Step{{Name: "all"}}})
			w.run(runtime.CodeSucceeded)
			w.wantSteps(runtime.Succeeded)
		})
		t.Run("with others", func(t *testing.T) {
			definition := steps("true")
			definition.Steps[0].Run = "echo it runs >> ran"
			w := newFixture(t, definition)
			w.run(runtime.CodeSucceeded)
			w.wantLog(0, "The script of this step is not run")
			if _, err := os.Stat(filepath.Join(w.handoff.Root, "ran")); err == nil {
				t.Error("the script of step 0 was run")
			}
		})
	})

	t.Run("invalid definition fails the job", func(t *testing.T) {
		for text, want := range map[string]string{
			`{"steps": "all"}`: "steps",
			`{}`:               "no steps",
			`{"steps":[{},{"run":""}],"timeout":"1y"}`: "duration",
		} {
			w := newFixture(t, steps("true"))
			w.handoff.Definition = []byte(text)
			w.run(runtime.CodeFailed)
			w.wantSteps(runtime.Failed, runtime.NotStarted)
			w.wantLog(0, "Error: the definition of the job", want)
		}
	})

	t.Run("handoff without a service is rejected", func(t *testing.T) {
		w := newFixture(t, steps("true"))
		w.handoff.Service = ""
		w.run(runtime.CodeUsage)
		w.wantSteps(runtime.Running, runtime.NotStarted)
	})
}

func TestConclude(t *testing.T) {
	definition := steps("exit 1")
	definition.Steps[1].Name = strings.Repeat("\u0001", 200)
	definition.Steps[1].WorkingDir = "/" + strings.Repeat("<", 300)
	w := newFixture(t, definition)
	w.run(runtime.CodeFailed)
	last := w.lastProgress()
	if len(last.StepName) != runtime.MaxStepName || len(last.Reason) != runtime.MaxFailureReason ||
		last.Status != runtime.Failed {
		t.Errorf("got %+v, want texts that are cut to their limits", last)
	}
	for line := range strings.Lines(w.progress.String()) {
		if len(line) > runtime.MaxProgressLine {
			t.Errorf("a line of progress has %d bytes, more than the agent reads", len(line))
		}
	}
}

// shells returns directories by the shell that they contain. A test puts one of them first
// on PATH.
func shells(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, as := range map[string]string{"bash": "bash", "sh": "sh", "busybox": "sh"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("these tests need %s: install Debian's packages bash, dash and busybox: %v", name, err)
		}
		directory := t.TempDir()
		noError(t, os.Symlink(path, filepath.Join(directory, as)))
		all[name] = directory
	}
	return all
}

func TestExecute(t *testing.T) {
	t.Run("script reaches each shell unchanged", func(t *testing.T) {
		script := strings.Join([]string{
			`x=$(printf '%s' "$(echo nested "$( echo deeper )")")`,
			"echo \"$x\" `echo back` ${x%deeper} $((6*7)) \\$HOME '$HOME' \"a  b\"",
			"cat <<'END'\n  $(not run) \"quoted\" \\ back\t tab\nEND",
			`[ "$#" = 0 ] && cat "$0"`,
			"printf 'no newline at the end'",
		}, "\n")
		for name, directory := range shells(t) {
			t.Run(name, func(t *testing.T) {
				definition := steps(script)
				definition.Shell = "sh"
				if name == "bash" {
					definition.Shell = "bash"
				}
				w := newFixture(t, definition)
				w.options.Environ = append(w.options.Environ, "PATH="+directory+":"+os.Getenv("PATH"))
				w.run(runtime.CodeSucceeded)
				w.wantLog(0, "with "+directory)
				w.wantLog(1,
					"$ "+script+"\n", // the echo
					"nested deeper back nested 42 $HOME $HOME a  b\n",
					"  $(not run) \"quoted\" \\ back\t tab\n",
					script+"no newline at the end", // cat, and the last line
				)
			})
		}
	})

	t.Run("files persist between steps and shells do not", func(t *testing.T) {
		w := newFixture(t, steps("echo kept > file; variable=lost; cd /", `cat file; echo "[$variable]"; pwd`))
		w.run(runtime.CodeSucceeded)
		w.wantLog(2, "kept\n[]\n"+w.handoff.Root+"\n")
	})
}

func TestFindShell(t *testing.T) {
	t.Run("definition names the shell", func(t *testing.T) {
		all := shells(t)
		for _, c := range []struct{ named, path, want string }{
			{"", all["bash"] + ":" + all["sh"], all["bash"] + "/bash"},
			{"", all["sh"], all["sh"] + "/sh"},
			{"sh", all["bash"] + ":" + all["sh"], all["sh"] + "/sh"},
			{all["busybox"] + "/sh", all["bash"], all["busybox"] + "/sh"},
		} {
			definition := steps("true")
			definition.Shell = c.named
			w := newFixture(t, definition)
			w.options.Environ = append(w.options.Environ, "PATH="+c.path)
			w.run(runtime.CodeSucceeded)
			w.wantLog(0, "with "+c.want+"\n")
		}
	})

	t.Run("missing shell fails the set-up", func(t *testing.T) {
		for _, shell := range []string{"", "zsh", "/no/such/shell", "/etc/passwd"} {
			definition := steps("true")
			definition.Shell = shell
			w := newFixture(t, definition)
			empty := t.TempDir()
			w.options.Environ = append(w.options.Environ, "PATH="+empty)
			w.run(runtime.CodeFailed)
			w.wantSteps(runtime.Failed, runtime.NotStarted)
			w.wantLog(0, "Error: this environment has no shell", shell, "use an image that has one")
		}
	})
}

func TestFindDirectory(t *testing.T) {
	t.Run("directory that the definition names", func(t *testing.T) {
		definition := steps("mkdir -p there/deep; pwd", "pwd", "pwd", "pwd", "echo never")
		definition.Steps[2].WorkingDir = "there/deep"
		definition.Steps[3].WorkingDir = "/there" // below the job's root
		definition.Steps[4].WorkingDir = t.TempDir()
		definition.Steps[5].WorkingDir = "/no/such/directory"
		w := newFixture(t, definition)
		w.run(runtime.CodeFailed)
		w.wantLog(1, w.handoff.Root+"\n")
		w.wantLog(2, w.handoff.Root+"/there/deep\n")
		w.wantLog(3, w.handoff.Root+"/there\n")
		w.wantLog(4, definition.Steps[4].WorkingDir+"\n")
		w.wantLog(5, "Error: the working directory /no/such/directory does not exist\n")
	})

	t.Run("directory of the handoff", func(t *testing.T) {
		definition := steps("mkdir deep; pwd", "pwd", "pwd", "echo never")
		definition.Steps[2].WorkingDir = "deep"
		definition.Steps[3].WorkingDir = "/deep" // does not exist below the root of the job
		w := newFixture(t, definition)
		start := t.TempDir()
		w.handoff.Directory = start
		w.run(runtime.CodeFailed)
		w.wantLog(0, "Steps run in "+start)
		w.wantLog(1, start+"\n")
		w.wantLog(2, start+"/deep\n")
		w.wantLog(3, "Error: the working directory /deep does not exist\n")
	})
}

func TestNewEnviron(t *testing.T) {
	t.Run("later sources override earlier ones", func(t *testing.T) {
		definition := steps(
			`echo "$IMAGE $JOB $FORWARDED"; echo "FORWARDED=by a step" >> "$PULUMI_ENV_FILE"
echo PULUMI_WORKFLOW_ROOT=elsewhere >> "$PULUMI_ENV_FILE"`,
			`echo "$FORWARDED"; echo "$PULUMI_WORKFLOW_ROOT $PULUMI_SERVICE_URL"`,
		)
		definition.Env = map[string]cloud.SecretValue{
			"JOB": {Value: secret.New("job-job")}, "FORWARDED": {Value: secret.New("job-for")},
			"PULUMI_WORKFLOW_ROOT": {Value: secret.New("/x")},
		}
		w := newFixture(t, definition)
		w.options.Environ = append(w.options.Environ, "IMAGE=im", "JOB=im", "FORWARDED=im")
		w.handoff.Forward = map[string]string{"FORWARDED": "agnt"}
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "\nim job-job agnt\n")
		w.wantLog(2, "\nby a step\n"+w.handoff.Root+" "+w.handoff.Service+"/api\n")
	})

	t.Run("PULUMI_SERVICE_URL of the job is not replaced", func(t *testing.T) {
		definition := steps(`echo "$PULUMI_SERVICE_URL"`)
		url := secret.New("https://elsewhere.example/api")
		definition.Env = map[string]cloud.SecretValue{"PULUMI_SERVICE_URL": {Value: url}}
		w := newFixture(t, definition)
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "\nhttps://elsewhere.example/api\n")
	})

	t.Run("invalid variable fails the set-up", func(t *testing.T) {
		for name, c := range map[string]struct {
			variable string
			value    cloud.SecretValue
			want     string
		}{
			"encrypted":       {"KEY", cloud.SecretValue{Ciphertext: "v1:opaque", Secret: true}, "encrypted"},
			"with a zero":     {"KEY", cloud.SecretValue{Value: secret.New("a\x00b")}, "character"},
			"with a bad name": {"A=B", cloud.SecretValue{Value: secret.New("value")}, "character"},
			"too long": {
				"KEY", cloud.SecretValue{Value: secret.New(strings.Repeat("x", 128<<10))}, "longer than 131071 bytes",
			},
		} {
			t.Run(name, func(t *testing.T) {
				definition := steps("true")
				definition.Env = map[string]cloud.SecretValue{c.variable: c.value}
				w := newFixture(t, definition)
				w.run(runtime.CodeFailed)
				w.wantSteps(runtime.Failed, runtime.NotStarted)
				w.wantLog(0, "Error: the ", c.variable, c.want)
			})
		}
	})
}
