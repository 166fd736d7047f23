package schema_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// canary is a token that no output may show, whole or in part.
const canary = "pul-c4n4ryc4n4ryc4n4ryc4n4ry"

// output returns all texts that the result of a load can show.
func output(config *schema.Config, problems position.Problems) string {
	text, err := json.Marshal(config)
	return fmt.Sprintf("%v %+v %#v %+v %#v %s %v", problems, problems, problems, config, config, text, err)
}

// hidesToken fails the test if a text shows the canary or a part of it.
func hidesToken(t rapid.TB, name, text string) {
	t.Helper()
	if strings.Contains(text, canary[4:12]) {
		t.Errorf("%s shows the token:\n%s", name, text)
	}
}

func TestLoadHostile(t *testing.T) {
	t.Run("no output shows a token", func(t *testing.T) {
		for _, file := range []string{
			"token: %s", "token: %s\ntoken: %s", "token: [%s, %s]", "token: {a: %s}", "token: '%s '", "token: %s %s",
			"token: \"%s", "token: *%s", "token: &%s", "token: &%s [*%s]", "token: !%s", "token: !!int %s",
			"token %s", "token:%s\nlog_level: info", "- token: %s", "%s", "--- %s", "token: a\n---\ntoken: %s",
			"%s: token", "? [%s]\n: a", "<<: %s", "tokn: %s",
			"token: x\nlog_level: %s", "token: x\nhttp_server_port: %s", "token: x\npolling_interval: %s",
			"token: x\nenabled_workflow_types: [%s]", "token: x\nenv_forward_allowlist: ['%s=']",
			"token: x\ndocker: %s", "token: x\ndocker: {%s: %s}", "token: x\ndocker: {volumes: [%s]}",
			"token: x\nservice_url: https://u:%s@api.pulumi.com",
			"token: x\nservice_url: https://api.pulumi.com:%s",
			"token_file: %s", "token_file: x\ntoken: %s", "token: %s\norganization_name: {a: [b, c",
			"token: x\nversion: %s", "token: x\nworkflow_runners_embeddable: %s",
			"token: %s\npools:\n- {name: a, token: pul-a}\n- {name: b}", "token: %s\npools:\n  0: {1: 2}",
			"token: %s\npools:\n- name: a\n  pools: [{name: x}]\n  docker: [1]",
		} {
			hidesToken(t, file, output(schema.Load(source(strings.ReplaceAll(file, "%s", canary)))))
		}
		for _, f := range schema.Fields() {
			// The printed form of a configuration contains texts such as names and paths. For a
			// variable with such a text, the test therefore checks only the problems.
			config, problems := schema.Load(schema.Source{Environ: map[string]string{f.Variable: canary + " \x00"}})
			if f.Kind == schema.KindText && !f.Secret {
				config = nil
			}
			hidesToken(t, f.Variable, output(config, problems))
		}
		config, problems := schema.Load(
			schema.Source{Environ: map[string]string{"PULUMI_AGENT_" + canary: "x", "PULUMI_AGENT_TOKEN": canary}},
		)
		if config == nil {
			t.Errorf("a variable with a token as its name is refused: %v", problems)
		}
		hidesToken(t, "the name of a variable", output(config, problems))
	})

	t.Run("reports the first thousand of many problems", func(t *testing.T) {
		config, problems := schema.Load(source("token: pul-a\n" + strings.Repeat("syslog: x\n", 2000)))
		last := problems[len(problems)-1]
		if config != nil || len(problems) != 1001 || last.Severity != position.Error ||
			!strings.Contains(last.Message, "there are ") {
			t.Errorf("got %d problems, want 1001; the last is %v, want the number of problems", len(problems), last)
		}
		var unknown strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&unknown, "key%d: 1\n", i)
		}
		config, problems = schema.Load(source("token: pul-a\n" + unknown.String()))
		if config == nil || len(problems) != 1001 || len(problems.Errors()) != 0 {
			t.Errorf("got %d problems, %d of them errors, want only warnings", len(problems), len(problems.Errors()))
		}
	})

	t.Run("rejects hostile files in time", func(t *testing.T) {
		repeat := func(text string) string { return strings.Repeat(text, position.MaxFile/len(text)) }
		bomb := "a0: &a0 [x]\n"
		for i := range 40 {
			bomb += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
		}
		merges := "m0: &m0 {k: v}\n"
		for i := range 40 {
			merges += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d]}\n", i+1, i+1, i, i)
		}
		for name, file := range map[string]string{
			"brackets": repeat("["), "braces": repeat("{"), "pairs": repeat("[]"), "dashes": repeat("- "),
			"question marks": repeat("? "), "colons": repeat(": "), "nested keys": repeat("a: {"),
			"lines": repeat("a\n"), "keys": repeat("a: b\n"), "spaces": repeat(" "), "comments": repeat("#\n"),
			"quotes": repeat("\""), "anchors": repeat("&a "), "stars": repeat("*a "), "documents": repeat("---\n"),
			"one text": repeat("x"), "tags": repeat("! "), "pipes": repeat("|\n"), "percents": repeat("%a\n"),
			"list":       "env_forward_allowlist: [" + repeat("a,") + "]",
			"short list": "env_forward_allowlist: [" + strings.Repeat("\" \",", 4_900) + "]", "aliases": bomb,
			"merges": merges, "NUL": repeat("\x00"),
			"deep indents": func() string {
				var b strings.Builder
				for i := 0; b.Len()+i < position.MaxFile; i++ {
					b.WriteString(strings.Repeat(" ", i) + "a:\n")
				}
				return b.String()
			}(),
		} {
			t.Run(name, func(t *testing.T) {
				start := processorTime(t)
				config, problems := schema.Load(source(file))
				if took := processorTime(t) - start; took > 10*time.Second {
					t.Errorf("the load took %v", took)
				}
				if len(problems) > 1001 {
					t.Errorf("got %d problems", len(problems))
				}
				if config != nil || len(problems.Errors()) == 0 {
					t.Errorf("the file is accepted: %v", problems)
				}
				if len(problems) > 0 && problems[0].Rule == position.RuleInternal {
					t.Errorf("got an internal error: %v", problems)
				}
			})
		}
	})

	t.Run("many loads leak nothing", func(t *testing.T) {
		src := source(everyKey)
		heap := func() int64 {
			var stats runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&stats)
			return int64(stats.HeapAlloc)
		}
		load := func(times int) int64 {
			for range times {
				must(t, src)
			}
			return heap()
		}
		before := load(20)
		if grown := load(200) - before; grown > 512<<10 {
			t.Errorf("the heap has grown by %d KiB in 200 loads", grown>>10)
		}
	})

	t.Run("no tree of values shows a token", func(t *testing.T) {
		all := schema.Fields()
		rapid.Check(t, func(r *rapid.T) {
			root := map[string]any{}
			for range rapid.IntRange(0, 8).Draw(r, "keys") {
				f := rapid.SampledFrom(all).Draw(r, "key")
				top, _, _ := strings.Cut(f.Key, ".")
				root[top] = tree(all, 4).Draw(r, top)
			}
			content, err := json.Marshal(root)
			if err != nil {
				r.Fatal(err)
			}
			src := source(string(content))
			src.ReadFile = files(nil)
			problems := check(r, src)
			hidesToken(r, string(content), fmt.Sprintf("%v %#v", problems, problems))
		})
	})
}

