package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// commandLine runs one command line of the program within the test.
func commandLine(environ []string, args ...string) (code int, stdout, stderr string) {
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
			code, stdout, stderr := commandLine(nil, append([]string{"plan"}, test.args...)...)
			if code != test.code || stdout != test.want || stderr != "" {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, stderr, stdout)
			}
		})
	}
	code, stdout, _ := commandLine(nil, "plan", "--format", "json", before, after)
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
		"an unknown flag":  {[]string{"--nope", good, good}, "-nope"},
		"another format":   {[]string{"--format", "xml", good, good}, "write: cmwa plan"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := commandLine(nil, append([]string{"plan"}, test.args...)...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

func TestPlanReadsFilesAsVetDoes(t *testing.T) {
	before := fileOf(t, "old.yaml", "token: pul-a\npolling_interval: 1m\n")
	after := "token: pul-a\npolling_interval: 10m\n"
	for name, args := range map[string][]string{
		"standard input":      {before, "-"},
		"flags behind files":  {before, "-", "--format", "text"},
		"flags between files": {before, "--format=text", "-"},
		"behind --":           {"--", before, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			ctx := t.Context()
			code := execute(ctx, ctx, append([]string{"plan"}, args...), streams{nil, strings.NewReader(after), &stdout, &stderr})
			if code != 2 || !strings.Contains(stdout.String(), "polling_interval  1m -> 10m") || stderr.Len() > 0 {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, &stderr, &stdout)
			}
		})
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte(after), 0o600) }()
	if code, stdout, stderr := commandLine(nil, "plan", before, pipe); code != 2 || stderr != "" {
		t.Errorf("a pipe: exit code %d, %q, %q", code, stdout, stderr)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"standard input twice": {[]string{"-", "-"}, "name - once"},
		"a folder":             {[]string{before, filepath.Dir(before)}, "this is a directory"},
		"an unknown flag":      {[]string{before, before, "--fromat", "json"}, "write: cmwa plan"},
	} {
		if code, stdout, stderr := commandLine(nil, append([]string{"plan"}, c.args...)...); code != 1 || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q", name, code, stdout, stderr)
		}
	}
}

func TestPlanTellsWhatIsWrongAsVetDoes(t *testing.T) {
	good := fileOf(t, "good.yaml", "token: pul-a\n")
	warned := fileOf(t, "warned.yaml", "token: pul-a\nshutdown_timeout: 5s\n")
	unknown := fileOf(t, "unknown.yaml", "token: pul-a\nlog_levl: debug\n")
	if code, stdout, stderr := commandLine(nil, "plan", good, warned); code != 2 || stdout == "" || !strings.HasPrefix(stderr, warned+":2:19: warning: shutdown_timeout: is shorter") {
		t.Errorf("a warning: exit code %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, stderr := commandLine(nil, "plan", good, unknown); code != 1 || stdout != "" || !strings.HasPrefix(stderr, unknown+":2:1: log_levl: unknown key\n") {
		t.Errorf("an unknown key: exit code %d, %q, %q", code, stdout, stderr)
	}
	stranger := []string{"PULUMI_AGENT_LOG_LVL=x"}
	if code, _, stderr := commandLine(stranger, "plan", good, good); code != 0 || strings.Count(stderr, "PULUMI_AGENT_LOG_LVL") != 1 {
		t.Errorf("a variable of both files: exit code %d, %q", code, stderr)
	}
}

func TestPlanComparesTheConfigurationsThatManifestsHold(t *testing.T) {
	manifest := func(kind, section, configuration string) string {
		return "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: a}\n" + section + ":\n  pulumi-workflow-agent.yaml: |\n    " +
			strings.ReplaceAll(strings.TrimSpace(configuration), "\n", "\n    ") + "\n"
	}
	const old, young = "token_file: /t\npolling_interval: 1m\n", "token_file: /t\npolling_interval: 10m\n"
	const template = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\ndata:\n  worker-pod.json: |\n    {\"spec\": {\"hostname\": \"%s\"}}\n"
	const kubernetes = "token_file: /t\ndeploy_target: kubernetes\npod_template_file: /mnt/worker-pod.json\n"
	for name, c := range map[string]struct {
		old, young string
		code       int
		stdout     string
		stderr     string
	}{
		"a change":           {manifest("ConfigMap", "data", old), manifest("ConfigMap", "data", young), 2, "polling_interval  1m -> 10m", ""},
		"no change":          {manifest("ConfigMap", "data", old), manifest("Secret", "stringData", old), 0, "no change\n", ""},
		"a file beside it":   {old, manifest("ConfigMap", "data", young), 2, "polling_interval  1m -> 10m", ""},
		"the same as a file": {manifest("ConfigMap", "data", old), old, 0, "no change\n", ""},
		"a template": {manifest("ConfigMap", "data", kubernetes) + strings.ReplaceAll(template, "%s", "a"),
			manifest("ConfigMap", "data", kubernetes) + strings.ReplaceAll(template, "%s", "b"), 2, "pod_template_file  /mnt/worker-pod.json (changed)", ""},
		"a mistake":      {manifest("ConfigMap", "data", old), manifest("ConfigMap", "data", young+"log_levl: x\n"), 1, "", "new.yaml:8:5: log_levl: unknown key"},
		"a warning":      {manifest("ConfigMap", "data", old), manifest("ConfigMap", "data", old+"shutdown_timeout: 5s\n"), 2, "shutdown_timeout", "new.yaml:8:23: warning: shutdown_timeout: "},
		"none":           {old, "apiVersion: v1\nkind: ConfigMap\ndata: {worker-pod.json: '{}'}\n", 1, "", "new.yaml: no ConfigMap or Secret of this file holds a configuration"},
		"nothing at all": {old, "apiVersion: v1\nkind: Service\n", 1, "", "new.yaml: no ConfigMap or Secret of this file holds a configuration"},
		"several":        {old, manifest("ConfigMap", "data", old) + "---\n" + manifest("Secret", "stringData", old), 1, "", "new.yaml: the file holds 2 configurations\n  hint: "},
	} {
		t.Run(name, func(t *testing.T) {
			environ := []string{"PULUMI_AGENT_LOG_LEVEL=error"}
			code, stdout, stderr := commandLine(environ, "plan", fileOf(t, "old.yaml", c.old), fileOf(t, "new.yaml", c.young))
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, stderr, stdout)
			}
			if strings.Contains(stdout, "log_level") {
				t.Errorf("a variable of this machine counts:\n%s", stdout)
			}
		})
	}
}

func TestAMisspeltCommandIsAnsweredWithTheRightOne(t *testing.T) {
	if code, _, stderr := commandLine(nil, "plna"); code != cli.ExitUsage || !strings.Contains(stderr, `there is no command "plna": did you mean plan?`) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
