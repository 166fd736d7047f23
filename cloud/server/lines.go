package server

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// maxLine limits a line of a log in bytes, its newline not counted.
const maxLine = 64 << 10

// readBatch reads and checks a batch of lines.
func readBatch(c *call) (cloud.LogBatch, error) {
	text, err := c.text(maxLogBody)
	if err != nil {
		return cloud.LogBatch{}, err
	}
	return decodeBatch(text)
}

// decodeBatch is lenient with nothing: an offset, and lines that each have a
// time, at most maxLine bytes, and a newline at the end or nowhere.
func decodeBatch(text []byte) (cloud.LogBatch, error) {
	var body struct {
		Offset *int             `json:"offset"`
		Lines  *[]cloud.LogLine `json:"lines"`
	}
	if err := decode(text, &body); err != nil {
		return cloud.LogBatch{}, err
	}
	if body.Offset == nil || body.Lines == nil {
		return cloud.LogBatch{}, badRequest("a batch of lines has an offset and lines")
	}
	if *body.Offset < 0 {
		return cloud.LogBatch{}, badRequest("offset must not be negative")
	}
	for i, line := range *body.Lines {
		text := strings.TrimSuffix(line.Text, "\n")
		switch {
		case line.Time.IsZero():
			return cloud.LogBatch{}, badRequest("line %d has no time t", i)
		case line.Time.Year() < 1970 || line.Time.Year() > 2200:
			return cloud.LogBatch{}, badRequest("line %d has a time t out of this world", i)
		case len(text) > maxLine:
			return cloud.LogBatch{}, badRequest("line %d is longer than %d bytes: cut it into several", i, maxLine)
		case strings.Contains(text, "\n"):
			return cloud.LogBatch{}, badRequest("line %d has a newline before its end: it is several lines", i)
		}
	}
	return cloud.LogBatch{Offset: *body.Offset, Lines: *body.Lines}, nil
}

// packLines writes lines in the form in which a batch is stored: for each its
// time in nanoseconds since 1970, the length of its text, and the text. The
// same lines always make the same bytes.
func packLines(lines []cloud.LogLine) []byte {
	size := 0
	for _, line := range lines {
		size += len(line.Text) + 2*binary.MaxVarintLen64
	}
	packed := make([]byte, 0, size)
	for _, line := range lines {
		packed = binary.AppendVarint(packed, line.Time.UnixNano())
		packed = binary.AppendUvarint(packed, uint64(len(line.Text)))
		packed = append(packed, line.Text...)
	}
	return packed
}

var errPacked = errors.New("stored lines are damaged")

// unpackLines reads what packLines wrote.
func unpackLines(packed []byte) ([]cloud.LogLine, error) {
	var lines []cloud.LogLine
	for len(packed) > 0 {
		nanoseconds, n := binary.Varint(packed)
		if n <= 0 {
			return nil, errPacked
		}
		size, m := binary.Uvarint(packed[n:])
		if m <= 0 || size > uint64(len(packed)-n-m) {
			return nil, errPacked
		}
		text := packed[n+m:]
		lines = append(lines, cloud.LogLine{Time: time.Unix(0, nanoseconds).UTC(), Text: string(text[:size])})
		packed = text[size:]
	}
	return lines, nil
}
