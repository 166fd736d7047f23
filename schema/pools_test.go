package schema_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestPools(t *testing.T) {
	t.Run("inherit settings from the top level", func(t *testing.T) {
		src := source(`
token: pul-top
service_url: https://one.example.com
polling_interval: 40s
max_concurrent_workflows: 6
docker: {network: n, memory: 2g}
pools:
  - name: prod
    token: pul-prod
    docker: {memory: 4g}
  - name: staging
    max_concurrent_workflows: 2
    service_url: https://two.example.com/
    enabled_workflow_types: [deployment]
`)
		src.Environ = map[string]string{
			"PULUMI_AGENT_POLLING_INTERVAL": "50s", "PULUMI_AGENT_MAX_CONCURRENT_WORKFLOWS": "7",
		}
		config := mustBeOverlaid(t, src, 2)
		var got []string
		for _, p := range config.Pools {
			got = append(got, fmt.Sprintf("%s %s %s %s %d %s %d %d", p.Name, p.Token.Reveal(), p.ServiceURL,
				p.PollingInterval, p.MaxConcurrentWorkflows, p.Docker.Network, p.Docker.Memory>>30,
				len(p.EnabledWorkflowTypes)))
		}
		want := []string{
			"prod pul-prod https://one.example.com 50s 7 n 4 3",
			"staging pul-top https://two.example.com 50s 2 n 2 1",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if config.MaxConcurrentWorkflows != 7 {
			t.Errorf("all pools together may run %d jobs, want 7", config.MaxConcurrentWorkflows)
		}
	})

	t.Run("have only their own limits if the top level sets no limit", func(t *testing.T) {
		config := must(t, source("pools:\n- {name: a, token: pul-a, max_concurrent_workflows: 3}\n"+
			"- {name: b, token: pul-b}\n"))
		got := []int{
			config.MaxConcurrentWorkflows,
			config.Pools[0].MaxConcurrentWorkflows, config.Pools[1].MaxConcurrentWorkflows,
		}
		if !slices.Equal(got, []int{0, 3, 1}) {
			t.Errorf("the limits of the agent and of its two pools are %d, want 0, 3 and 1", got)
		}
	})

	t.Run("the credentials of a pool replace all inherited credentials", func(t *testing.T) {
		src := source(`
oidc_token_file: /o
organization_name: acme
runner_pool_id: top
pools:
  - {name: exchange}
  - {name: own-token, token: pul-a}
  - {name: own-file, token_file: b}
`)
		src.ReadFile = files(map[string]string{"b": "pul-b\n"})
		config := must(t, src)
		var got []string
		for _, p := range config.Pools {
			got = append(got, p.Name+" "+p.Token.Reveal()+" "+p.OIDCTokenFile+" "+p.RunnerPoolID)
		}
		want := []string{"exchange  /o top", "own-token pul-a  top", "own-file pul-b  top"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("the Pod template of a pool replaces the inherited one", func(t *testing.T) {
		src := source(`
deploy_target: kubernetes
pod_template: {spec: {nodeSelector: {disk: ssd}}}
pools:
  - {name: a, token: pul-a}
  - {name: b, token: pul-b, pod_template: {metadata: {labels: {team: b}}}}
  - {name: c, token: pul-c, pod_template_file: pod.json}
  - {name: d, token: pul-d, pod_template_file: empty}
`)
		src.ReadFile = files(map[string]string{"pod.json": `{"metadata": {"labels": {"team": "c"}}}`, "empty": ""})
		config := must(t, src)
		label := func(team string) map[string]any {
			return map[string]any{"metadata": map[string]any{"labels": map[string]any{"team": team}}}
		}
		disk := map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{"disk": "ssd"}}}
		want := []map[string]any{disk, label("b"), label("c"), nil}
		for i, p := range config.Pools {
			if diff := cmp.Diff(want[i], p.PodTemplate); diff != "" {
				t.Errorf("pool %s: %s", p.Name, diff)
			}
		}
		if !slices.Equal(config.Files, []string{"empty", "pod.json"}) {
			t.Errorf("files are %v", config.Files)
		}
	})

	t.Run("with different kinds of jobs may share a token", func(t *testing.T) {
		must(t, source("token: pul-a\npools:\n- {name: a, enabled_workflow_types: [deployment]}\n"+
			"- {name: b, enabled_workflow_types: [insights_scan]}\n"))
	})

	// A pool in the list has the same settings as the only pool of a separate file that
	// contains the keys of the pool and those of the top level.
	t.Run("have the same settings in separate files", func(t *testing.T) {
		all := schema.Fields()
		rapid.Check(t, func(t *rapid.T) {
			draw := func(label string) []setting {
				var some []setting
				for _, f := range all {
					if f.Pool && effective(f) && f.Key != "token" && !strings.HasSuffix(f.Key, "_file") &&
						!strings.HasPrefix(f.Key, "request_retry") && rapid.IntRange(0, 3).Draw(t, label+f.Key) == 0 {
						some = append(some, drawSetting(t, f))
					}
				}
				return some
			}
			top := draw("top ")
			file := fileOf(top) + "pools:\n"
			var alone []string
			for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
				own := append(draw("own "), setting{key: "token", file: fmt.Sprintf("pul-%d", i)})
				merged := slices.Clone(own)
				for _, s := range top {
					if !slices.ContainsFunc(own, func(o setting) bool { return o.key == s.key }) {
						merged = append(merged, s)
					}
				}
				alone = append(alone, fileOf(merged))
				file += fmt.Sprintf("- name: p%d\n%s", i, indented(fileOf(own), 2))
			}
			together, problems := schema.Load(source(file))
			if together == nil {
				t.Fatalf("%v\n%s", problems, file)
			}
			for i, text := range alone {
				one, problems := schema.Load(source(text))
				if one == nil {
					t.Fatalf("%v\n%s", problems, text)
				}
				got := together.Pools[i]
				got.Name = schema.DefaultPool
				if diff := cmp.Diff(one.Pools[0], got); diff != "" {
					t.Fatalf("pool %d of\n%s\n%s", i, file, diff)
				}
				settings := settingsOf(together, together.Pools[i].Name)
				if diff := cmp.Diff(settingsOf(one, schema.DefaultPool), settings); diff != "" {
					t.Fatalf("settings of pool %d of\n%s\n%s", i, file, diff)
				}
			}
		})
	})

	t.Run("a whole number and a fraction are different values", func(t *testing.T) {
		for _, c := range []struct{ a, b, wrong string }{
			{"2", "2.0", "pools.1.max_concurrent_workflows"}, {"2.0", "2", "pools.0.max_concurrent_workflows"},
		} {
			problems := loadOf("pools:\n- {name: a, token: pul-a, max_concurrent_workflows: " + c.a + "}\n" +
				"- {name: b, token: pul-b, max_concurrent_workflows: " + c.b + "}\n")
			if len(problems) != 1 || problems[0].Path != c.wrong {
				t.Errorf("%+v: %v", c, problems)
			}
		}
	})

	t.Run("an invalid value is reported in each pool", func(t *testing.T) {
		problems := loadOf(`
polling_interval: 1 s
pools:
  - {name: a, token: pul-a, polling_interval: 1 s, docker: {labels: [good=1, bad]}}
  - {name: b, token: pul-b, polling_interval: 1s, docker: {labels: [bad]}}
  - {name: c, token: pul-c, polling_interval: 1 s, docker: {labels: [good=1, bad]}, pull_image: "yes"}
  - {name: d, token: pul-d, polling_interval: 1, pull_image: yes please}
  - nothing
`)
		var got []string
		for _, p := range problems {
			got = append(got, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Path))
		}
		want := []string{
			"2:19 polling_interval",
			"4:47 pools.0.polling_interval", "4:78 pools.0.docker.labels.1",
			"5:69 pools.1.docker.labels.0",
			"6:47 pools.2.polling_interval", "6:78 pools.2.docker.labels.1", "6:97 pools.2.pull_image",
			"7:47 pools.3.polling_interval", "7:62 pools.3.pull_image",
			"8:5 pools.4",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("that name the same token file are rejected even if the file is missing", func(t *testing.T) {
		src := source("pools: [{name: a, token_file: /run/x}, {name: b, token_file: /run//x}]")
		src.ReadFile, src.Elsewhere = files(nil), true
		config, problems := schema.Load(src)
		if config != nil || len(problems) != 1 || problems[0].Rule != position.RulePools {
			t.Errorf("problems: %v", problems)
		}
	})
}

func TestLoadPodTemplate(t *testing.T) {
	t.Run("is read from the mounted file", func(t *testing.T) {
		read := func(target, content string) (*schema.Config, position.Problems) {
			src := source("token: pul-a\ndeploy_target: " + target + "\n")
			src.ReadFile = files(map[string]string{schema.DefaultPodTemplateFile: content})
			return schema.Load(src)
		}
		template := `{"spec": {"nodeSelector": {"disk": "ssd"}}}`
		if config, problems := read("kubernetes", template); len(problems) > 0 || config.Pools[0].PodTemplate == nil {
			t.Errorf("the file is not read: %v", problems)
		}
		if config, problems := read("docker", "["); len(problems) > 0 || config.Pools[0].PodTemplate != nil {
			t.Errorf("the file is read for Docker: %v", problems)
		}
		one, _ := read("kubernetes", template)
		two, _ := read("kubernetes", `{"spec": {"nodeSelector": {"disk": "hdd"}}}`)
		if got := changed(one, two); got != "pod_template_file" {
			t.Errorf("a change of the file changes the settings %q, want pod_template_file", got)
		}
		for _, s := range one.Settings() {
			if s.Key == "pod_template_file" && s.Value != schema.DefaultPodTemplateFile {
				t.Errorf("the setting pod_template_file is %s", s.Value)
			}
		}
		for _, content := range []string{"", "{}", "\n", "null"} {
			config, problems := read("kubernetes", content)
			if len(problems) > 0 || config.Pools[0].PodTemplate != nil {
				t.Errorf("%q is not an empty template: %v", content, problems)
			}
		}
		_, problems := read("kubernetes", `{"spec": {"nodeSelecter": {}}}`)
		if len(problems) == 0 || problems[0].File != schema.DefaultPodTemplateFile || problems[0].Line != 1 {
			t.Errorf("an invalid template is accepted: %v", problems)
		}
		src := source("token: pul-a\ndeploy_target: kubernetes\npod_template_file: " + t.TempDir())
		if _, problems := schema.Load(src); len(problems.Errors()) != 1 || problems[0].Rule != position.RuleFile {
			t.Errorf("a directory in pod_template_file is accepted: %v", problems)
		}
	})

	// A mounted template that has no effect causes a warning.
	t.Run("other templates replace the mounted one", func(t *testing.T) {
		const mounted, own = `{"spec": {"nodeSelector": {"disk": "ssd"}}}`, `{"spec": {"hostname": "a"}}`
		for name, c := range map[string]struct {
			keys, mounted string
			warned        string // path of the warning; empty if there must be no warning
		}{
			"pod_template":               {"pod_template: " + own, mounted, "pod_template"},
			"pod_template_file":          {"pod_template_file: pod.json", mounted, "pod_template_file"},
			"broken file":                {"pod_template: " + own, "{", "pod_template"},
			"empty file":                 {"pod_template: " + own, "{}", ""},
			"the same content":           {"pod_template_file: pod.json", own, ""},
			"the same file":              {"pod_template_file: /mnt/../mnt/worker-pod.json", mounted, ""},
			"pod_template that is empty": {"pod_template: {}", mounted, ""},
		} {
			t.Run(name, func(t *testing.T) {
				src := source("token: pul-a\ndeploy_target: kubernetes\n" + c.keys + "\n")
				src.ReadFile = files(map[string]string{
					schema.DefaultPodTemplateFile: c.mounted, "pod.json": own, "/mnt/../mnt/worker-pod.json": c.mounted,
				})
				config, problems := schema.Load(src)
				if config == nil {
					t.Fatal(problems)
				}
				if c.warned == "" && len(problems) > 0 {
					t.Errorf("problems %v", problems)
				}
				if c.warned != "" && (len(problems) != 1 || problems[0].Severity != position.Warning ||
					problems[0].Path != c.warned || problems[0].Line != 3) {
					t.Errorf("problems %+v", problems)
				}
				if got := config.Pools[0].PodTemplate; (name == "pod_template that is empty") != (got == nil) {
					t.Errorf("the template is %v", got)
				}
			})
		}
		t.Run("with Docker there is no warning", func(t *testing.T) {
			src := source("token: pul-a\npod_template: " + own + "\n")
			src.ReadFile = files(map[string]string{schema.DefaultPodTemplateFile: mounted})
			if _, problems := schema.Load(src); len(problems) > 0 {
				t.Errorf("problems %v", problems)
			}
		})
		t.Run("a mounted file that cannot be read is an error", func(t *testing.T) {
			src := source("token: pul-a\ndeploy_target: kubernetes\n")
			src.ReadFile = func(string) ([]byte, error) { return nil, fs.ErrPermission }
			_, problems := schema.Load(src)
			if len(problems.Errors()) != 1 || problems[0].File != schema.DefaultPodTemplateFile ||
				problems[0].Hint == "" {
				t.Errorf("problems %+v", problems)
			}
		})
	})
}

// newCertificate returns a new certificate in PEM form.
func newCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestLoadCertificates(t *testing.T) {
	one, two := newCertificate(t), newCertificate(t)
	src := source("token: pul-a\nca_file: ca.pem\n")
	src.ReadFile = files(map[string]string{"ca.pem": "# of the gateway\n" + one + "\nof the service\n" + two})
	if got := must(t, src).Pools[0].CA; got != one+two {
		t.Errorf("read %q", got)
	}
}

func TestLoadReadableToken(t *testing.T) {
	for _, test := range []struct {
		file string
		mode fs.FileMode
		want int
	}{
		{"token: pul-a", 0o644, 1}, {"token: pul-a", 0o640, 1}, {"token: pul-a", 0o600, 0}, {"token: pul-a", 0, 0},
		{"token_file: t", 0o644, 0}, {"pools: [{name: a, token: pul-a}]", 0o604, 1},
	} {
		src := source(test.file)
		src.Mode, src.ReadFile = test.mode, files(map[string]string{"t": "pul-a"})
		config, problems := schema.Load(src)
		if config == nil || len(problems) != test.want ||
			test.want > 0 && problems[0].Rule != position.RuleReadableToken {
			t.Errorf("%s with mode %o: %v", test.file, test.mode, problems)
		}
	}
	t.Run("of mode 0644 is no problem on a read-only file system, such as a Secret's", func(t *testing.T) {
		directory := t.TempDir()
		config := filepath.Join(directory, "agent.yaml")
		for path, text := range map[string]string{config: "token_file: t", filepath.Join(directory, "t"): "pul-a"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		load := func() position.Problems {
			src, err := schema.Find(schema.SearchPaths{Config: config})
			if err != nil {
				t.Fatal(err)
			}
			_, problems := schema.Load(src)
			return problems
		}
		want := fmt.Sprintf("run chown %d and chmod 600", os.Geteuid())
		if problems := load(); !strings.Contains(problems.Error(), want) {
			t.Errorf("in a directory: %v", problems)
		}
		mountReadOnly(t, directory)
		if problems := load(); len(problems) != 0 {
			t.Errorf("on a read-only file system: %v", problems)
		}
	})

	src := source("token: pul-a")
	src.Mode, src.Environ = 0o644, map[string]string{"PULUMI_AGENT_TOKEN": "pul-b"}
	mustBeOverlaid(t, src, 1)
}

func TestLoadTerminationGrace(t *testing.T) {
	src := source("token: pul-a\nshutdown_timeout: 10m\n")
	src.TerminationGrace = 10*time.Minute + thisRelease.StopTime
	must(t, src)
	src.TerminationGrace -= time.Second
	_, problems := schema.Load(src)
	if len(problems) != 1 || problems[0].Rule != position.RuleTimes || problems[0].Line != 2 {
		t.Errorf("problems: %v", problems)
	}
}

func TestSettings(t *testing.T) {
	t.Run("have every key with its origin and no secret", func(t *testing.T) {
		src := source(`
http_server_port: 9090
ca_file: ca.pem
pools:
  - name: prod
    token: pul-s3cr3t
    docker: {labels: ["a=b c"], cpus: 1.5}
    pod_template: {spec: {containers: [{name: pulumi-workflow, env: [{name: PASSWORD, value: hunter2}]}]}}
`)
		src.Environ = map[string]string{"PULUMI_AGENT_POLLING_INTERVAL": "20s"}
		src.ReadFile = files(map[string]string{"ca.pem": newCertificate(t)})
		config := must(t, src)
		got := map[string]string{}
		count := map[string]int{}
		byDefault := []string{"health_threshold", "working_directory", "request_timeout"}
		for _, s := range config.Settings() {
			count[s.Pool]++
			if s.Origin != (position.Origin{}) || slices.Contains(byDefault, s.Key) {
				got[s.Pool+"/"+s.Key] = s.Value + " from " + s.Origin.String()
			}
		}
		want := map[string]string{
			"/http_server_port": "9090 from agent.yaml:2", "/health_threshold": "1m from default",
			"prod/ca_file": "ca.pem from agent.yaml:3", "prod/token": "[secret] from agent.yaml:6",
			"prod/request_timeout": "30s from default",
			"prod/docker.labels":   `["a=b c"] from agent.yaml:7`, "prod/docker.cpus": "1.5 from agent.yaml:7",
			"prod/pod_template": `{spec: {containers: [{env: [{name: PASSWORD, value: "[secret]"}], name: ` +
				`pulumi-workflow}]}} from agent.yaml:8`,
			"prod/polling_interval":  "20s from PULUMI_AGENT_POLLING_INTERVAL",
			"prod/working_directory": "/opt/cmwa from default",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		keys := map[string]int{}
		for _, f := range schema.Fields() {
			switch {
			case !effective(f) && f.Kind != schema.KindTree, f.OnlyVariable, f.Key == "pools.name":
			case f.Pool:
				keys["prod"]++
			default:
				keys[""]++
			}
		}
		keys[""]++ // max_concurrent_workflows is a setting of the whole agent too
		if diff := cmp.Diff(keys, count); diff != "" {
			t.Errorf("settings of the agent and the pool: %s", diff)
		}
	})

	t.Run("differ if the files that they name differ", func(t *testing.T) {
		const both = "token_file: t\npod_template_file: pod"
		load := func(file, token, pod string) *schema.Config {
			src := source(file)
			src.ReadFile = files(map[string]string{"t": token, "pod": pod})
			return must(t, src)
		}
		before := load(both, "pul-a", "{}")
		for name, test := range map[string]struct {
			after *schema.Config
			want  string
		}{
			"nothing":                 {load("# x\npod_template_file: pod\ntoken_file: 't'", "pul-a\n", ""), ""},
			"the token":               {load(both, "pul-b", "{}"), "token_file"},
			"the template":            {load(both, "pul-a", "{spec: {priority: 3}}"), "pod_template_file"},
			"the kind of credentials": {load("token: pul-a\npod_template_file: pod", "", "{}"), "token token_file"},
			"two settings": {load(both+"\npull_image: false\ndocker: {network: x}", "pul-a", "{}"),
				"docker.network pull_image"},
		} {
			if got := changed(before, test.after); got != test.want {
				t.Errorf("%s: the settings %q differ, want %q", name, got, test.want)
			}
		}
	})

	t.Run("do not show a token in place of a file name", func(t *testing.T) {
		for _, key := range []string{"token_file", "oidc_token_file", "ca_file", "pod_template_file"} {
			for _, token := range []string{canary, "eyJhbGciOi" + canary} {
				src := source("organization_name: a\nrunner_pool_id: p\n" + key + ": " + token)
				config, problems := schema.Load(src)
				if config != nil {
					t.Errorf("%s: the token is accepted", key)
				}
				hidesToken(t, key, output(config, problems))
			}
		}
		src := source("token: pul-x\nworkflow_runners_directory: $PULUMI_AGENT_TOKEN/bin\n")
		src.Environ = map[string]string{"PULUMI_AGENT_TOKEN": canary}
		config, problems := schema.Load(src)
		hidesToken(t, "a path with a variable", output(config, problems)+fmt.Sprint(config.Settings()))
	})

	t.Run("mask secrets in unusual places", func(t *testing.T) {
		for _, file := range []string{
			"pod_template: {spec: {initContainers: [{name: a, image: b, args: [--password, %s]}]}}",
			"pod_template: {spec: {initContainers: [{name: a, image: b, command: [sh, -c, 'X=%s run']}]}}",
			"pod_template: {spec: {containers: [{name: pulumi-workflow, env: [{name: A, value: %s}]}]}}",
			"pod_template: {metadata: {annotations: {a: %s}}}",
			"docker: {labels: [apikey=%s]}", "docker: {volumes: ['/%s:/x']}", "organization_name: %s",
			"env_forward_allowlist: [%s]", "working_directory: /x/%s",
		} {
			settings := must(t, source("token: pul-x\n"+strings.ReplaceAll(file, "%s", canary))).Settings()
			hidesToken(t, file, fmt.Sprintf("%v %+v", settings, settings))
		}
	})

	t.Run("are the same in another notation", func(t *testing.T) {
		one := must(t, source("token: pul-a\nservice_url: https://a/\npolling_interval: 1m\n"+
			"docker: {memory: 1g, cpus: 2}\nenabled_workflow_types: [deployment, insights_scan]\n"))
		two := must(t, source("token: pul-a\nservice_url: https://a\npolling_interval: 60s\n"+
			"docker: {memory: 1024m, cpus: '2.0'}\nmax_concurrent_workflows: 1\n"+
			"enabled_workflow_types: [insights_scan, deployment, deployment]\n"))
		if got := changed(one, two); got != "" {
			t.Errorf("the settings %q differ", got)
		}
	})
}

// changed returns the keys of the settings that differ between two configurations.
func changed(a, b *schema.Config) string {
	var keys []string
	after := b.Settings()
	for i, s := range a.Settings() {
		if !s.Same(after[i]) {
			keys = append(keys, s.Key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// settingsOf returns the settings of a pool without their origins.
func settingsOf(config *schema.Config, pool string) (lines []string) {
	for _, s := range config.Settings() {
		if s.Pool == pool {
			lines = append(lines, s.Key+": "+s.Value)
		}
	}
	return lines
}

func TestLoadForbiddenFile(t *testing.T) {
	for _, fault := range []error{fs.ErrPermission, syscall.ENOTDIR} {
		src := source("token_file: /root/token\nca_file: /root/ca.pem\n")
		src.ReadFile = func(string) ([]byte, error) { return nil, fault }
		if _, problems := schema.Load(src); len(problems.Errors()) != 2 || len(schema.Strict(problems)) != 0 {
			t.Errorf("%v: %v", fault, problems)
		}
	}
}

func TestLoadEmptyMapping(t *testing.T) {
	must(t, source("token: pul-x\ndocker:\n  # network: n\npools:\n- name: a\n  ecs:\n"))
}

func TestLoadForwardedToken(t *testing.T) {
	problems := loadOf("token: pul-x\nenv_forward_allowlist: [HOME, PULUMI_AGENT_TOKEN]\n")
	if len(problems) != 1 || problems[0].Severity != position.Warning || problems[0].Line != 2 {
		t.Errorf("problems: %v", problems)
	}
}
