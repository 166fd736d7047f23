package printable

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// anyText generates texts of random bytes, of random characters, and of letters with spaces.
var anyText = rapid.OneOf(
	rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 300), func(b []byte) string { return string(b) }),
	rapid.String(), rapid.StringMatching(`([a-zä]{1,60} {0,3})*`),
)

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

func TestPrintable(t *testing.T) {
	if got := Text("a\nb\x1b[31m\u2028é \u202e\xff"); got != "a?b?[31m?é ??" {
		t.Errorf("got %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := anyText.Draw(t, "text")
		got := Text(text)
		if strings.ContainsFunc(got, unprintable) || utf8.RuneCountInString(got) != utf8.RuneCountInString(text) {
			t.Fatalf("%q becomes %q", text, got)
		}
	})
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"one\nline\t of text": "one line of text",
		"\x1b[31mred\u202e":   "?[31mred?",
		"a\u0085b\u2028c\xff": "a b c?",
		" \r\n":               "",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	t.Run("a short text is unchanged", func(t *testing.T) {
		if got := Shorten("äöü", 6); got != "äöü" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a long text ends between two characters", func(t *testing.T) {
		for limit, want := range map[int]string{10: "äöü …", 11: "äöü …", 12: "äöüß …"} {
			if got := Shorten("äöüßäöüß", limit); got != want {
				t.Errorf("%d bytes: got %q, want %q", limit, got, want)
			}
		}
	})
	t.Run("the result is valid UTF-8 and not longer than the limit", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			text, limit := anyText.Draw(t, "text"), rapid.IntRange(len(ellipsis), 100).Draw(t, "limit")
			got := Shorten(text, limit)
			if len(got) > limit || !utf8.ValidString(got) {
				t.Fatalf("%q becomes %q", text, got)
			}
			if again := Shorten(got, limit); again != got {
				t.Fatalf("%q becomes %q, and then %q", text, got, again)
			}
		})
	})
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"any width", 0, "any width"},
		{"grün", 4, "grün"},
		{"the docker engine", 12, "the docker…"},
		{"unbreakable", 6, "unbre…"},
		{"list, of pools", 8, "list…"},
	} {
		if got := Fit(c.text, c.width); got != c.want {
			t.Errorf("%q in %d columns: got %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for name, c := range map[string]struct {
		text, first, next string
		width             int
		want              []string
	}{
		"no text":       {" ", "head ", "  ", 10, nil},
		"no width":      {"a  b\nc", "- ", "  ", 0, []string{"- a b c"}},
		"several lines": {"one two three", "- ", "    ", 9, []string{"- one two", "    three"}},
		"characters":    {"ää ää ää", "", "", 5, []string{"ää ää", "ää"}},
		"a long part":   {"a bcdefghi j", "", " ", 4, []string{"a", " bcdefghi", " j"}},
		"no room":       {"abc d", "wide", "w", 2, []string{"wideabc", "wd"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Wrap(c.text, c.first, c.next, c.width); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	t.Run("every line is printable and fits or has one part, and no character is lost", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			text, width := anyText.Draw(t, "text"), rapid.IntRange(4, 60).Draw(t, "width")
			var got strings.Builder
			for i, line := range Wrap("."+text, "- ", "  ", width) {
				parts := len(strings.Fields(line[len("- "):]))
				if strings.ContainsFunc(line, unprintable) || parts > 1 && utf8.RuneCountInString(line) > width {
					t.Fatalf("line %d of %q is %q", i, text, line)
				}
				got.WriteString(strings.ReplaceAll(line[len("- "):], " ", ""))
			}
			var want strings.Builder
			for field := range strings.FieldsSeq("." + text) { // joined, invalid bytes may be a valid character
				want.WriteString(Text(field))
			}
			if got.String() != want.String() {
				t.Fatalf("the lines of %q have the text %q, want %q", text, got.String(), want.String())
			}
		})
	})
}

func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 files", 1: "1 file", 2: "2 files"} {
		if got := Plural(n, "file"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestJoin(t *testing.T) {
	for want, list := range map[string][]string{
		"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"},
	} {
		if got := Join(list, "or"); got != want {
			t.Errorf("Join(%q) returns %q, want %q", list, got, want)
		}
	}
}

func TestQuoteName(t *testing.T) {
	for name, want := range map[string]string{
		"agent.yaml": "agent.yaml", "über": "über",
		"": `""`, "a:1": `"a:1"`, "a\nb": `"a\nb"`, " a": `" a"`, "\xff": `"\xff"`,
	} {
		if got := QuoteName(name); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestQuoteShell(t *testing.T) {
	hostile := rapid.OneOf(
		rapid.String(),
		rapid.StringOf(rapid.SampledFrom([]rune("'\"\\$`!*?[]{}()<>|&;#~ \t\n\r-=%a"))),
		rapid.SampledFrom([]string{"", "'", "''", `\'`, "$(touch /pwned)", "`id`", "'; exit 3; '", "-n", "\n"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ReplaceAll(hostile.Draw(t, "text"), "\x00", "")
		arguments := QuoteShell(text) + " " + ShellArgument(text)
		got, err := exec.Command("sh", "-c", "printf '%s.' "+arguments).CombinedOutput()
		if want := text + "." + text + "."; err != nil || string(got) != want {
			t.Fatalf("the shell printed %q (%v), want %q", got, err, want)
		}
	})
}

func TestShellArgument(t *testing.T) {
	for text, want := range map[string]string{
		"data/x.y_z-1": "data/x.y_z-1", "my data": "'my data'", "$(x)": "'$(x)'", "it's": `'it'\''s'`, "": "''",
	} {
		if got := ShellArgument(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestPaints(t *testing.T) {
	paints := Paints{{regexp.MustCompile(`(?m)^live\b`), Green}, {regexp.MustCompile(`(?m)^drain\b`), Red}}
	const want = "\x1b[32mlive\x1b[0m a\n\x1b[31mdrain\x1b[0m live\n"
	if got := paints.Paint("live a\ndrain live\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
