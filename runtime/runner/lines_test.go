package runner

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/cloud"
)

// split splits a stream that arrives in pieces.
func split(pieces ...string) []cloud.LogLine {
	var s splitter
	var lines []cloud.LogLine
	for _, piece := range pieces {
		lines = s.write(lines, []byte(piece), time.Unix(1, 0))
	}
	return s.close(lines, time.Unix(2, 0))
}

func join(lines []cloud.LogLine) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line.Text)
	}
	return b.String()
}

func TestSplitterProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.Custom(func(t *rapid.T) string {
			runes := rapid.SampledFrom([]rune{'a', '\n', '\r', 'é', '字', '🙂'})
			text := rapid.StringOfN(runes, 0, 6, -1).Draw(t, "text")
			return strings.Repeat(text, rapid.SampledFrom([]int{1, 1, 1, 100, 20_000}).Draw(t, "times"))
		})
		text := strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "parts"), "")
		var pieces []string
		for remaining := text; remaining != ""; {
			n := rapid.IntRange(1, min(len(remaining), 70_000)).Draw(t, "cut") // also inside characters
			pieces = append(pieces, remaining[:n])
			remaining = remaining[n:]
		}
		lines := split(pieces...)
		if join(lines) != text {
			t.Fatal("the concatenated lines differ from the stream")
		}
		for i, line := range lines {
			body, ended := strings.CutSuffix(line.Text, "\n")
			switch {
			case len(line.Text) > maxLine:
				t.Fatalf("line %d has %d bytes, want at most %d", i, len(line.Text), maxLine)
			case strings.Contains(body, "\n") || !utf8.ValidString(line.Text) || line.Text == "":
				t.Fatalf("line %d is not one line of text", i)
			case !ended && i < len(lines)-1 && len(line.Text) < maxLine-utf8.UTFMax:
				t.Fatalf("line %d was cut after %d bytes, before the limit of %d", i, len(line.Text), maxLine)
			}
		}
	})
}

func TestSplitter(t *testing.T) {
	t.Run("a character at the line limit that arrives in two reads stays whole", func(t *testing.T) {
		text := strings.Repeat("a", maxLine-1) + "é tail\n"
		if got := join(split(text[:maxLine], text[maxLine:])); got != text {
			t.Errorf("the text ends with %q, want %q", got[maxLine-1:], text[maxLine-1:])
		}
	})

	t.Run("invalid UTF-8 is replaced", func(t *testing.T) {
		for in, want := range map[string]string{
			"no \xff\xfe text\n":             "no \ufffd text\n",
			"\xc3":                           "\ufffd",
			"\xc3\n\xa9\n":                   "\ufffd\n\ufffd\n",
			strings.Repeat("a\xff", maxLine): strings.Repeat("a\ufffd", maxLine),
		} {
			lines := split(in)
			if got := join(lines); got != want {
				t.Errorf("%.40q becomes %.40q, want %.40q", in, got, want)
			}
			for _, line := range lines {
				if len(line.Text) > maxLine || !utf8.ValidString(line.Text) {
					t.Errorf("%.40q gives a line of %d bytes, which is too long or invalid UTF-8", in, len(line.Text))
				}
			}
		}
	})

	t.Run("line has the time at which its end was read", func(t *testing.T) {
		var s splitter
		lines := s.write(nil, []byte("one\ntw"), time.Unix(1, 0))
		lines = s.write(lines, []byte("o\nthr"), time.Unix(2, 0))
		lines = s.close(lines, time.Unix(3, 0))
		for i, want := range []int64{1, 2, 3} {
			if got := lines[i].Time.Unix(); got != want {
				t.Errorf("line %d has the time %d, want %d", i, got, want)
			}
		}
	})
}
