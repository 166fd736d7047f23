package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const twoPools = `polling_interval: 10s
docker: {volumes: ["cache:/root/.cache"], network: builds}
pools:
  - name: linux
    token: pul-c4n4ry-linux
  - name: arm
    token: pul-c4n4ry-arm
    deploy_target: kubernetes
    polling_interval: 20s
    docker: {network: arm}
    pod_template:
      spec: {containers: [{name: pulumi-workflow, env: [{name: PASSWORD, value: c4n4ry}]}]}
`

func TestConfigShowsWhereEachValueComesFrom(t *testing.T) {
	inFolder(t, "agent.yaml", twoPools)
	said := tell([]string{"PULUMI_AGENT_LOG_LEVEL=debug"}, "config", "--config", "agent.yaml", "--origin")
	if said.code != 0 || said.stderr != "" {
		t.Fatalf("%+v", said)
	}
	for _, want := range []string{
		`(?m)^log_level: debug +# PULUMI_AGENT_LOG_LEVEL$`,
		`(?m)^http_server_port: 8080 +# default$`,
		`(?m)^docker:\n  volumes: \[.*\] +# agent.yaml:2$`,
		`(?m)^  - name: linux\n    token: "\[secret\]" +# agent.yaml:5\n`,
		`(?m)^    polling_interval: 10s +# agent.yaml:1$`,
		`(?m)^    polling_interval: 20s +# agent.yaml:9$`,
		`(?m)^    docker:\n      network: arm +# agent.yaml:10$`,
		`(?m)^    pod_template: +# agent.yaml:12\n      spec:\n        containers:$`,
	} {
		if !regexp.MustCompile(want).MatchString(said.stdout) {
			t.Errorf("there is no %s in:\n%s", want, said.stdout)
		}
	}
	if strings.Contains(said.stdout, "c4n4ry") {
		t.Errorf("a secret is shown:\n%s", said.stdout)
	}
	column := 0
	for line := range strings.Lines(said.stdout) {
		at := strings.Index(line, "  # ")
		if at < 0 || len(line) > 80 {
			continue
		}
		if column == 0 {
			column = at
		}
		if at != column {
			t.Errorf("the comment of %q stands at %d, and others at %d", line, at, column)
		}
	}
}

func TestConfigIsAConfigurationThatMeansTheSame(t *testing.T) {
	for name, text := range map[string]string{
		"one pool":      "token: pul-x\ndocker: {cpus: 0.5, labels: [\"note=two words\", a=b]}\nshutdown_timeout: 0s\ntoken_expiration: 90\n",
		"a named pool":  "pools: [{name: only, token: pul-x}]\nlog_format: json\n",
		"two pools":     strings.Replace(twoPools, "c4n4ry}", "plain}", 1),
		"one limit":     "max_concurrent_workflows: 3\n" + twoPools,
		"quoted things": "token: pul-x\nworking_directory: \"a: b # c\"\nca_file: \"\"\norganization_name: \"yes\"\nrunner_pool_id: \"123\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			inFolder(t, "agent.yaml", text)
			said := tell(nil, "config", "--config", "agent.yaml", "--origin")
			if said.code != 0 {
				t.Fatalf("%+v", said)
			}
			var v any
			if err := yaml.Unmarshal([]byte(said.stdout), &v); err != nil {
				t.Fatalf("%v:\n%s", err, said.stdout)
			}
			n := 0
			again := regexp.MustCompile(regexp.QuoteMeta(`"`+secret.Mark+`"`)).ReplaceAllStringFunc(said.stdout, func(string) string {
				n++
				return "pul-" + strings.Repeat("x", n)
			})
			if err := os.WriteFile("again.yaml", []byte(again), 0o600); err != nil {
				t.Fatal(err)
			}
			before, after := inForce(t, "agent.yaml"), inForce(t, "again.yaml")
			for key, value := range before {
				if after[key] != value && value != "" {
					t.Errorf("%s was %s, and is %s in:\n%s", key, value, after[key], again)
				}
			}
			if len(before) != len(after) {
				t.Errorf("%d settings have become %d", len(before), len(after))
			}
		})
	}
}

// inForce loads a file and returns its settings by pool and key.
func inForce(t *testing.T, path string) map[string]string {
	t.Helper()
	source, err := schema.Find(schema.Places{Config: path, Executable: "/opt/cmwa/cmwa"})
	if err != nil {
		t.Fatal(err)
	}
	c, problems := schema.Load(source)
	if c == nil {
		t.Fatalf("%s: %v", path, problems)
	}
	all := map[string]string{}
	for _, s := range c.Settings() {
		if s.Key != "working_directory" && s.Key != "pod_template" { // the first depends on the program, the second is masked within
			all[s.Pool+"/"+s.Key] = s.Value
		}
	}
	return all
}

