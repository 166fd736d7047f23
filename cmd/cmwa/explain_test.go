package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cue/cuecontext"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestExplainListsAllKeysOrTellsOne(t *testing.T) {
	all := tell(nil, "explain")
	for _, want := range []string{"\npolling_interval ", "\necs.cluster ", "\nPULUMI_AGENT_DEBUG_POD ", "KEY ", "\ndrain "} {
		if !strings.Contains(all.stdout, want) {
			t.Errorf("the list lacks %q", want)
		}
	}
	one := tell(nil, "explain", "polling_interval")
	for _, want := range []string{"polling_interval\n", "from 100ms to 24h", "PULUMI_AGENT_POLLING_INTERVAL", "live: at once", "polling_interval: 30s"} {
		if !strings.Contains(one.stdout, want) {
			t.Errorf("the explanation lacks %q:\n%s", want, one.stdout)
		}
	}
	if by := tell(nil, "explain", "PULUMI_AGENT_POLLING_INTERVAL"); by != one {
		t.Errorf("by its variable the key is explained otherwise: %+v", by)
	}
	if all.code != 0 || one.code != 0 || all.stderr+one.stderr != "" {
		t.Errorf("%d %q, %d %q", all.code, all.stderr, one.code, one.stderr)
	}
}

func TestExplainRefusesWhatItDoesNotKnow(t *testing.T) {
	for line, want := range map[string]string{
		"explain polling_intervl": "did you mean polling_interval?",
		"explain xyzzy":           "cmwa explain lists all of them",
		"explain token syslog":    "explain takes one key, and not 2",
		"schema --format xml":     "there is no format \"xml\": write json or cue",
		"schema json":             "schema takes no argument",
		"config agent.yaml":       "name a file with --config",
		"config --format toml":    "there is no format \"toml\": write yaml or json",
	} {
		if said := tell(nil, strings.Fields(line)...); said.code != cli.ExitUsage || !strings.Contains(said.stderr, want) || said.stdout != "" {
			t.Errorf("%s: %+v", line, said)
		}
	}
}

func TestSchemaPrintsJSONOrCUE(t *testing.T) {
	var document map[string]any
	if err := json.Unmarshal([]byte(tell(nil, "schema").stdout), &document); err != nil || document["$schema"] == nil {
		t.Errorf("%v, %v", document["$schema"], err)
	}
	cue := tell(nil, "schema", "--format", "cue")
	if err := cuecontext.New().CompileString(cue.stdout).Err(); err != nil || cue.code != 0 {
		t.Error(err)
	}
}

// inFolder writes a file that only its owner may read, and makes its folder the
// current one.
func inFolder(t *testing.T, name, text string) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(folder)
}
