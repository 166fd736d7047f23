package schema_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestEdit(t *testing.T) {
	t.Run("changes only the value", func(t *testing.T) {
		for _, c := range []struct{ name, before, after string }{
			{"a plain text", "# head\nlog_level: info # why\n\nsyslog: true\n",
				"# head\nlog_level: debug # why\n\nsyslog: true\n"},
			{"the same text", "log_level:   'debug'   # why", "log_level:   'debug'   # why"},
			{"single quotes", "log_level: 'it''s' # 'why'\n", "log_level: debug # 'why'\n"},
			{"double quotes", "log_level: \"a\\\"b # no\" # why\n", "log_level: debug # why\n"},
			{"no value", "log_level:\nsyslog: true\n", "log_level: debug\nsyslog: true\n"},
			{"no value, and a comment", "log_level:   # why\nsyslog: true\n", "log_level: debug # why\nsyslog: true\n"},
			{"no value at the end", "log_level:", "log_level: debug"},
			{"null", "log_level: ~ # why\n", "log_level: debug # why\n"},
			{"a number", "log_level: 7\n", "log_level: debug\n"},
			{"a quoted key", "\"log_level\": info\n", "\"log_level\": debug\n"},
			{"an indented mapping", "  syslog: true\n  log_level: info\n", "  syslog: true\n  log_level: debug\n"},
			{"the other lines are in another style",
				"docker:\n    network:   b   # c\n\n\n    volumes:\n    - \"a:b\"\nlog_level: info\n",
				"docker:\n    network:   b   # c\n\n\n    volumes:\n    - \"a:b\"\nlog_level: debug\n"},
			{"CRLF", "log_level: info\r\nsyslog: true\r\n", "log_level: debug\r\nsyslog: true\r\n"},
			{"a byte order mark and letters of two bytes", "\uFEFFlog_format: 'é' # é\nlog_level: 'é' # é\n",
				"\uFEFFlog_format: 'é' # é\nlog_level: debug # é\n"},
			{"a byte order mark before the key", "\uFEFFlog_level: info\n", "\uFEFFlog_level: debug\n"},

			{"nothing", "", "log_level: debug\n"},
			{"only comments", "# a\n# b", "# a\n# b\nlog_level: debug\n"},
			{"an empty document", "---\n# end\n", "---\n# end\nlog_level: debug\n"},
			{"a new key", "syslog: true\n# end\n", "syslog: true\n# end\nlog_level: debug\n"},
			{"a new key with CRLF", "syslog: true\r\n# end", "syslog: true\r\n# end\r\nlog_level: debug\r\n"},
			{"a new key in an indented mapping", "# a\n  syslog: true\n", "# a\n  syslog: true\n  log_level: debug\n"},
			{"a new key after a block", "log_format: |+\n  text\n\n", "log_format: |+\n  text\n\nlog_level: debug\n"},
			{"a key of a mapping has the same name", "docker:\n  log_level: info\n",
				"docker:\n  log_level: info\nlog_level: debug\n"},
			{"a merged key", "x: &x {log_level: info}\n<<: *x\n",
				"x: &x {log_level: info}\n<<: *x\nlog_level: debug\n"},
		} {
			got, err := schema.Edit([]byte(c.before), []schema.Change{{Key: "log_level", Value: "debug"}})
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if diff := cmp.Diff(c.after, string(got)); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
		}
	})

	t.Run("quotes a text that YAML reads as another type", func(t *testing.T) {
		for value, want := range map[string]string{
			"pul-0123abc": "pul-0123abc", "https://api.pulumi.com": "https://api.pulumi.com",
			"/etc/cmwa/token": "/etc/cmwa/token", "": `""`, "true": `"true"`, "No": `"No"`, "12": `"12"`,
			"0x1f": `"0x1f"`, "1:30": `"1:30"`, "null": `"null"`, "~": `"~"`, "a: b": `'a: b'`,
			"a #b": `'a #b'`, "*a": `'*a'`, "a:": `'a:'`, "a\"b\\": `a"b\`, "é": "é", "- a": `'- a'`,
			"\u0085\u2028\uFEFF\x00": `"\N\L\uFEFF\0"`, "<&>": "<&>", "2024-01-01": `"2024-01-01"`,
		} {
			for _, before := range []string{"", "version: x\n", "version: [a]\nlog_level: info\n"} {
				got, err := schema.Edit([]byte(before), []schema.Change{{Key: "x", Value: value}})
				if err != nil || string(got) != before+"x: "+want+"\n" {
					t.Errorf("%q into %q: got %q, %v", value, before, got, err)
				}
			}
		}
	})

	t.Run("adds a comment above a new key only", func(t *testing.T) {
		long := strings.Repeat("Text about the use of this key. ", 8)
		changes := []schema.Change{
			{Key: "log_level", Value: "debug", Comment: long},
			{Key: "syslog", Value: "off", Comment: "Short."},
		}
		got, err := schema.Edit([]byte("log_level: info\n"), changes)
		if err != nil || string(got) != "log_level: debug\n\n# Short.\nsyslog: \"off\"\n" {
			t.Errorf("got %q, %v", got, err)
		}
		got, err = schema.Edit([]byte("  a: b"), changes)
		if err != nil || strings.Count(string(got), "\n\n  # ") != 2 {
			t.Errorf("got %q, %v", got, err)
		}
		for line := range strings.Lines(string(got)) {
			if len(line) > 101 || strings.HasPrefix(line, "Text about") {
				t.Errorf("%d bytes: %q", len(line), line)
			}
		}
	})

	t.Run("rejects an edit that would change more", func(t *testing.T) {
		for content, want := range map[string]string{
			"a: [":               "not YAML",
			"\xff":               "UTF-8",
			"a: b\n---\nc: d":    "one document",
			"- a":                "mapping",
			"~":                  "mapping",
			canary:               "mapping",
			"a: b\nx: [1, 2]":    "2:4: x: is a list or a mapping",
			"x:\n  a: b":         "2:3: x: is a list or a mapping",
			"x: &a b\ny: *a":     "1:4: x: cannot be set",
			"y: &a b\nx: *a":     "2:4: x: cannot be set",
			"x: |\n  b\n":        "1:4: x: cannot be set",
			"x: 'a\n  b'\n":      "1:4: x: cannot be set",
			"? x\n: b":           "x: cannot be set",
			"y: b\n...\n":        "x: cannot be set",
			"y: |\n  b":          "x: cannot be set",
			"{x: b}":             "1:1: a file in brackets, such as JSON, cannot be edited",
			"{\n\"y\": \"b\"\n}": "1:1: a file in brackets, such as JSON, cannot be edited",
			"y: a\rx: b":         "x: cannot be set",
			"y: a\u2028x: b":     "",
			"x: a\nx: b":         "2:1: x: duplicate key",
			"x: *" + canary:      "alias",
			"x: [" + canary:      "close the bracket",
			canary + ": x\nx:[":  "",
		} {
			got, err := schema.Edit([]byte(content), []schema.Change{{Key: "x", Value: "y"}})
			var problems position.Problems
			if got != nil || !errors.As(err, &problems) || len(problems) != 1 {
				t.Errorf("%q: %q, %v", content, got, err)
				continue
			}
			p := problems[0]
			if text := fmt.Sprintf("%d:%d: %v", p.Line, p.Column, p); !strings.Contains(text, want) ||
				strings.Contains(text, canary[4:]) {
				t.Errorf("%q: %s", content, text)
			}
		}
		if _, err := schema.Edit(nil, []schema.Change{{Key: "x", Value: "\xff"}}); err == nil {
			t.Error("a value that is not UTF-8 is written")
		}
	})

	t.Run("keeps the other parts of any file", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			all := blocks(t)
			newline := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "newline")
			var lines []string
			for _, b := range all {
				lines = append(lines, b.lines...)
			}
			frame := rapid.SampledFrom([][2]string{
				{"", ""}, {"", newline}, {"\uFEFF", ""}, {"---" + newline, newline + newline},
			}).Draw(t, "frame")
			before := frame[0] + strings.Join(lines, newline) + frame[1]

			set := map[string]string{
				"log_level":     rapid.SampledFrom([]string{"debug", "warn", "error"}).Draw(t, "level"),
				"log_format":    rapid.SampledFrom([]string{"text", "json"}).Draw(t, "format"),
				"deploy_target": rapid.SampledFrom([]string{"docker", "process"}).Draw(t, "target"),
				"ca_file":       rapid.StringMatching("[ -~é]+").Draw(t, "file"),
			}
			var changes []schema.Change
			for _, key := range rapid.Permutation(slices.Sorted(maps.Keys(set))).Draw(t, "keys") {
				comment := rapid.SampledFrom([]string{"", "What it is for."}).Draw(t, "comment")
				changes = append(changes, schema.Change{Key: key, Value: set[key], Comment: comment})
			}
			after, err := schema.Edit([]byte(before), changes)
			if err != nil {
				t.Fatalf("%v of\n%s", err, before)
			}

			got, err := schema.Texts(after)
			maps.DeleteFunc(got, func(key, _ string) bool { return set[key] == "" })
			if diff := cmp.Diff(set, got); diff != "" || err != nil {
				t.Fatalf("%v %s in\n%s", err, diff, after)
			}
			others := strings.Split(strings.NewReplacer("\uFEFF", "", "\r\n", "\n").Replace(string(after)), "\n")
			for _, b := range all {
				for _, line := range b.lines {
					_, note, ok := strings.Cut(line, "# note")
					if ok && !strings.Contains(string(after), "# note"+note) {
						t.Fatalf("the comment %q is missing in\n%s", note, after)
					}
					if b.key != "" {
						continue
					}
					at := slices.Index(others, line)
					if at < 0 {
						t.Fatalf("the line %q is missing, or has moved, in\n%s", line, after)
					}
					others = others[at+1:]
				}
			}
			if strings.HasPrefix(before, "\uFEFF") != strings.HasPrefix(string(after), "\uFEFF") {
				t.Fatal("the byte order mark was removed or added")
			}
			if strings.Contains(before, "\r\n") &&
				strings.Count(string(after), "\r\n") != strings.Count(string(after), "\n") {
				t.Fatalf("line ends are mixed in %q", after)
			}
			again, err := schema.Edit(after, changes)
			if err != nil || !bytes.Equal(again, after) {
				t.Fatalf("a second edit gives %v\n%s", err, again)
			}
		})
	})
}

func TestTexts(t *testing.T) {
	got, err := schema.Texts([]byte("a: &a b # c\nd: *a\ne: [f]\ng:\nh: {i: j}\n\"k\": 5\n"))
	if diff := cmp.Diff(map[string]string{"a": "b", "d": "b", "g": "", "k": "5"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := schema.Texts([]byte("a: [")); err == nil {
		t.Error("Texts accepts content that is not YAML")
	}
}

// block is a group of lines of a file.
type block struct {
	lines []string
	key   string // key that the lines set and an edit may change; may be empty
}

// blocks draws the blocks of a file: comments, keys that an edit may change, in many
// notations, and keys that an edit must not change.
func blocks(t *rapid.T) []block {
	comments := 0
	comment := func() string {
		comments++
		return fmt.Sprintf("# note %d: é", comments)
	}
	shapes := map[string][][]string{
		"log_level":     {{"log_level: info"}, {"log_level: 'info' %"}, {`"log_level": "\x69nfo"  %`}},
		"log_format":    {{"log_format:     json %"}, {"log_format: ~ %"}},
		"deploy_target": {{"deploy_target: %"}, {"deploy_target:"}, {"'deploy_target' : docker %"}},
		"ca_file":       {{"ca_file: /é %"}, {"ca_file: 0x1F90"}},
	}
	others := [][]string{
		{"%"}, {""}, {"", "%", ""}, {" %"},
		{"docker:", "  %", "  network: builds", "  volumes: %", "    - cache:/cache %"},
		{"env_forward_allowlist:", "- A %", "%", "- B"},
		{"x4: |", "  acme", "  # no comment", ""},
		{"x1: &x1 {log_level: warn, syslog: [%", "  a, b]}"},
		{"x2: 'log_level: warn", "", "  # no comment' %"},
		{"x3: >", "  log_level: warn", "%"},
		{"ecs: {cluster: é, subnets: [a, \"}\"]} %"},
	}
	var all []block
	for _, lines := range rapid.Permutation(others).Draw(t, "order")[:rapid.IntRange(0, len(others)).Draw(t, "n")] {
		all = append(all, block{lines: lines})
	}
	for _, key := range slices.Sorted(maps.Keys(shapes)) {
		if rapid.Bool().Draw(t, "with "+key) {
			at := rapid.IntRange(0, len(all)).Draw(t, "place of "+key)
			all = slices.Insert(all, at, block{rapid.SampledFrom(shapes[key]).Draw(t, "shape of "+key), key})
		}
	}
	for i, b := range all {
		all[i].lines = slices.Clone(b.lines)
		for j, line := range b.lines {
			if strings.Contains(line, "%") {
				all[i].lines[j] = strings.ReplaceAll(line, "%", comment())
			}
		}
	}
	return all
}

// FuzzEdit checks that Edit rejects a content, or sets the key and keeps the other keys.
func FuzzEdit(f *testing.F) {
	for _, content := range []string{
		"", "log_level: info # a\n", "{log_level: info}", "log_level: |+2\n   a\n\nb: c",
		"a: &a 'b\n  c'\nlog_level: *a\r\n...", "? log_level\n: >\n a", "\uFEFF---\nlog_level:",
	} {
		f.Add([]byte(content), "debug")
	}
	f.Fuzz(func(t *testing.T, content []byte, value string) {
		changes := []schema.Change{{Key: "log_level", Value: value, Comment: "Text."}}
		before := bytes.Clone(content)
		after, err := schema.Edit(content, changes)
		if !bytes.Equal(before, content) {
			t.Fatal("the content was changed in place")
		}
		if err != nil {
			return
		}
		texts, err := schema.Texts(after)
		if err != nil || texts["log_level"] != value {
			t.Fatalf("%q became %q: %v", content, after, err)
		}
		had, err := schema.Texts(content)
		delete(had, "log_level")
		delete(texts, "log_level")
		if diff := cmp.Diff(had, texts); diff != "" || err != nil {
			t.Fatalf("%q became %q: %v %s", content, after, err, diff)
		}
		again, err := schema.Edit(after, changes)
		if err != nil || !bytes.Equal(after, again) {
			t.Fatalf("a second edit of %q gives %q: %v", after, again, err)
		}
	})
}

func TestTopLevelScalar(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"a number":                              {"token: pul-a\nport: 7001\n", "7001"},
		"a text in quotes":                      {`"port": '7001' # ours`, "7001"},
		"JSON":                                  {`{"token": "a\/b", "port": 7001}`, "7001"},
		"an alias":                              {"address: &a 10.0.0.5\nport: *a\n", "10.0.0.5"},
		"CRLF line endings":                     {"token: [\r\nport: 7001\r\n", "7001"},
		"the first of two":                      {"port: 7001\nport: 7002\n", "7001"},
		"next to an invalid value":              {"log_level: loud\nport: 7001\n", "7001"},
		"after a syntax error":                  {"token: [\n\"port\": \"7001\" # ours\n", "7001"},
		"before a syntax error":                 {"port: 7001\ntoken: [\n", "7001"},
		"the first of two, with a syntax error": {"port:\nport: 7001\nport: 7002\ntoken: [\n", "7001"},
		"the second of two documents":           {"a: b\n---\nport: 7001\n", "7001"},
		"a file that is too large":              {"port: 7001\n" + strings.Repeat("# a comment\n", 1<<17), "7001"},
		"an inner key":                          {"pools:\n- name: a\n  port: 7001\n", ""},
		"an inner key, with a syntax error":     {"pools: [\n  port: 7001\n", ""},
		"a key in a text":                       {"port_note: |\n  port: 7001\n", ""},
		"a list":                                {"port: [7001]\n", ""},
		"a mapping":                             {"port: {a: 7001}\n", ""},
		"null":                                  {"port: null\n", ""},
		"nothing":                               {"", ""},
		"no mapping":                            {"port\n", ""},
		"no text":                               {"\x00\x01", ""},
		"another key":                           {"port_of_mine: 7001\ntoken: [\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schema.TopLevelScalar([]byte(test.content), "port"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
