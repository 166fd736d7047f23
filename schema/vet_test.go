package schema_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

// vetCorpus returns files of every kind that vet checks.
func vetCorpus(t testing.TB) []textFile {
	return corpus(t, 15, "testdata/vet/*.yaml", "testdata/vet/*.json", "testdata/vet/named/*.json")
}

func TestVetProblems(t *testing.T) {
	for _, file := range vetCorpus(t) {
		t.Run(strings.TrimPrefix(file.path, "testdata/vet/"), func(t *testing.T) {
			goldenProblems(t, file.path+".golden", schema.Vet(schema.Source{Path: filepath.Base(file.path),
				Content: []byte(file.content), ReadFile: files(nil), Release: thisRelease}))
		})
	}
}

func TestVet(t *testing.T) {
	t.Run("checks a whole file as Load does", func(t *testing.T) {
		for _, file := range corpus(t, 40, "testdata/bad/*.yaml") {
			src := source(file.content)
			src.Environ = map[string]string{"PULUMI_AGENT_LOG_FORMAT": "loud", "PULUMI_AGENT_LOG_LEVEL": "debug"}
			src.ReadFile = files(map[string]string{"token": "pul-a\n"})
			_, problems := schema.Load(src)
			onlyVet := func(p position.Problem) bool {
				return strings.HasPrefix(p.Message, "has no effect, because deploy_target is")
			}
			got := slices.DeleteFunc(schema.Vet(src), onlyVet)
			if diff := cmp.Diff(schema.Strict(problems), got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s:\n%s", file.path, diff)
			}
		}
	})

	t.Run("problems of a configuration in a manifest have lines of the manifest", func(t *testing.T) {
		count := 0
		for _, file := range corpus(t, 80, "testdata/bad/*.yaml", "../examples/reference.yaml",
			"../examples/pools.yaml") {
			if blockable(file.content) && len(file.content) <= 64<<10 {
				count++
				embeddedAlike(t, schema.FileName, file.content, count%7, 1+count%4, 1+count%8)
			}
		}
		if count < 80 {
			t.Errorf("got %d files, want at least 80", count)
		}
	})

	t.Run("problems of a template in a manifest have lines of the manifest", func(t *testing.T) {
		count := 0
		for _, file := range podCorpus(t) {
			if blockable(file.content) {
				count++
				embeddedAlike(t, "worker-pod.json", file.content, count%7, 1+count%4, 1+count%8)
			}
		}
		if count < 50 {
			t.Errorf("got %d templates, want at least 50", count)
		}
	})

	t.Run("problems of any text in a manifest have lines of the manifest", func(t *testing.T) {
		lines := rapid.SampledFrom([]string{
			"", "# é", "token: pul-x", "log_level: loud", "log_level: info", "docker:", "  network: 5",
			"  volumes: [a, b]", "  - x", "---", "...", "%YAML 1.1",
			"pools:", "- name: a", "  token: pul-a", "  polling_interval: 5", "polling_interval: 1",
			"ecs: {subnets: [a b, {x: y}]", "}", "\tx: y", "a: b: c",
			"  ", "é: ü", "token_file: |", "    text", "pod_template: {spec: {é: a, restartPolicy: Always}}",
			"x: &a [*a]", "<<: *b", "shutdown_timeout: 1s",
		})
		rapid.Check(t, func(t *rapid.T) {
			text := strings.Join(rapid.SliceOfN(lines, 1, 8).Draw(t, "lines"), "\n") + "\n"
			before, section := rapid.IntRange(0, 5).Draw(t, "before"), rapid.IntRange(1, 4).Draw(t, "section")
			embeddedAlike(t, schema.FileName, text, before, section, rapid.IntRange(1, 8).Draw(t, "inner"))
		})
	})

	t.Run("a manifest does not depend on this machine", func(t *testing.T) {
		manifest := "apiVersion: v1\nkind: ConfigMap\ndata:\n  pulumi-workflow-agent.yaml: |\n" +
			"    token_file: /nowhere/token\n    ca_file: /nowhere/ca\n    pod_template_file: /nowhere/pod\n" +
			"    deploy_target: kubernetes\n"
		read := 0
		problems := schema.Vet(schema.Source{
			Path: "configmap.yaml", Content: []byte(manifest),
			Environ:  map[string]string{"PULUMI_AGENT_LOG_LEVEL": "loud", "PULUMI_AGENT_TOKN": "x"},
			ReadFile: func(string) ([]byte, error) { read++; return nil, fs.ErrPermission },
		})
		if len(problems) > 0 || read > 0 {
			t.Errorf("%d files were read: %v", read, problems)
		}
	})

	t.Run("warns about a readable token in a manifest", func(t *testing.T) {
		manifest := "apiVersion: v1\nkind: %s\n%s:\n  pulumi-workflow-agent.yaml: |\n    token: " + canary + "\n"
		for _, c := range []struct {
			kind, section string
			mode          fs.FileMode
			warned        bool
		}{
			{"ConfigMap", "data", 0o600, true}, {"ConfigMap", "data", 0, true},
			{"Secret", "stringData", 0o600, false}, {"Secret", "stringData", 0o644, true},
			{"Secret", "stringData", 0, false},
		} {
			content := fmt.Appendf(nil, manifest, c.kind, c.section)
			problems := schema.Vet(schema.Source{Path: "m.yaml", Content: content, Mode: c.mode})
			warned := len(problems) == 1 && problems[0].Rule == position.RuleReadableToken && problems[0].Line == 5
			if warned != c.warned || len(problems) > 1 {
				t.Errorf("%+v: %v", c, problems)
			}
		}
	})

	t.Run("rejects hostile manifests in time", func(t *testing.T) {
		head := "apiVersion: v1\nkind: ConfigMap\n"
		list := "apiVersion: v1\nkind: List\n"
		bomb := list + "items: [&a0 {apiVersion: v1, kind: List, items: []}"
		for i := range 40 {
			bomb += fmt.Sprintf(", &a%d {apiVersion: v1, kind: List, items: [*a%d, *a%d, *a%d]}", i+1, i, i, i)
		}
		full := func(text string) string { return head + strings.Repeat(text, (position.MaxFile-len(head))/len(text)) }
		for name, content := range map[string]string{
			"documents":      full("---\n"),
			"manifests":      full("---\n" + head),
			"configurations": full("---\n" + head + "data:\n  pulumi-workflow-agent.yaml: |\n    log_level: x\n"),
			"below empty lines": strings.Repeat("\n", position.MaxFile-40_000) +
				strings.Repeat(head+"data: {pulumi-workflow-agent.yaml: '{'}\n---\n", 200),
			"broken documents": full("---\na: [\n"),
			"one long key": head + "data:\n  pulumi-workflow-agent.yaml: " +
				strings.Repeat("x", position.MaxFile-100),
			"long lines": head + "data:\n  pulumi-workflow-agent.yaml: |\n" +
				strings.Repeat("    a: "+strings.Repeat("b", 1000)+"\n", 900),
			"lines of spaces": head + "data:\n  pulumi-workflow-agent.yaml: >\n" +
				strings.Repeat(strings.Repeat(" ", 1000)+"\n", 900) + "    x",
			"lists":                              bomb + "]",
			"list whose items contain the items": list + "items: &a [{apiVersion: v1, kind: List, items: *a}]",
			"list that contains itself":          "&a {apiVersion: v1, kind: List, items: [*a]}",
			"data that contains itself":          head + "data: &a {pulumi-workflow-agent.yaml: *a}",
			"key of an alias": head + "metadata: {name: &pulumi-workflow-agent.yaml x}\n" +
				"data: {*pulumi-workflow-agent.yaml : y}",
			"carriage returns": strings.ReplaceAll(full("---\n"+head), "\n", "\r"),
			"NUL in quotes":    head + "data: {pulumi-workflow-agent.yaml: \"\\0\"}",
			"NUL in base64": head + "binaryData: {pulumi-workflow-agent.yaml: " +
				base64.StdEncoding.EncodeToString([]byte{0, 0xFF}) + "}",
			"numbers":   head + "data: 5\nmetadata: 7",
			"too large": full("#\n") + "##########################################################\n",
			"grace period": head + "data: {worker-pod.json: x}\n---\napiVersion: v1\nkind: Pod\n" +
				"spec: {terminationGracePeriodSeconds: 99999999999999999999}",
		} {
			t.Run(name, func(t *testing.T) {
				start := processorTime(t)
				problems := schema.Vet(schema.Source{Path: "file.yaml", Content: []byte(content), ReadFile: files(nil)})
				if took := processorTime(t) - start; took > 10*time.Second {
					t.Errorf("Vet took %v", took)
				}
				if len(problems.Errors()) == 0 || problems[0].Rule == position.RuleInternal {
					t.Errorf("got no error, or an internal error: %v", problems)
				}
				if len(problems) > 1500 {
					t.Errorf("got %d problems", len(problems))
				}
			})
		}
	})
}

