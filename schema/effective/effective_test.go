package effective

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

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

func TestYAML(t *testing.T) {
	t.Run("shows the origin of each value", func(t *testing.T) {
		environ := map[string]string{"PULUMI_AGENT_LOG_LEVEL": "debug"}
		text := yamlOf(t, settingsOf(t, "agent.yaml", twoPools, environ), true)
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
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("there is no %s in:\n%s", want, text)
			}
		}
		if strings.Contains(text, "c4n4ry") {
			t.Errorf("a secret is shown:\n%s", text)
		}
		column := 0
		for line := range strings.Lines(text) {
			at := strings.Index(line, "  # ")
			if at < 0 || len(line) > 80 {
				continue
			}
			if column == 0 {
				column = at
			}
			if at != column {
				t.Errorf("the comment of %q is in column %d, want %d", line, at, column)
			}
		}
	})

	t.Run("is a configuration with the same meaning", func(t *testing.T) {
		for name, content := range map[string]string{
			"one pool": "token: pul-x\ndocker: {cpus: 0.5, labels: [\"note=two parts\", a=b]}\n" +
				"shutdown_timeout: 0s\ntoken_expiration: 90\n",
			"a named pool": "pools: [{name: only, token: pul-x}]\nlog_format: json\n",
			"two pools":    strings.Replace(twoPools, "c4n4ry}", "plain}", 1),
			"one limit":    "max_concurrent_workflows: 3\n" + twoPools,
			"quoted things": "token: pul-x\nworking_directory: \"a: b # c\"\nca_file: \"\"\n" +
				"organization_name: \"yes\"\nrunner_pool_id: \"123\"\n",
		} {
			t.Run(name, func(t *testing.T) {
				settings := settingsOf(t, "agent.yaml", content, nil)
				text := yamlOf(t, settings, true)
				var v any
				if err := yaml.Unmarshal([]byte(text), &v); err != nil {
					t.Fatalf("%v:\n%s", err, text)
				}
				n := 0
				again := regexp.MustCompile(regexp.QuoteMeta(`"`+secret.Mark+`"`)).
					ReplaceAllStringFunc(text, func(string) string {
						n++
						return "pul-" + strings.Repeat("x", n)
					})
				before, after := valuesOf(settings), valuesOf(settingsOf(t, "again.yaml", again, nil))
				for key, value := range before {
					if after[key] != value && value != "" {
						t.Errorf("%s was %s, and is %s in:\n%s", key, value, after[key], again)
					}
				}
				if len(before) != len(after) {
					t.Errorf("got %d settings, want %d", len(after), len(before))
				}
			})
		}
	})

	t.Run("a file name cannot end a comment", func(t *testing.T) {
		name := "a\nlog_level: debug\n.yaml"
		text := yamlOf(t, settingsOf(t, name, "token: pul-x\n", nil), true)
		var v map[string]any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil || v["log_level"] != "info" {
			t.Errorf("the level is %v (%v), want info:\n%s", v["log_level"], err, text)
		}
	})
}

// settingsOf loads a configuration and returns its settings.
func settingsOf(t *testing.T, path, content string, environ map[string]string) []schema.Setting {
	t.Helper()
	c, problems := schema.Load(schema.Source{
		Path: path, Content: []byte(content), Environ: environ, Executable: "/opt/cmwa/cmwa",
	})
	if c == nil {
		t.Fatalf("%s: %v", path, problems)
	}
	return c.Settings()
}

// yamlOf returns the result of [YAML] as text.
func yamlOf(t *testing.T, settings []schema.Setting, origins bool) string {
	t.Helper()
	text, err := YAML(settings, origins)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// valuesOf returns the values of settings by pool and key.
func valuesOf(settings []schema.Setting) map[string]string {
	all := map[string]string{}
	for _, s := range settings {
		// The first key depends on the executable, and the second contains marks.
		if s.Key != "working_directory" && s.Key != "pod_template" {
			all[s.Pool+"/"+s.Key] = s.Value
		}
	}
	return all
}

func TestData(t *testing.T) {
	settings := settingsOf(t, "agent.yaml", twoPools, nil)
	var byJSON, byYAML map[string]any
	if err := json.Unmarshal([]byte(mustJSON(t, Data(settings, false))), &byJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(yamlOf(t, settings, false)), &byYAML); err != nil {
		t.Fatal(err)
	}
	if a, b := mustJSON(t, byJSON), mustJSON(t, byYAML); a != b {
		t.Errorf("got JSON\n%s\nand YAML\n%s", a, b)
	}
	text := mustJSON(t, Data(settings, true))
	var origins struct {
		Level struct{ Value, Origin string } `json:"log_level"`
		Pools []struct {
			Name  string
			Token struct{ Value, Origin string }
		}
	}
	if err := json.Unmarshal([]byte(text), &origins); err != nil {
		t.Fatal(err)
	}
	if origins.Level.Value != "info" || origins.Level.Origin != "default" || len(origins.Pools) != 2 ||
		origins.Pools[1].Token.Value != secret.Mark || origins.Pools[1].Token.Origin != "agent.yaml:7" {
		t.Errorf("Data with origins returns %+v", origins)
	}
	if strings.Contains(text, "c4n4ry") {
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

// FuzzConfig checks that the settings of every configuration are valid YAML, that
// YAML and JSON mean the same, and that no token is shown.
func FuzzConfig(f *testing.F) {
	f.Add("token: pul-c4n4ry\nworking_directory: \"\\t: # \\u2028 \\x7f\"\ndocker: {labels: [\"a=: # - {\"]}")
	f.Add("token: pul-x\n" +
		`pod_template: {spec: {nodeSelector: {"a/b": "yes"}}, ` +
		`metadata: {annotations: {a: "1e3", b: "0x1", c: "2001-01-01"}}}`)
	paths, err := filepath.Glob("../testdata/*/*.yaml")
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
		text := yamlOf(t, c.Settings(), true)
		var v map[string]any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if a, b := mustJSON(t, v), mustJSON(t, Data(c.Settings(), false)); a != b {
			t.Errorf("got YAML\n%s\nand JSON\n%s", a, b)
		}
		for _, pool := range c.Pools {
			if token := pool.Token.Reveal(); strings.HasPrefix(token, "pul-") && len(token) > len("pul-x") &&
				strings.Contains(text, token) {
				t.Errorf("a token is shown:\n%s", text)
			}
		}
	})
}
