package runner

import (
	"bytes"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
)

// maxLine limits a line in bytes; a longer one becomes several.
const maxLine = 64 << 10

// splitter cuts a stream into lines. Put together again they are the stream,
// but for bytes that are no UTF-8, which it replaces. It belongs to one
// goroutine.
type splitter struct {
	rest []byte // of a line that has not ended; at most maxLine bytes
}

// write takes a piece of the stream and appends the lines that end in it, all
// read at the same time.
func (s *splitter) write(lines []cloud.LogLine, piece []byte, now time.Time) []cloud.LogLine {
	if end := bytes.IndexByte(piece, '\n') + 1; len(s.rest) > 0 && end > 0 {
		s.rest = append(s.rest, piece[:end]...)
		piece = piece[end:]
		lines = appendLine(lines, string(s.rest), now)
		s.rest = s.rest[:0]
	}
	whole := bytes.LastIndexByte(piece, '\n') + 1
	for line := range strings.Lines(string(piece[:whole])) {
		lines = appendLine(lines, line, now)
	}
	s.rest = append(s.rest, piece[whole:]...)
	for len(s.rest) > maxLine {
		cut := runeCut(s.rest, maxLine)
		lines = appendLine(lines, string(s.rest[:cut]), now)
		s.rest = s.rest[:copy(s.rest, s.rest[cut:])]
	}
	return lines
}

// close appends the last line, if it had no newline.
func (s *splitter) close(lines []cloud.LogLine, now time.Time) []cloud.LogLine {
	if len(s.rest) == 0 {
		return lines
	}
	lines = appendLine(lines, string(s.rest), now)
	s.rest = nil
	return lines
}

// appendLine appends one line as what may be sent of it.
func appendLine(lines []cloud.LogLine, text string, now time.Time) []cloud.LogLine {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	for len(text) > maxLine {
		cut := runeCut(text, maxLine)
		lines = append(lines, cloud.LogLine{Time: now, Text: text[:cut]})
		text = text[cut:]
	}
	return append(lines, cloud.LogLine{Time: now, Text: text})
}

// runeCut is the place, at most at, where text can be cut without breaking a
// character. Text is at least that long.
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
