package position_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema/position"
)

func TestParse(t *testing.T) {
	t.Run("values keep their positions through aliases", func(t *testing.T) {
		m, problems, ok := position.Parse("a.yaml", []byte("a: &x {b: 1}\nc: *x\n"), "")
		if !ok || len(problems) > 0 {
			t.Fatalf("%v, %v", ok, problems)
		}
		v, _ := m.Get("c")
		if diff := cmp.Diff(position.Origin{File: "a.yaml", Line: 2, Column: 4}, v.At); diff != "" {
			t.Error(diff)
		}
		inner, _ := m.Get("c", "b")
		if inner.Data != 1 || inner.At.Line != 1 || inner.Key.Column != 8 {
			t.Errorf("%+v", inner)
		}
	})
	t.Run("an empty file is an empty mapping", func(t *testing.T) {
		for _, content := range []string{"", "# a\n", "---\n", "\uFEFF"} {
			m, problems, ok := position.Parse("", []byte(content), "")
			if m == nil || len(m) > 0 || len(problems) > 0 || !ok {
				t.Errorf("%q: %v, %v, %v", content, m, problems, ok)
			}
		}
	})
	t.Run("a duplicate key leaves a mapping that can be used", func(t *testing.T) {
		m, problems, ok := position.Parse("", []byte("a: 1\na: 2\n"), "")
		if !ok || m["a"].Data != 1 || len(problems) != 1 ||
			problems[0].Rule != position.RuleDuplicateKey || problems[0].Line != 2 {
			t.Errorf("%v, %v, %v", m, problems, ok)
		}
	})
	for content, want := range map[string]string{
		"- a\n":               "f:1:1: the file must be a mapping of keys to values\n  hint: write a mapping",
		"a: 1\n---\nb: 2\n":   "f:2:1: the file must be one document",
		"a: 1\n---\n---\nb\n": "f:3:1: the file must be one document",
		"a: 1\n---\n---\n[\n": "f:5:1: this is not YAML",
		"a: [\n":              "f:1:4: this is not YAML",
		"a: \"b\n":            "f:1:4: the quotation mark is not closed",
		"\ta: 1\n":            "f:1:1: tabs are not allowed for indentation",
		"a: \x00\n":           "f:1:4: there is a NUL byte",
	} {
		_, problems, ok := position.Parse("f", []byte(content), "write a mapping")
		if ok || !strings.HasPrefix(problems.Error(), want) {
			t.Errorf("%q: %v, %v", content, ok, problems)
		}
	}
}

