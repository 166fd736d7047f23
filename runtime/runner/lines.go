package runner

import (
	"bytes"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
)

// maxLine is the longest line in bytes. A longer one is split.
const maxLine = 64 << 10

// splitter splits a stream into lines. The concatenated lines equal the stream, except
// that invalid UTF-8 is replaced. It is not safe for concurrent use.
type splitter struct {
	partial []byte // beginning of a line that has not ended; at most maxLine bytes
}

// write adds a piece of the stream and appends the lines that end in it, with the given
// time.
func (s *splitter) write(lines []cloud.LogLine, piece []byte, now time.Time) []cloud.LogLine {
	if end := bytes.IndexByte(piece, '\n') + 1; len(s.partial) > 0 && end > 0 {
		s.partial = append(s.partial, piece[:end]...)
		piece = piece[end:]
		lines = appendLine(lines, string(s.partial), now)
		s.partial = s.partial[:0]
	}
	whole := bytes.LastIndexByte(piece, '\n') + 1
	for line := range strings.Lines(string(piece[:whole])) {
		lines = appendLine(lines, line, now)
	}
	s.partial = append(s.partial, piece[whole:]...)
	for len(s.partial) > maxLine {
		cut := runeCut(s.partial, maxLine)
		lines = appendLine(lines, string(s.partial[:cut]), now)
		s.partial = s.partial[:copy(s.partial, s.partial[cut:])]
	}
	return lines
}

// close appends the last line if it has no newline.
func (s *splitter) close(lines []cloud.LogLine, now time.Time) []cloud.LogLine {
	if len(s.partial) == 0 {
		return lines
	}
	lines = appendLine(lines, string(s.partial), now)
	s.partial = nil
	return lines
}

// appendLine appends one line, converted to valid UTF-8 and split at maxLine.
func appendLine(lines []cloud.LogLine, text string, now time.Time) []cloud.LogLine {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	for len(text) > maxLine {
		cut := runeCut(text, maxLine)
		lines = append(lines, cloud.LogLine{Time: now, Text: text[:cut]})
		text = text[cut:]
	}
	return append(lines, cloud.LogLine{Time: now, Text: text})
}

// runeCut returns the largest index, at most at, at which the text can be cut without
// splitting a character. If all of the last bytes are invalid, it returns at.
func runeCut[T string | []byte](text T, at int) int {
	if at >= len(text) {
		return len(text)
	}
	for cut := at; cut > at-utf8.UTFMax; cut-- {
		if cut > 0 && utf8.RuneStart(text[cut]) {
			return cut
		}
	}
	return at
}
