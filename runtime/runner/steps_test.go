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

func TestStepsRunInOrderAndAreTold(t *testing.T) {
	w := newWorld(t, steps("echo one; echo two >&2", "pwd"))
	w.run(runtime.CodeSucceeded)
	w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Succeeded)
	w.wantLog(0, "the agent was here\n", "Workflow runner test", "Steps run in "+w.handover.Root)
	w.wantLog(1, "$ echo one; echo two >&2\none\ntwo\n")
	w.wantLog(2, "$ pwd\n"+w.handover.Root+"\n")
	if last := w.last(); last != (runtime.Progress{Step: 2, Lines: 2, Status: runtime.Succeeded}) {
		t.Errorf("the agent was told %+v last", last)
	}
	if left := w.leftovers(); len(left) > 0 {
		t.Errorf("the runner has left %v", left)
	}
	if beats := w.record().Heartbeats; beats < 1 {
		t.Error("there was no sign of life")
	}
}

func TestTheFirstFailingStepEndsTheJob(t *testing.T) {
	w := newWorld(t, steps("echo before; exit 3", "echo never"))
	w.run(runtime.CodeFailed)
	w.wantSteps(runtime.Succeeded, runtime.Failed, runtime.NotStarted)
	w.wantLog(1, "before\nError: the script ended with exit code 3\n")
	if last := w.last(); last.Step != 1 || last.Status != runtime.Failed {
		t.Errorf("the agent was told %+v last", last)
	}
}

func TestAStepWithoutAScriptSucceeds(t *testing.T) {
	w := newWorld(t, steps("", "echo after"))
	w.run(runtime.CodeSucceeded)
	w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Succeeded)
}

func TestTheScriptOfStep0RunsOnlyWhenThereIsNoOther(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t, cloud.Definition{Steps: []cloud.Step{{Name: "all", Run: "echo it runs; exit 4"}}})
		w.run(runtime.CodeFailed)
		w.wantLog(0, "one step only", "$ echo it runs; exit 4\nit runs\nError: the script ended with exit code 4\n")
		w.wantSteps(runtime.Failed)
	})
	t.Run("alone and empty", func(t *testing.T) {
		w := newWorld(t, cloud.Definition{Steps: []cloud.Step{{Name: "all"}}})
		w.run(runtime.CodeSucceeded)
		w.wantSteps(runtime.Succeeded)
	})
	t.Run("with others", func(t *testing.T) {
		definition := steps("true")
		definition.Steps[0].Run = "echo it runs >> ran"
		w := newWorld(t, definition)
		w.run(runtime.CodeSucceeded)
		w.wantLog(0, "The script of this step is not run")
		if _, err := os.Stat(filepath.Join(w.handover.Root, "ran")); err == nil {
			t.Error("the script of step 0 was run")
		}
	})
}

// shells are the shells that the tests know, by the folder that has them first
// in PATH.
func shells(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, program := range map[string]string{"bash": "bash", "sh": "sh", "busybox": "busybox"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatalf("these tests need %s: install Debian's packages bash, dash and busybox: %v", program, err)
		}
		folder := t.TempDir()
		as := "sh"
		if name == "bash" {
			as = "bash"
		}
		if err := os.Symlink(path, filepath.Join(folder, as)); err != nil {
			t.Fatal(err)
		}
		all[name] = folder
	}
	return all
}

func TestAScriptReachesEveryShellUnchanged(t *testing.T) {
	script := strings.Join([]string{
		`x=$(printf '%s' "$(echo nested "$( echo deeper )")")`,
		"echo \"$x\" `echo back` ${x%deeper} $((6*7)) \\$HOME '$HOME' \"a  b\"",
		"cat <<'END'\n  $(not run) \"quoted\" \\ back\t tab\nEND",
		`[ "$#" = 0 ] && cat "$0"`,
		"printf 'no newline at the end'",
	}, "\n")
	for name, folder := range shells(t) {
		t.Run(name, func(t *testing.T) {
			definition := steps(script)
			definition.Shell = "sh"
			if name == "bash" {
				definition.Shell = "bash"
			}
			w := newWorld(t, definition)
			w.options.Environ = append(w.options.Environ, "PATH="+folder+":"+os.Getenv("PATH"))
			w.run(runtime.CodeSucceeded)
			w.wantLog(0, "with "+folder)
			w.wantLog(1,
				"$ "+script+"\n", // the echo
				"nested deeper back nested 42 $HOME $HOME a  b\n",
				"  $(not run) \"quoted\" \\ back\t tab\n",
				script+"no newline at the end", // cat, and the last line
			)
		})
	}
}

func TestTheShellIsTheOneOfTheDefinition(t *testing.T) {
	all := shells(t)
	for _, c := range []struct{ named, path, want string }{
		{"", all["bash"] + ":" + all["sh"], all["bash"] + "/bash"},
		{"", all["sh"], all["sh"] + "/sh"},
		{"sh", all["bash"] + ":" + all["sh"], all["sh"] + "/sh"},
		{all["busybox"] + "/sh", all["bash"], all["busybox"] + "/sh"},
	} {
		definition := steps("true")
		definition.Shell = c.named
		w := newWorld(t, definition)
		w.options.Environ = append(w.options.Environ, "PATH="+c.path)
		w.run(runtime.CodeSucceeded)
		w.wantLog(0, "with "+c.want+"\n")
	}
}

func TestAMissingShellIsAClearFailure(t *testing.T) {
	for _, shell := range []string{"", "zsh", "/no/such/shell", "/etc/passwd"} {
		definition := steps("true")
		definition.Shell = shell
		w := newWorld(t, definition)
		empty := t.TempDir()
		w.options.Environ = append(w.options.Environ, "PATH="+empty)
		w.run(runtime.CodeFailed)
		w.wantSteps(runtime.Failed, runtime.NotStarted)
		w.wantLog(0, "Error: this environment has no shell", shell, "use an image that has one")
	}
}