func TestDecode(t *testing.T) {
	for name, test := range map[string]struct {
		content   string
		limit     int
		documents int
		stopped   bool
	}{
		"no document":                              {"# a\n", 2, 0, false},
		"one document":                             {"a: 1\n", 2, 1, false},
		"at most as many documents as the limit":   {"a\n---\nb\n---\nc\n", 2, 2, false},
		"documents before an error are returned":   {"a: 1\n---\n[\n", 3, 1, true},
		"an error after the limit is not reported": {"a: 1\n---\n[\n", 1, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			documents, stopped := position.Decode("", []byte(test.content), test.limit)
			if len(documents) != test.documents || (stopped != nil) != test.stopped {
				t.Errorf("%d documents, stopped by %v", len(documents), stopped)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	documents, more := position.Split([]byte("# first\na: 1\n--- # second\n[\n---\nc: 3\n...\n"))
	if len(documents) != 3 || more {
		t.Fatalf("%d documents, more: %v", len(documents), more)
	}
	var got []string
	for _, d := range documents {
		root, problem := d.Read("f")
		switch {
		case problem != nil:
			got = append(got, fmt.Sprintf("problem on line %d", problem.Line))
		case root != nil:
			got = append(got, fmt.Sprintf("line %d", root.Line))
		}
	}
	if diff := cmp.Diff([]string{"line 2", "problem on line 4", "line 6"}, got); diff != "" {
		t.Error(diff)
	}
	documents, more = position.Split([]byte(strings.Repeat("a\n---\n", 2*position.MaxDocuments)))
	if len(documents) != position.MaxDocuments || !more {
		t.Errorf("%d documents, more: %v", len(documents), more)
	}
}

func TestClosest(t *testing.T) {
	candidates := []string{"token", "token_file", "service_url", "log_level"}
	for name, want := range map[string]string{
		"tokn": "token", "tokenfile": "token_file", "PULUMI_AGENT_TOKEN": "token", "Service-URL": "service_url",
		"service_ulr": "service_url", "log": "", "logl": "log_level", "toke": "token", "owner": "",
		strings.Repeat("token", 20): "",
	} {
		if got := position.Closest(name, candidates); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := position.Nearest("logl", candidates); got != "" {
		t.Errorf("Nearest returns %q, want no candidate that only begins with the name", got)
	}
}

func TestSafeName(t *testing.T) {
	for _, name := range []string{
		"token", "polling_interval", "requiredDuringSchedulingIgnoredDuringExecution", "$patch",
	} {
		if got := position.SafeName(name); got != name {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, name := range []string{
		"", "a b", "pul-a", "AKIAIOSFODNN7EXAMPLE", strings.Repeat("a", 33), strings.Repeat("a_", 33), "naïve",
	} {
		if got := position.SafeName(name); got != "(a key)" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Run("are sorted by position, and variables come last", func(t *testing.T) {
		all := position.Problems{
			{Path: "VARIABLE"}, {File: "f", Line: 2}, {File: "f", Line: 1, Column: 2}, {File: "f", Line: 1, Column: 1},
			{File: "f"},
		}
		all.Sort()
		want := position.Problems{
			{File: "f"}, {File: "f", Line: 1, Column: 1}, {File: "f", Line: 1, Column: 2}, {File: "f", Line: 2},
			{Path: "VARIABLE"},
		}
		if fmt.Sprint(all) != fmt.Sprint(want) {
			t.Error(all)
		}
	})
	t.Run("are an error if one of them is an error", func(t *testing.T) {
		warning := position.NewWarning(position.RuleValue, position.Origin{File: "f", Line: 1}, "a", "is odd", "")
		if err := (position.Problems{warning}).Err(); err != nil {
			t.Error(err)
		}
		err := position.Problems{warning, {Message: "is wrong"}}.Err()
		var problems position.Problems
		if !errors.As(err, &problems) || len(problems) != 1 || err.Error() != "is wrong" {
			t.Error(err)
		}
	})
	t.Run("beyond the limit are one problem with their highest severity", func(t *testing.T) {
		all := make(position.Problems, 1_500)
		for i := range all {
			all[i].Severity = position.Warning
		}
		got := all.Limit("f")
		if len(got) != 1_001 || got.Err() != nil || got[1_000].Message != "there are 500 more problems" {
			t.Errorf("%d problems, the last: %v", len(got), got[len(got)-1])
		}
		all[1_400].Severity = position.Error
		if err := all.Limit("f").Err(); err == nil {
			t.Error("the error is lost")
		}
	})
}

func TestSyntaxProblem(t *testing.T) {
	const sameIndent = "\n  hint: indent all keys of one mapping equally"
	for name, test := range map[string]struct{ content, want string }{
		"key indented below a scalar": {"token: pul-a\n  polling_interval: 30s\n",
			"f:2:3: the line is indented below line 1, which already has a value" + sameIndent},
		"key indented below a quoted scalar": {"token: \"pul-a\"\n\n# why\n  polling_interval: 30s\n",
			"f:4:3: the line is indented below line 1, which already has a value" + sameIndent},
		"key indented below a scalar of a list": {"pools:\n  - name: a\n      token: x\n",
			"f:3:7: the line is indented below line 2, which already has a value" + sameIndent},
		"second key of an entry of a list": {"pools:\n  - name: a\n    docker: {network: ?a, user: b}\n",
			"f:3:13: this is not YAML\n" +
				"  hint: check indentation, quotes and brackets on this line and the line above"},
		"open double quote": {"log_level: info\ntoken_file: \"/a\n",
			"f:2:13: the quotation mark is not closed\n  hint: close it, or remove it"},
		"open single quote before other lines": {"token: 'a\nlog_level: 'info'\n",
			"f:1:8: the quotation mark is not closed\n  hint: close it, or remove it"},
		"open quote in a list": {"volumes: [\"a:/a\", \"b:/b]\n",
			"f:1:19: the quotation mark is not closed\n  hint: close it, or remove it"},
		"no space after the colon": {"token: x\npolling_interval:30s\n",
			"f:2:18: missing space after the colon\n  hint: write key: value"},
		"no space after the only colon": {"# a\npolling_interval:30s\n",
			"f:2:18: missing space after the colon\n  hint: write key: value"},
		"no space after the first colon": {"polling_interval:30s\ntoken: x\n",
			"f:1:18: missing space after the colon\n  hint: write key: value"},
		"a URL is not a key": {"https://example.com\n",
			"f:1:1: the file must be a mapping of keys to values\n  hint: write a mapping"},
		"curly quotes": {"token: x\nlog_level: “a: b”\n",
			"f:2:12: curly quotation marks are not quotes in YAML\n  hint: write straight ones: \""},
		"tab": {"docker:\n\tnetwork: a\n", "f:2:1: tabs are not allowed for indentation\n  hint: use spaces"},
		"tab after spaces": {"docker:\n  \tnetwork: a\n  user: a\n",
			"f:2:3: tabs are not allowed for indentation\n  hint: use spaces"},
		"second colon": {"token: x\nlog_level: a: b\n", "f:2:13: unexpected \": \"\n" +
			"  hint: check the indentation of this line, or put the value in quotes if it contains \": \""},
		"bracket": {"volumes: [a, b\nlog_level: info\n",
			"f:1:1: a list or mapping in brackets is not closed, or a comma is missing\n" +
				"  hint: close the bracket, and separate the entries by commas"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems, ok := position.Parse("f", []byte(test.content), "write a mapping")
			if ok {
				t.Fatal("the file is accepted")
			}
			if diff := cmp.Diff(test.want, problems.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