// processorTime returns the CPU time of this process, which does not depend on the load of
// the machine.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// check loads a source and checks the properties that the result of every load must have. It
// returns the problems.
func check(t rapid.TB, src schema.Source) position.Problems {
	t.Helper()
	config, problems := schema.Load(src)
	if (config == nil) != (len(problems.Errors()) > 0) {
		t.Errorf("Load returns a configuration: %t, and the problems %v; want either a configuration or errors",
			config != nil, problems)
	}
	checkProblems(t, src, problems)
	return problems
}

// checkProblems checks that problems have a message, are not internal, and are in the file.
func checkProblems(t rapid.TB, src schema.Source, problems position.Problems) {
	t.Helper()
	lines := 1
	for _, r := range string(src.Content) {
		if strings.ContainsRune("\n\r\u0085\u2028\u2029", r) { // each ends a line of YAML
			lines++
		}
	}
	for _, p := range problems {
		if p.Rule == position.RuleInternal || p.Message == "" || p.Rule == "" {
			t.Errorf("got an internal error, or a problem without a message: %#v", p)
		}
		if p.Line > lines || p.Line < 0 || p.Column < 0 {
			t.Errorf("%v is not in the file, which has %d lines", p, lines)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, file := range []string{
		everyKey, "token: " + canary, "- a", "a: &a [*a]", "? [a]\n: b", "<<: {a: b}", "---\n---\n", "\r-\n---",
		"token: !!binary aaaa", "docker:\n\tx", "\ufeffa", "polling_interval: 1e3", "http_server_port: 0x1F",
		"token: |\n  x\n", "ecs: {subnets: [~]}", "token: a\npools:\n- {name: a, token: pul-a}\n- {name: b}",
		"token: a\npools:\n- name: a\n  pools: [{name: x}]\n  docker: [1]", "token: a\npools:\n  0: {1: 2}",
	} {
		f.Add([]byte(file))
	}
	for _, file := range corpus(f, 120, "testdata/bad/*.yaml") {
		f.Add([]byte(file.content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		src := source(string(content))
		src.ReadFile = files(nil)
		check(t, src)
	})
}

func FuzzPools(f *testing.F) {
	f.Add("- {name: a, token: pul-a}\n- {name: b}")
	f.Fuzz(func(t *testing.T, content string) {
		src := source("token: " + canary + "\npools:\n  " + strings.ReplaceAll(content, "\n", "\n  "))
		src.ReadFile = files(nil)
		check(t, src)
		hidesToken(t, content, output(schema.Load(src)))
	})
}

func FuzzLoadEnvironment(f *testing.F) {
	all := schema.Fields()
	for i := range all {
		f.Add(uint8(i), "x", uint8(i+1), "1")
	}
	f.Fuzz(func(t *testing.T, first uint8, one string, second uint8, two string) {
		environ := map[string]string{all[int(first)%len(all)].Variable: one, all[int(second)%len(all)].Variable: two}
		check(t, schema.Source{Environ: environ, ReadFile: files(nil)})
	})
}

// tree draws any value that YAML can contain. Its keys are often keys of the schema, and its
// texts often contain a token.
func tree(all []schema.Field, depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		if depth == 0 {
			kind %= 6
		}
		switch kind {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return rapid.SampledFrom([]any{0, -1, 1, 17, 8080, 1 << 40, 0.5, -1e300}).Draw(t, "number")
		case 3:
			texts := []any{"", "x", "1m", "docker", "a:/b", "a=b", "500m", "2Gi", "pulumi-workflow", "\x00"}
			return rapid.SampledFrom(texts).Draw(t, "text")
		case 4:
			return canary
		case 5:
			return rapid.String().Draw(t, "text") + canary
		case 6:
			return rapid.SliceOfN(tree(all, depth-1), 0, 4).Draw(t, "list")
		default:
			mapping := map[string]any{}
			names := []string{"name", "spec", "metadata", "containers", "env", "value", "volumes", "$patch", "x",
				canary}
			for range rapid.IntRange(0, 5).Draw(t, "size") {
				key := rapid.SampledFrom(names).Draw(t, "text")
				if rapid.Bool().Draw(t, "known") {
					key = rapid.SampledFrom(all).Draw(t, "key").Key
					key = key[strings.LastIndexByte(key, '.')+1:]
				}
				mapping[key] = tree(all, depth-1).Draw(t, key)
			}
			return mapping
		}
	})
}
