package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// readCommand parses a workflow command as the runner of GitHub Actions does: the properties
// are between the first space and the two colons, and the text follows.
func readCommand(t interface{ Fatalf(string, ...any) }, line string) map[string]string {
	m := regexp.MustCompile(`^::(error|warning) ([^:]*)::(.*)$`).FindStringSubmatch(line)
	if m == nil || strings.ContainsAny(line, "\r\n\x1b") {
		t.Fatalf("%q is not a workflow command", line)
	}
	unescape := strings.NewReplacer("%25", "%", "%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",")
	read := map[string]string{"": unescape.Replace(m[3]), "level": m[1]}
	for _, property := range strings.Split(m[2], ",") {
		name, value, ok := strings.Cut(property, "=")
		if !ok {
			t.Fatalf("%q in %q is not a property", property, line)
		}
		read[name] = unescape.Replace(value)
	}
	return read
}

// TestGitHubAndTextProperty checks that every finding is one workflow command, and one line
// of text if it has no hint.
func TestGitHubAndTextProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := report.Finding{Problem: position.Problem{
			Severity: rapid.SampledFrom([]position.Severity{position.Error, position.Warning}).Draw(t, "severity"),
			Rule:     position.RuleValue,
			File:     "dir/" + rapid.StringN(1, 9, 30).Draw(t, "file"),
			Line:     rapid.IntRange(0, 9).Draw(t, "line"),
			Message:  "must be: 100%, or so",
		}}
		f.Column = rapid.IntRange(0, 9).Draw(t, "column")
		var github, text bytes.Buffer
		findings := []report.Finding{f}
		if err := errors.Join(report.GitHub(&github, findings), report.Text(&text, findings, true, false)); err != nil {
			t.Fatalf("%v", err)
		}
		line, complete := strings.CutSuffix(github.String(), "\n")
		read := readCommand(t, line)
		if !complete || read[""] != f.Message || read["title"] != "value" || read["level"] != f.Severity.String() ||
			(read["line"] == "") != (f.Line == 0) {
			t.Fatalf("%q is read as %q", line, read)
		}
		if strings.Count(text.String(), "\n") != 1 || !strings.HasSuffix(text.String(), f.Message+"\n") {
			t.Fatalf("%q is not one line", text.String())
		}
	})
}

// odd are names with characters that have a meaning in a line, an annotation or a URI.
var odd = []string{
	"a:b.yaml", "new\nline.yaml", "es\x1b[31mcape.yaml", "100%.yaml", "a,b.yaml", "space .yaml", "é.yaml",
	"#x.yaml", "?x.yaml", "q\"uote.yaml", "raw\xff.yaml", "::error::x.yaml", "\r.yaml",
}

// written returns the output of a format.
func written(t *testing.T, write func(*bytes.Buffer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReportOddNames(t *testing.T) {
	var findings []report.Finding
	for _, name := range odd {
		p := position.Problem{
			Rule: position.RuleValue, File: name, Line: 2, Column: 12, Path: "log_level",
			Message: "must be one of a, b",
		}
		findings = append(findings, report.Findings(name, position.Problems{p}, map[position.Problem]bool{})...)
	}
	t.Run("text has one line for each finding", func(t *testing.T) {
		text := written(t, func(b *bytes.Buffer) error { return report.Text(b, findings, false, false) })
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != len(odd) {
			t.Fatalf("got %d lines, want %d", len(lines), len(odd))
		}
		for _, line := range lines {
			if !regexp.MustCompile(`^("([^"\\]|\\.)*"|[^":]+):2:12: log_level: must be`).MatchString(line) ||
				strings.ContainsAny(line, "\x1b\r") {
				t.Errorf("%q does not begin with a position and a key, or has control characters", line)
			}
		}
	})
	t.Run("JSON has names in UTF-8", func(t *testing.T) {
		var document struct{ Problems []struct{ File string } }
		text := written(t, func(b *bytes.Buffer) error {
			return json.NewEncoder(b).Encode(report.NewDocument(findings))
		})
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		for i, p := range document.Problems {
			if p.File != strings.ToValidUTF8(odd[i], "\uFFFD") {
				t.Errorf("got file %q for %q", p.File, odd[i])
			}
		}
	})
	t.Run("SARIF has names as relative URIs", func(t *testing.T) {
		text := written(t, func(b *bytes.Buffer) error { return report.SARIF(b, findings, "v1") })
		uris := regexp.MustCompile(`"uri": (".*")`).FindAllStringSubmatch(text, -1)
		if len(uris) != len(odd) {
			t.Fatalf("got %d URIs, want %d", len(uris), len(odd))
		}
		for i, m := range uris {
			var written string
			if err := json.Unmarshal([]byte(m[1]), &written); err != nil {
				t.Fatal(err)
			}
			uri, err := url.Parse(written)
			if err != nil || uri.Scheme != "" || uri.Path != odd[i] || uri.Fragment != "" || uri.RawQuery != "" {
				t.Errorf("got URI %v, %v for %q", uri, err, odd[i])
			}
		}
	})
	t.Run("GitHub has one command for each finding", func(t *testing.T) {
		text := written(t, func(b *bytes.Buffer) error { return report.GitHub(b, findings) })
		commands := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(commands) != len(odd) {
			t.Fatalf("got %d commands, want %d", len(commands), len(odd))
		}
		for i, line := range commands {
			want := strings.ReplaceAll(strings.ToValidUTF8(odd[i], "\uFFFD"), "\x1b", `\x1b`)
			if file := readCommand(t, line)["file"]; file != want {
				t.Errorf("got file %q, want %q", file, want)
			}
		}
	})
}

func TestSARIF(t *testing.T) {
	type document struct {
		Runs []struct {
			Invocations []struct{ ExecutionSuccessful bool }
			Results     []struct {
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           map[string]int
					}
				}
			}
		}
	}
	read := func(t *testing.T, findings []report.Finding) (text string, d document) {
		text = written(t, func(b *bytes.Buffer) error { return report.SARIF(b, findings, "v1") })
		if err := json.Unmarshal([]byte(text), &d); err != nil || len(d.Runs) != 1 || len(d.Runs[0].Invocations) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		return text, d
	}
	unreadable := position.Problem{Rule: position.RuleUnreadable, Message: "cannot be read"}
	t.Run("no finding is an empty list of results", func(t *testing.T) {
		text, d := read(t, nil)
		if !strings.Contains(text, `"results": []`) || !d.Runs[0].Invocations[0].ExecutionSuccessful {
			t.Errorf("got %s", text)
		}
	})
	t.Run("file that cannot be read is at line 1 of that file", func(t *testing.T) {
		text, d := read(t, []report.Finding{{Problem: unreadable, Checked: "a.yaml"}})
		location := d.Runs[0].Results[0].Locations[0].PhysicalLocation
		if location.ArtifactLocation.URI != "a.yaml" || location.Region["startLine"] != 1 ||
			strings.Contains(text, "startColumn") {
			t.Errorf("got %s", text)
		}
		if d.Runs[0].Invocations[0].ExecutionSuccessful {
			t.Errorf("executionSuccessful is true, want false: %s", text)
		}
	})
	t.Run("finding without any file has no location", func(t *testing.T) {
		if text, _ := read(t, []report.Finding{{Problem: unreadable}}); !strings.Contains(text, `"locations": []`) {
			t.Errorf("got %s", text)
		}
	})
}

