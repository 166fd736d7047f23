package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Limits of one page of a log.
const (
	pageLines = 2000
	pageBytes = 1 << 20
	maxCount  = 499 // lines of a request by step and offset
)

// lineView is a line of a log, or the header of a step.
type lineView struct {
	Header    string    `json:"header,omitempty"`
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line,omitempty"`
}

// logPage is a page of a log. For the log of all steps, an empty NextToken means that the log
// is complete. A NextToken equal to that of the request means that there are no new lines
// yet. For the log of one step, a missing NextOffset means that the log is complete.
type logPage struct {
	Lines      []lineView `json:"lines"`
	NextToken  string     `json:"nextToken,omitempty"`
	NextOffset *int       `json:"nextOffset,omitempty"`
}

// readLogs returns a page of a log. The request has one of two forms: it names a
// continuation token for the log of all steps, or a step, an offset and a count.
func (s *Server) readLogs(c *call, t *store.Tx, j *job) (page logPage, err error) {
	// Read the log of all steps from a token on.
	query := c.URL.Query()
	if !query.Has("step") {
		from, err := parseCursor(query.Get("continuationToken"), len(j.Steps))
		if err != nil {
			return page, err
		}
		return s.pageFrom(t, j, from)
	}

	// Read the log of one step by offset and count.
	if text := query.Get("job"); text != "" && text != "0" {
		return page, notFound("a log has one job, number 0")
	}
	step, err := parseNumber("step", query.Get("step"), 0, 1<<20)
	if err != nil {
		return page, err
	}
	if int(step) >= len(j.Steps) {
		return page, notFound("the job has steps 0 to %d", len(j.Steps)-1)
	}
	offset, count := int64(0), int64(100)
	if query.Has("offset") {
		if offset, err = parseNumber("offset", query.Get("offset"), 0, 1<<40); err != nil {
			return page, err
		}
	}
	if query.Has("count") {
		if count, err = parseNumber("count", query.Get("count"), 1, maxCount); err != nil {
			return page, err
		}
	}
	lines, next, err := s.readLines(t, j, int(step), int(offset), int(count), pageBytes)
	if err != nil {
		return page, err
	}
	page.Lines = viewLines(lines)
	if next < j.Steps[step].Lines || j.Steps[step].Status == running {
		page.NextOffset = &next
	}
	return page, nil
}

// cursor is a position in the log of all steps. Position 0 of a step is before its header,
// and position n is after the header and n-1 lines.
type cursor struct{ step, position int }

func (c cursor) String() string { return fmt.Sprintf("%d.%d", c.step, c.position) }

func parseCursor(token string, steps int) (cursor, error) {
	var at cursor
	if token == "" {
		return at, nil
	}
	_, err := fmt.Sscanf(token, "%d.%d", &at.step, &at.position)
	if err != nil || at.String() != token || at.step < 0 || at.step > steps || at.position < 0 {
		return at, badRequest("the continuation token does not belong to this log")
	}
	return at, nil
}

// pageFrom returns the page that begins at a position.
func (s *Server) pageFrom(t *store.Tx, j *job, at cursor) (page logPage, err error) {
	page.Lines = []lineView{}
	space := pageBytes
	for at.step < len(j.Steps) && len(page.Lines) < pageLines && space > 0 {
		st := j.Steps[at.step]
		if st.Status == notStarted {
			break
		}
		if at.position == 0 {
			page.Lines = append(page.Lines, lineView{Header: st.Name, Timestamp: st.Started})
			at.position = 1
		}

		lines, next, err := s.readLines(t, j, at.step, at.position-1, pageLines-len(page.Lines), space)
		if err != nil {
			return page, err
		}
		for _, line := range lines {
			space -= len(line.Text)
		}
		page.Lines = append(page.Lines, viewLines(lines)...)
		at.position = next + 1
		if at.position-1 < st.Lines {
			if len(lines) == 0 {
				break
			}
			continue
		}
		if st.Status == running {
			break
		}
		at = cursor{step: at.step + 1}
	}

	// The log is complete if the job has ended and no step follows.
	if j.Ended != "" && (at.step >= len(j.Steps) || j.Steps[at.step].Status == notStarted) {
		if j.Ended != endedBySteps {
			page.Lines = append(page.Lines, lineView{Header: s.describeEnd(j), Timestamp: j.Modified})
		}
		return page, nil
	}
	page.NextToken = at.String()
	return page, nil
}

// describeEnd returns the last header of the log of a job whose end was not the result of
// its steps.
func (s *Server) describeEnd(j *job) string {
	if j.leased() {
		return describeLeaseEnd(j)
	}
	switch j.Ended {
	case endedByCancel:
		return "deployment cancelled at " + j.Modified.Format(time.RFC3339)
	case endedByNoHeartbeat:
		return fmt.Sprintf("deployment failed: no heartbeat for %s", s.options.HeartbeatLimit)
	case endedByQueueLimit:
		return fmt.Sprintf("deployment skipped: no agent claimed it within %d days", queueLimit/(24*time.Hour))
	case endedBySuperseded:
		return "deployment skipped: a newer deployment superseded it"
	case endedByPool:
		return "deployment skipped: its pool was deleted"
	default:
		return "deployment " + j.Status
	}
}

// readLines returns at most count lines of a step from an offset, and the offset after
// them. It reads batches until it has size bytes. In place of lines that are not stored
// there is one line that describes them.
func (s *Server) readLines(
	t *store.Tx, j *job, step, offset, count, size int,
) (all []cloud.LogLine, next int, err error) {
	for next = offset; count > 0 && size > 0; {
		b, found, err := t.BatchAt(j.JobKey, step, next)
		if err != nil {
			return nil, 0, err
		}
		if !found || next >= b.Start+b.Count {
			break
		}
		lines, err := unpackLines(b.Packed)
		if err != nil || b.Cut == "" && len(lines) != b.Count || b.Cut != "" && len(lines) != 1 {
			return nil, 0, fmt.Errorf("read the log of job %s, step %d: %w", j.JobID, step, errors.Join(errPacked, err))
		}

		if b.Cut != "" {
			if next > b.Start {
				b.Bytes = 0
			}
			lines[0].Text = s.describeCut(b.Cut, b.Bytes, b.Start+b.Count-next)
			next = b.Start + b.Count
		} else {
			lines = lines[next-b.Start:]
			lines = lines[:min(len(lines), count)]
			next += len(lines)
		}
		all = append(all, lines...)
		count -= len(lines)
		for _, line := range lines {
			size -= len(line.Text)
		}
	}
	return all, next, nil
}

func viewLines(lines []cloud.LogLine) []lineView {
	out := make([]lineView, 0, len(lines))
	for _, line := range lines {
		out = append(out, lineView{Timestamp: line.Time, Line: line.Text})
	}
	return out
}

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

// decodeBatch decodes a batch. It requires an offset, and lines with a time, at most
// maxLine bytes, and no newline before the end.
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
			return cloud.LogBatch{}, badRequest("line %d has a time t before 1970 or after 2200", i)
		case len(text) > maxLine:
			return cloud.LogBatch{}, badRequest("line %d is longer than %d bytes: split it", i, maxLine)
		case strings.Contains(text, "\n"):
			return cloud.LogBatch{}, badRequest("line %d has a newline before its end: split it", i)
		}
	}
	return cloud.LogBatch{Offset: *body.Offset, Lines: *body.Lines}, nil
}

// packLines encodes lines for the database: the time of each in nanoseconds since 1970,
// the length of its text, and the text. The encoding is deterministic.
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

// unpackLines decodes the encoding of packLines.
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
