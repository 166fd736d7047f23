package runner_test

import (
	"os"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// printDirectories is a script that writes to the directories of its job, and prints their paths.
const printDirectories = `cd "$HOME" && touch file && echo "home $HOME"
cd - >/dev/null; touch file && echo "works in $(pwd) $PULUMI_WORKFLOW_ROOT"
echo "pulumi: $PULUMI_HOME"; echo A=1 >"$PULUMI_ENV_FILE"`

func TestPrepareUser(t *testing.T) {
	t.Run("job has its own directories if the user cannot write", func(t *testing.T) {
		w := newFixture(t, steps(printDirectories, `echo "A is $A"`))
		w.handoff.Root = "/nowhere/at/all"
		w.options.Environ = append(w.options.Environ, "HOME=/nowhere", "PULUMI_HOME=/nowhere/too")
		w.run(runtime.CodeSucceeded)
		w.wantLog(0, "cannot write to /nowhere/at/all; steps run in ",
			`cannot write to the home directory "/nowhere"; HOME is `)
		log := w.record().Text(1)
		var home, root string
		for line := range strings.Lines(log) {
			if remaining, ok := strings.CutPrefix(line, "home "); ok {
				home = strings.TrimSpace(remaining)
			}
			if remaining, ok := strings.CutPrefix(line, "works in "); ok {
				root = strings.Fields(remaining)[0]
			}
		}
		if home == "" || root == "" || home == root || !strings.Contains(log, "works in "+root+" "+root+"\n") ||
			!strings.Contains(log, "pulumi: "+home+"/.pulumi\n") {
			t.Errorf("the log of the step is\n%s", log)
		}
		w.wantLog(2, "A is 1\n")
		for _, directory := range []string{home, root} {
			if _, err := os.Stat(directory); err == nil {
				t.Errorf("%s is left", directory)
			}
		}
	})

	t.Run("home directory of the job stays unchanged", func(t *testing.T) {
		definition := steps(`echo "home $HOME pulumi $PULUMI_HOME"`)
		definition.Env = map[string]cloud.SecretValue{
			"HOME":        {Value: secret.New("/nowhere")},
			"PULUMI_HOME": {Value: secret.New("/neither")},
		}
		w := newFixture(t, definition)
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "home /nowhere pulumi /neither\n")
	})
}
