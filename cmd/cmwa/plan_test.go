package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// command runs one command line of the program within the test.
func command(environ []string, args ...string) (code int, stdout, stderr string) {
	var out, wrong bytes.Buffer
	code = execute(context.Background(), context.Background(), args, streams{environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &wrong})
	return code, out.String(), wrong.String()
}

// fileOf puts a file into a folder of the test's own.
func fileOf(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlanTellsWhatAReloadWouldDo(t *testing.T) {
	before := fileOf(t, "old.yaml", "token_file: /not/on/this/machine\npolling_interval: 1m\n")
	after := fileOf(t, "new.yaml", "token_file: /not/on/this/machine\npolling_interval: 10m\nservice_url: https://pulumi.example.com\n")
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"changes": {[]string{before, after}, 2, "agent:\n" +
			"  now            health_threshold  2m -> 20m\n" +
			"pool default: drained and replaced, running jobs finish first\n" +
			"  new pool       service_url       https://api.pulumi.com -> https://pulumi.example.com\n" +
			"  new pool       polling_interval  1m -> 10m\n"},
		"no change": {[]string{before, before}, 0, "no change\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(nil, append([]string{"plan"}, test.args...)...)
			if code != test.code || stdout != test.want || stderr != "" {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, stderr, stdout)
			}
		})
	}
	code, stdout, _ := command(nil, "plan", "--format", "json", before, after)
	var document planDocument
	if err := json.Unmarshal([]byte(stdout), &document); err != nil || code != 2 || !document.Changed || len(document.Reloads) != 2 || document.Reloads[1].Fate != "replaced" {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
}

func TestPlanRefusesWhatItCannotUse(t *testing.T) {
	good := fileOf(t, "good.yaml", "token: pul-a\n")
	wrong := fileOf(t, "wrong.yaml", "token: pul-a\nhttp_server_port: many\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a wrong new file": {[]string{good, wrong}, wrong + ":2:19: http_server_port: must be a whole number from 0 to 65535\n"},
		"two wrong files":  {[]string{wrong, wrong}, strings.Repeat(wrong+":2:19: http_server_port: must be a whole number from 0 to 65535\n", 2)},
		"no such file":     {[]string{good, good + "x"}, "no such file"},
		"one file":         {[]string{good}, "write: cmwa plan"},
		"another format":   {[]string{"--format", "xml", good, good}, "write: cmwa plan"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(nil, append([]string{"plan"}, test.args...)...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

func TestAMisspeltCommandIsAnsweredWithTheRightOne(t *testing.T) {
	if code, _, stderr := command(nil, "plna"); code != exitUsage || !strings.Contains(stderr, `there is no command "plna": did you mean plan?`) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