// indented indents the lines of a text, except empty ones.
func indented(text string, indent int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(line)
	}
	return b.String()
}

// moved returns the problems of a text that is further down in a file and indented. Problems
// without a line are at the key of the text.
func moved(problems position.Problems, lines, indent int, keyColumn int) position.Problems {
	number := regexp.MustCompile(`on line ([0-9]+)`)
	var all position.Problems
	for _, p := range problems {
		if p.Rule == position.RuleMissingFile {
			continue
		}
		if p.Line == 0 {
			p.Line, p.Column = lines, keyColumn
		} else {
			p.Line += lines
			if p.Column > 0 {
				p.Column += indent
			}
		}
		p.Message = number.ReplaceAllStringFunc(p.Message, func(text string) string {
			n, _ := strconv.Atoi(strings.TrimPrefix(text, "on line "))
			return fmt.Sprintf("on line %d", n+lines)
		})
		all = append(all, p)
	}
	return all
}

// blockable reports whether a block scalar can contain the text unchanged.
func blockable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar || r == '\uFEFF'
	})
}

// embeddedAlike checks that a text in a manifest has the same problems as the text in its own
// file, at the positions of the manifest.
func embeddedAlike(t rapid.TB, key, text string, before, section, inner int) {
	manifest := strings.Repeat("# above\n", before) + "apiVersion: v1\nkind: Secret\nstringData:\n" +
		strings.Repeat(" ", section) + key + ": |" + strconv.Itoa(inner) + "+\n" + indented(text, section+inner)
	source := schema.Source{Path: "file.yaml", ReadFile: files(nil)}
	source.Content = []byte(text)
	var want position.Problems
	if key == schema.FileName {
		want = schema.Vet(source)
	} else {
		want = podtemplate.CheckFile(source.Path, source.Content)
	}
	want = moved(schema.Strict(want), before+4, section+inner, section+1)
	source.Content = []byte(manifest)
	sorted := cmpopts.SortSlices(func(a, b position.Problem) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
	if diff := cmp.Diff(want, schema.Vet(source), cmpopts.EquateEmpty(), sorted); diff != "" {
		t.Errorf("the problems alone (-) and in a manifest (+) differ:\n%s\nin:\n%s", diff, manifest)
	}
}

func TestVetWarnings(t *testing.T) {
	const top = "token: pul-0123456789abcdef\n"
	const added = "adds a container: the job runs in pulumi-workflow"
	for name, test := range map[string]struct{ file, want string }{
		"a service without TLS": {"service_url: http://pulumi.example.com", "2:14: service_url: " +
			"the token is sent without TLS: others in the network can read it"},
		"a service on this machine":  {"service_url: http://localhost:8585\ndeploy_target: process", ""},
		"an address of this machine": {"service_url: http://[::1]:8585\ndocker: {network: host}", ""},
		"scans of Pulumi Cloud": {"enabled_workflow_types: [insights_scan]",
			"2:25: enabled_workflow_types: the pool gets no jobs: from Pulumi Cloud, this agent gets only deployments"},
		"scans of another service": {
			"enabled_workflow_types: [insights_scan]\nservice_url: https://cloud.example.com", "",
		},
		"a private address of another machine": {"service_url: http://192.0.2.1:8585", "2:14: service_url: " +
			"the token is sent without TLS: others in the network can read it"},
		"a service that containers cannot reach": {"service_url: http://127.0.0.1:8585",
			"2:14: service_url: in the container of a job, this address is the container itself"},
		"a service that Pods cannot reach": {"service_url: https://localhost\ndeploy_target: kubernetes",
			"2:14: service_url: in the container of a job, this address is the container itself"},
		"a block for another target": {"kubernetes: {cpu: 1}",
			"2:1: kubernetes: has no effect, because deploy_target is docker"},
		"an empty block": {"kubernetes:", ""},
		"a template without a target": {"pod_template: {spec: {hostname: a}}",
			"2:1: pod_template: has no effect, because deploy_target is docker"},
		"a block of the target": {"deploy_target: kubernetes\nkubernetes: {cpu: 1}", ""},
		"a block that one pool uses": {"kubernetes: {cpu: 1}\npools:\n- {name: a, token: pul-0123456789abcdee}\n" +
			"- {name: b, deploy_target: kubernetes}", ""},
		"a block of a pool with another target": {
			"pools:\n- {name: a, docker: {memory: 1g}, deploy_target: kubernetes}",
			"3:13: pools.0.docker: has no effect, because deploy_target is kubernetes"},
		"a container of another name": {"deploy_target: kubernetes\n" +
			"pod_template: {spec: {containers: [{name: main, image: foo}]}}",
			"3:43: pod_template.spec.containers.0.name: " + added},
		"a container beside that of the job": {"deploy_target: kubernetes\n" +
			"pod_template: {spec: {containers: [{name: pulumi-workflow}, {name: main, image: foo}]}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			problems := schema.Vet(schema.Source{Path: "a", Content: []byte(top + test.file + "\n")})
			for i := range problems {
				if problems[i].Severity != position.Warning {
					t.Errorf("the severity is %v", problems[i].Severity)
				}
				problems[i].Hint = ""
			}
			want := test.want
			if want != "" {
				want = "a:" + want
			}
			if got := problems.Error(); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestExcerpts(t *testing.T) {
	t.Run("show no secret", func(t *testing.T) {
		const caret = "^"
		for _, c := range []struct{ content, want string }{
			// choices of the schema, numbers and durations, and misspelt ones
			{"log_level: inof", "log_level: inof\n           ^"},
			{"  log_level:   'DEBGU' # loud", "  log_level:   'DEBGU'\n               ^"},
			{"log_level: Yes", "log_level: Yes\n           ^"},
			{"log_level: 1.5", "log_level: 1.5\n           ^"},
			{"polling_interval: 5 minutes\n", "polling_interval: 5 minutes\n                  ^"},
			{"polling_interval: \"-30s\"\n", "polling_interval: \"-30s\"\n                  ^"},
			{"polling_interval: true\n", "polling_interval: true\n                  ^"},
			{"http_server_port: 808080\r\n", "http_server_port: 808080\n                  ^"},
			{"kubernetes:\n  cpu: off", "  cpu: off\n       ^"},
			{"pools:\n- name: a\n  token: x\n- token: y\n  name: b\n  single_run: 7",
				"  single_run: 7\n              ^"},
			// a secret in place of a choice
			{"log_level: s3cr3tpw", "log_level: …\n           ^"},
			{"log_format: correct horse battery", "log_format: …\n            ^"},
			{"log_format: text horse", "log_format: …\n            ^"},
			{"single_run: \"pass:text\"", "single_run: …\n            ^"},
			{"single_run: maybe", "single_run: …\n            ^"},
			{"shutdown_timeout: Passw0rd", "shutdown_timeout: …\n                  ^"},
			{"shutdown_timeout: 12 horse", "shutdown_timeout: …\n                  ^"},
			{"shutdown_timeout: 1234abc", "shutdown_timeout: …\n                  ^"},
			{"polling_interval: 5 'minutes'", "polling_interval: …\n                  ^"},
			{"http_server_port: 4111111111111111", "http_server_port: …\n                  ^"},
			{"http_server_port: infodebug", "http_server_port: …\n                  ^"},
			{"log_level: infohunter2", "log_level: …\n           ^"},
			{"log_level: Tr0ub4dor3", "log_level: …\n           ^"},
			{"log_level: correcthorsebatterystaple", "log_level: …\n           ^"},
			{"log_level: pul-abc", ""},
			{"log_level: \"a\\\"b\"", "log_level: …\n           ^"},
			{"log_level: inof # the token is abc", "log_level: inof\n           ^"},
			// values that may be anything
			{"token: two parts", "token: …\n       ^"},
			{"tokn: hunter2", "tokn: …\n^"},
			{"service_url: ftp://user:secret@host", "service_url: …\n             ^"},
			{"docker:\n  network: [secret]", "  network: …\n           ^"},
			{"docker:\n  labels:\n  - secret", ""},
			{"docker: {network: [secret]}", ""},
			{"pod_template: {spec: {hostname: 5}}", ""},
			{"spec:\n  containers:\n  - name: a\n    image: b\n    env:\n    - name: A\n      valu: secret",
				"      valu: …\n      ^"},
			// lines without a key, or with a key that the problem does not name
			{"secret text", ""},
			{"a b c: 5", ""},
			{"token: x\ndocker: >\n  secret: secret\n", "docker: …\n        ^"},
			{"hunter2hunter2hunter2hunter2hunter2hunter2: x", ""},
		} {
			content := []byte(c.content)
			problems := schema.Vet(schema.Source{Path: "agent.yaml", Content: content, ReadFile: files(nil)}).Errors()
			if len(problems) == 0 {
				t.Errorf("%q: no error", c.content)
				continue
			}
			got := ""
			if e := schema.Excerpts(content, problems[:1])[0]; e.Text != "" {
				got = e.Text + "\n" + e.Caret + caret
			}
			if got != c.want {
				t.Errorf("%q at %v: got\n%s\nwant\n%s", c.content, problems[0], got, c.want)
			}
		}
	})

	t.Run("of any position are within the file", func(t *testing.T) {
		content := []byte("log_level: loud\n\ttoken: x\n")
		for _, p := range []position.Problem{
			{Line: 1, Column: 99, Path: "log_level"}, {Line: 99, Column: 1}, {Line: -1, Column: -1}, {},
			{Line: 1, Column: 0, Path: "log_level"},
			{Line: 2, Column: 1, Path: "token"}, {Line: 2, Column: 99, Path: "token"}, {Line: 3, Column: 1},
		} {
			for _, e := range schema.Excerpts(content, position.Problems{p}) {
				if len(e.Caret) > len(e.Text) || strings.Contains(e.Text, "x") {
					t.Errorf("%+v: %+v", p, e)
				}
			}
		}
		got := schema.Excerpts(nil, position.Problems{{Line: 1, Column: 1}})
		if !slices.Equal(got, make([]position.Excerpt, 1)) {
			t.Errorf("got %v for an empty file, want an empty excerpt", got)
		}
	})
}

// generated matches the directories with sources from which kubectl and helm generate manifests.
// The tests of cmd/cmwa vet the generated manifests.
var generated = regexp.MustCompile(`^\.\./examples/(kubernetes|chart)/`)

func TestVetExamples(t *testing.T) {
	vetted := 0
	err := filepath.WalkDir("../examples", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" { // files of other programs end in .yml
			return err
		}
		if strings.HasPrefix(entry.Name(), "Pulumi.") {
			return nil // a Pulumi program, or its settings
		}
		if generated.MatchString(filepath.ToSlash(path)) && entry.Name() != schema.FileName {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		vetted++
		if problems := schema.Vet(schema.Source{Path: path, Content: content, Mode: 0o644}); len(problems) > 0 {
			t.Errorf("%s has problems:\n%v", path, problems)
		}
		return nil
	})
	if err != nil || vetted < 8 {
		t.Errorf("%d examples were vetted (%v), want 8 or more", vetted, err)
	}
}

func FuzzVet(f *testing.F) {
	f.Add("token: ", "")
	f.Add("token: [", "]")
	f.Add("a: &", " b")
	f.Add("apiVersion: v1\nkind: ConfigMap\ndata:\n  pulumi-workflow-agent.yaml: |\n    token: ",
		"\n    log_level: loud")
	f.Add("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, env: [{name: A, value: ", "}]}]}")
	for _, file := range vetCorpus(f) {
		half := len(file.content) / 2
		f.Add(file.content, "")
		f.Add(file.content[:half], file.content[half:])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		src := schema.Source{Path: "file.yaml", Content: []byte(before + canary + after), ReadFile: files(nil)}
		start := processorTime(t)
		problems := schema.Vet(src)
		if took := processorTime(t) - start; took > 10*time.Second {
			t.Errorf("Vet took %v", took)
		}
		hidesToken(t, "Vet", fmt.Sprintf("%v %#v %v", problems, problems, schema.Excerpts(src.Content, problems)))
		checkProblems(t, src, problems)
		for _, p := range problems {
			if p.File != src.Path {
				t.Errorf("%#v is not in the file", p)
			}
		}
		_, problems = schema.Load(src)
		hidesToken(t, "Load", fmt.Sprintf("%v %#v", problems, problems))
	})
}