func TestADefinitionThatMakesNoSenseIsAFailure(t *testing.T) {
	for text, says := range map[string]string{
		`{"steps": "all"}`: "steps",
		`{}`:               "no steps",
		`{"steps":[{},{"run":""}],"timeout":"1y"}`: "duration",
	} {
		w := newWorld(t, steps("true"))
		w.handover.Definition = []byte(text)
		w.run(runtime.CodeFailed)
		w.wantSteps(runtime.Failed, runtime.NotStarted)
		w.wantLog(0, "Error: the definition of the job", says)
	}
}

func TestAStepWorksWhereTheDefinitionSays(t *testing.T) {
	definition := steps("mkdir -p there/deep; pwd", "pwd", "pwd", "pwd", "echo never")
	definition.Steps[2].WorkingDir = "there/deep"
	definition.Steps[3].WorkingDir = "/there" // below the job's root
	definition.Steps[4].WorkingDir = t.TempDir()
	definition.Steps[5].WorkingDir = "/no/such/folder"
	w := newWorld(t, definition)
	w.run(runtime.CodeFailed)
	w.wantLog(1, w.handover.Root+"\n")
	w.wantLog(2, w.handover.Root+"/there/deep\n")
	w.wantLog(3, w.handover.Root+"/there\n")
	w.wantLog(4, definition.Steps[4].WorkingDir+"\n")
	w.wantLog(5, "Error: the working directory /no/such/folder does not exist\n")
}

func TestStepsStartInTheFolderOfTheHandoff(t *testing.T) {
	definition := steps("mkdir deep; pwd", "pwd", "pwd", "echo never")
	definition.Steps[2].WorkingDir = "deep"
	definition.Steps[3].WorkingDir = "/deep" // below the job's root, where it is not
	w := newWorld(t, definition)
	start := t.TempDir()
	w.handover.Directory = start
	w.run(runtime.CodeFailed)
	w.wantLog(0, "Steps run in "+start)
	w.wantLog(1, start+"\n")
	w.wantLog(2, start+"/deep\n")
	w.wantLog(3, "Error: the working directory /deep does not exist\n")
}

func TestFilesPersistBetweenStepsAndShellsDoNot(t *testing.T) {
	w := newWorld(t, steps("echo kept > file; variable=lost; cd /", `cat file; echo "[$variable]"; pwd`))
	w.run(runtime.CodeSucceeded)
	w.wantLog(2, "kept\n[]\n"+w.handover.Root+"\n")
}

func TestAHandoverWithoutAServiceIsRefused(t *testing.T) {
	w := newWorld(t, steps("true"))
	w.handover.Service = ""
	w.run(runtime.CodeUsage)
	w.wantSteps(runtime.Running, runtime.NotStarted)
}

func TestLaterEnvironmentsWin(t *testing.T) {
	definition := steps(
		`echo "$IMAGE $JOB $FORWARDED"; echo "FORWARDED=by a step" >> "$PULUMI_ENV_FILE"; echo PULUMI_WORKFLOW_ROOT=elsewhere >> "$PULUMI_ENV_FILE"`,
		`echo "$FORWARDED"; echo "$PULUMI_WORKFLOW_ROOT $PULUMI_SERVICE_URL"`,
	)
	definition.Env = map[string]cloud.SecretValue{
		"JOB": {Value: secret.New("job-job")}, "FORWARDED": {Value: secret.New("job-for")}, "PULUMI_WORKFLOW_ROOT": {Value: secret.New("/x")},
	}
	w := newWorld(t, definition)
	w.options.Environ = append(w.options.Environ, "IMAGE=im", "JOB=im", "FORWARDED=im")
	w.handover.Forward = map[string]string{"FORWARDED": "agnt"}
	w.run(runtime.CodeSucceeded)
	w.wantLog(1, "\nim job-job agnt\n")
	w.wantLog(2, "\nby a step\n"+w.handover.Root+" "+w.handover.Service+"/api\n")
}

func TestTheServicesURLIsAddedOnlyWhenItIsMissing(t *testing.T) {
	definition := steps(`echo "$PULUMI_SERVICE_URL"`)
	definition.Env = map[string]cloud.SecretValue{"PULUMI_SERVICE_URL": {Value: secret.New("https://elsewhere.example/api")}}
	w := newWorld(t, definition)
	w.run(runtime.CodeSucceeded)
	w.wantLog(1, "\nhttps://elsewhere.example/api\n")
}

func TestAVariableThatCannotBeSetFailsTheSetUp(t *testing.T) {
	for name, c := range map[string]struct {
		variable string
		value    cloud.SecretValue
		says     string
	}{
		"encrypted":       {"KEY", cloud.SecretValue{Ciphertext: "v1:opaque", Secret: true}, "encrypted"},
		"with a zero":     {"KEY", cloud.SecretValue{Value: secret.New("a\x00b")}, "character"},
		"with a bad name": {"A=B", cloud.SecretValue{Value: secret.New("value")}, "character"},
		"too long":        {"KEY", cloud.SecretValue{Value: secret.New(strings.Repeat("x", 128<<10))}, "longer than 131071 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			definition := steps("true")
			definition.Env = map[string]cloud.SecretValue{c.variable: c.value}
			w := newWorld(t, definition)
			w.run(runtime.CodeFailed)
			w.wantSteps(runtime.Failed, runtime.NotStarted)
			w.wantLog(0, "Error: the ", c.variable, c.says)
		})
	}
}