func TestNewDocument(t *testing.T) {
	for name, test := range map[string]struct {
		findings []report.Finding
		want     string
	}{
		"no finding is an empty list": {nil, `{"version":1,"problems":[]}`},
		"unknown line and column are omitted": {
			[]report.Finding{
				{Problem: position.Problem{Rule: position.RuleUnreadable, File: "a.yaml", Message: "cannot be read"}},
			},
			`{"version":1,"problems":[{"severity":"error","rule":"unreadable","file":"a.yaml",` +
				`"path":"","message":"cannot be read","hint":""}]}`,
		},
		"unknown column is omitted": {
			[]report.Finding{{Problem: position.Problem{
				Rule: position.RuleValue, File: "a", Line: 2, Path: "p", Message: "m", Hint: "h",
			}}},
			`{"version":1,"problems":[{"severity":"error","rule":"value","file":"a","line":2,` +
				`"path":"p","message":"m","hint":"h"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(report.NewDocument(test.findings))
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestFindings(t *testing.T) {
	variable := position.Problem{Path: "PULUMI_AGENT_SYSLOG", Message: "must be true or false"}
	ofFile := position.Problem{File: "a", Message: "is empty"}
	reported := map[position.Problem]bool{}
	first := report.Findings("a", position.Problems{variable, ofFile}, reported)
	other := position.Problem{File: "b", Message: "is empty"}
	second := report.Findings("b", position.Problems{variable, ofFile, other}, reported)
	if len(first) != 2 || first[0].Checked != "a" || len(second) != 1 || second[0].Problem != other {
		t.Errorf("a problem is not reported exactly once: %v, %v", first, second)
	}
}

func TestText(t *testing.T) {
	all := []report.Finding{
		{
			Problem: position.Problem{File: "a", Line: 1, Column: 2, Path: "b", Message: "is wrong", Hint: "fix it"},
			Excerpt: position.Excerpt{Text: "b: 1", Caret: " "},
		},
		{Problem: position.Problem{Severity: position.Warning, Path: "B", Message: "is odd"}},
	}
	for name, test := range map[string]struct {
		excerpts, colours bool
		want              string
	}{
		"plain":        {false, false, "a:1:2: b: is wrong\n  hint: fix it\nwarning: B: is odd\n"},
		"with excerpt": {true, false, "a:1:2: b: is wrong\n    b: 1\n     ^\n  hint: fix it\nwarning: B: is odd\n"},
		"in colours": {false, true, "\x1b[1ma:1:2:\x1b[0m b: is wrong\n  hint: fix it\n" +
			"\x1b[33mwarning:\x1b[0m B: is odd\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := written(t, func(b *bytes.Buffer) error { return report.Text(b, all, test.excerpts, test.colours) })
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestProblem(t *testing.T) {
	p := position.Problem{
		Severity: position.Warning, Rule: position.RuleValue, File: "a", Line: 1, Column: 2,
		Path: "b", Message: "is wrong", Hint: "fix it",
	}
	if got := report.NewProblem(p); got.String() != p.String() || got.Severity != "warning" || got.Rule != "value" {
		t.Errorf("got %+v", got)
	}
}
