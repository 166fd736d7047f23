package server

import (
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// Limits of one page of a log.
const (
	pageLines = 2000
	pageBytes = 1 << 20
	maxCount  = 499 // of lines that may be asked for by step and offset
)

// shownLine is a line of a log as people read it, or the header of a step.
type shownLine struct {
	Header    string    `json:"header,omitempty"`
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line,omitempty"`
}

// logPage is an answer to the question for a log. Without a NextToken the log
// is at its end; with the one that was sent, there is nothing new yet.
type logPage struct {
	Lines      []shownLine `json:"lines"`
	NextToken  string      `json:"nextToken,omitempty"`
	NextOffset *int        `json:"nextOffset,omitempty"`
}

// shownStep is a step as its log needs it.
type shownStep struct {
	name, status string
	started      int64
	lines        int
}

// readLogs answers both forms of the question: on from a token through all
// steps, or by step, offset and count.
func (s *Server) readLogs(c *call, t *tx, j *job) (page logPage, err error) {
	steps, err := rows(t, func(scan func(...any) error) (st shownStep, err error) {
		return st, scan(&st.name, &st.status, &st.started, &st.lines)
	}, `SELECT name, status, started, lines FROM steps WHERE deployment = ? ORDER BY number`, j.seq)
	if err != nil {
		return page, err
	}
	query := c.URL.Query()
	if !query.Has("step") {
		from, err := parseCursor(query.Get("continuationToken"), len(steps))
		if err != nil {
			return page, err
		}
		return pageFrom(t, j, steps, from)
	}
	if text := query.Get("job"); text != "" && text != "0" {
		return page, notFound("a deployment has one job, number 0")
	}
	step, err := number("step", query.Get("step"), 0, 1<<20)
	if err != nil {
		return page, err
	}
	if int(step) >= len(steps) {
		return page, notFound("the job has steps 0 to %d", len(steps)-1)
	}
	offset, count := int64(0), int64(100)
	if query.Has("offset") {
		if offset, err = number("offset", query.Get("offset"), 0, 1<<40); err != nil {
			return page, err
		}
	}
	if query.Has("count") {
		if count, err = number("count", query.Get("count"), 1, maxCount); err != nil {
			return page, err
		}
	}
	lines, err := linesOf(t, j, int(step), int(offset), int(count), pageBytes)
	if err != nil {
		return page, err
	}
	page.Lines = shown(lines)
	if next := int(offset) + len(lines); next < steps[step].lines || steps[step].status == running {
		page.NextOffset = &next
	}
	return page, nil
}

// cursor is a place in the log of all steps: before the header of a step (0),
// or after so many of its lines, less one.
type cursor struct{ step, place int }

func (c cursor) String() string { return fmt.Sprintf("%d.%d", c.step, c.place) }

func parseCursor(token string, steps int) (cursor, error) {
	var at cursor
	if token == "" {
		return at, nil
	}
	if _, err := fmt.Sscanf(token, "%d.%d", &at.step, &at.place); err != nil || at.String() != token || at.step < 0 || at.step > steps || at.place < 0 {
		return at, badRequest("the continuation token is not one of this log")
	}
	return at, nil
}

// pageFrom reads on from a place, a page at most.
func pageFrom(t *tx, j *job, steps []shownStep, at cursor) (page logPage, err error) {
	page.Lines = []shownLine{}
	space := pageBytes
	for at.step < len(steps) && len(page.Lines) < pageLines && space > 0 {
		st := steps[at.step]
		if st.status == notStarted {
			break
		}
		if at.place == 0 {
			page.Lines = append(page.Lines, shownLine{Header: st.name, Timestamp: unstamp(st.started)})
			at.place = 1
		}
		lines, err := linesOf(t, j, at.step, at.place-1, pageLines-len(page.Lines), space)
		if err != nil {
			return page, err
		}
		for _, line := range lines {
			space -= len(line.Text)
		}
		page.Lines = append(page.Lines, shown(lines)...)
		at.place += len(lines)
		if at.place-1 < st.lines {
			if len(lines) == 0 {
				break
			}
			continue
		}
		if st.status == running {
			break
		}
		at = cursor{step: at.step + 1}
	}
	if j.ended != "" && (at.step >= len(steps) || steps[at.step].status == notStarted) {
		return page, nil
	}
	page.NextToken = at.String()
	return page, nil
}

// linesOf reads lines of a step from an offset: at most count, and no further
// batch once size bytes are there.
func linesOf(t *tx, j *job, step, offset, count, size int) ([]cloud.LogLine, error) {
	var all []cloud.LogLine
	for count > 0 && size > 0 {
		var start, n int
		var packed []byte
		found, err := t.get([]any{&start, &n, &packed}, `SELECT start, count, lines FROM batches WHERE deployment = ? AND step = ? AND start <= ? ORDER BY start DESC LIMIT 1`, j.seq, step, offset)
		if err != nil {
			return nil, err
		}
		if !found || offset >= start+n {
			break
		}
		lines, err := unpackLines(packed)
		if err != nil {
			return nil, fmt.Errorf("read the log of deployment %s, step %d: %w", j.id, step, err)
		}
		lines = lines[offset-start:]
		lines = lines[:min(len(lines), count)]
		all = append(all, lines...)
		offset += len(lines)
		count -= len(lines)
		for _, line := range lines {
			size -= len(line.Text)
		}
	}
	return all, nil
}

func shown(lines []cloud.LogLine) []shownLine {
	out := make([]shownLine, 0, len(lines))
	for _, line := range lines {
		out = append(out, shownLine{Timestamp: line.Time, Line: line.Text})
	}
	return out
}