func TestConfigInJSONSaysTheSame(t *testing.T) {
	inFolder(t, "agent.yaml", twoPools)
	said := tell(nil, "config", "--config", "agent.yaml", "--format", "json")
	var byJSON, byYAML map[string]any
	if err := json.Unmarshal([]byte(said.stdout), &byJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(tell(nil, "config", "--config", "agent.yaml").stdout), &byYAML); err != nil {
		t.Fatal(err)
	}
	if a, b := mustJSON(t, byJSON), mustJSON(t, byYAML); a != b {
		t.Errorf("JSON says\n%s\nand YAML\n%s", a, b)
	}
	said = tell(nil, "config", "--config", "agent.yaml", "--format", "json", "--origin")
	var origins struct {
		Level struct{ Value, Origin string } `json:"log_level"`
		Pools []struct {
			Name  string
			Token struct{ Value, Origin string }
		}
	}
	if err := json.Unmarshal([]byte(said.stdout), &origins); err != nil {
		t.Fatal(err)
	}
	if origins.Level.Value != "info" || origins.Level.Origin != "default" || len(origins.Pools) != 2 ||
		origins.Pools[1].Token.Value != secret.Mark || origins.Pools[1].Token.Origin != "agent.yaml:7" {
		t.Errorf("%+v", origins)
	}
	if strings.Contains(said.stdout, "c4n4ry") {
		t.Error("a secret is shown")
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestConfigTellsWhyThereIsNone(t *testing.T) {
	inFolder(t, "agent.yaml", "token: pul-c4n4ry\npolling_interval: 3\nlog_level: trace\n")
	said := tell(nil, "config", "--config", "agent.yaml")
	for _, want := range []string{"agent.yaml:2:19: polling_interval: must be a duration", "agent.yaml:3:12: log_level: must be one of"} {
		if !strings.Contains(said.stderr, want) {
			t.Errorf("it is not said: %s:\n%s", want, said.stderr)
		}
	}
	if said.code != cli.ExitUsage || said.stdout != "" || strings.Contains(said.stderr, "c4n4ry") {
		t.Errorf("%+v", said)
	}
	if said := tell(nil, "config", "--config", "missing.yaml"); said.code != cli.ExitUsage || !strings.Contains(said.stderr, "missing.yaml") {
		t.Errorf("%+v", said)
	}
}

func TestConfigWarnsAndGoesOn(t *testing.T) {
	inFolder(t, "agent.yaml", "token: pul-x\nowner: platform\n")
	said := tell(nil, "config", "--config", "agent.yaml")
	if said.code != 0 || !strings.Contains(said.stderr, `warning: agent.yaml:2:1: owner: unknown key`) || !strings.Contains(said.stdout, "polling_interval: 1m\n") {
		t.Errorf("%+v", said)
	}
}

func TestANameOfAFileCannotEndAComment(t *testing.T) {
	name := "a\nlog_level: debug\n.yaml"
	inFolder(t, name, "token: pul-x\n")
	said := tell(nil, "config", "--config", name, "--origin")
	var v map[string]any
	if err := yaml.Unmarshal([]byte(said.stdout), &v); err != nil || v["log_level"] != "info" {
		t.Errorf("%v, %v:\n%s", v["log_level"], err, said.stdout)
	}
}

// FuzzConfig holds whatever can be loaded against the promise that what config
// prints is YAML, means the same to a reader of YAML, and shows no token.
func FuzzConfig(f *testing.F) {
	f.Add("token: pul-c4n4ry\nworking_directory: \"\\t: # \\u2028 \\x7f\"\ndocker: {labels: [\"a=: # - {\"]}")
	f.Add("token: pul-x\npod_template: {spec: {nodeSelector: {\"a/b\": \"yes\"}}, metadata: {annotations: {a: \"1e3\", b: \"0x1\", c: \"2001-01-01\"}}}")
	paths, err := filepath.Glob("../../schema/testdata/*/*.yaml")
	if err != nil || len(paths) < 100 {
		f.Fatalf("found %d files, %v", len(paths), err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(content))
	}
	f.Fuzz(func(t *testing.T, content string) {
		c, _ := schema.Load(schema.Source{Path: "agent.yaml", Content: []byte(content), Executable: "/opt/cmwa/cmwa",
			ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist }})
		if c == nil {
			return
		}
		e := effectiveOf(c.Settings())
		text, err := e.yaml(true)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := yaml.Unmarshal(text, &v); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if a, b := mustJSON(t, v), mustJSON(t, e.json(false)); a != b {
			t.Errorf("YAML says\n%s\nand JSON\n%s", a, b)
		}
		for _, pool := range c.Pools {
			if token := pool.Token.Reveal(); strings.HasPrefix(token, "pul-") && len(token) > len("pul-x") && strings.Contains(string(text), token) {
				t.Errorf("a token is shown:\n%s", text)
			}
		}
	})
}
