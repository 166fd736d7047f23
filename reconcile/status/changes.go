package status

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Changes writes one Document after another. Of each Document it writes only the parts of the
// text that are new or have changed. The zero value has written nothing.
type Changes struct {
	before []line                  // stable parts of the last Document
	series map[string]failedSeries // by part
}

// failedSeries contains the texts about a pool that were written since its polls started to fail.
type failedSeries struct {
	since   time.Time
	written []string // stable texts
}

// Write writes the parts that are new or have changed, and a line for each part that has
// ended, below a line with the time. It ignores differences that each poll causes: see stable. While the polls of a
// pool fail, each state of the pool is written once.
func (c *Changes) Write(w io.Writer, d Document) error {
	// Use absolute times, because relative times differ in every Document.
	parts, compared := join(lines(d, absoluteTimes())), join(lines(stable(d), absoluteTimes()))
	failing := map[string]time.Time{}
	for _, p := range d.Pools {
		failing[poolPart(p)] = p.FailingSince
	}

	var b strings.Builder
	series := map[string]failedSeries{}
	for _, p := range compared {
		repeated := slices.Contains(c.before, p)
		if since := failing[p.part]; !since.IsZero() {
			s := c.series[p.part]
			if !s.since.Equal(since) {
				s = failedSeries{since: since}
			}
			if slices.Contains(s.written, p.text) {
				repeated = true
			} else {
				s.written = append(s.written, p.text)
			}
			series[p.part] = s
		}
		if !repeated {
			b.WriteString(textOf(parts, p.part))
		}
	}

	for _, p := range c.before {
		if textOf(compared, p.part) == "" {
			b.WriteString(ended(p.part) + "\n")
		}
	}
	c.before, c.series = compared, series
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, absoluteTimes().at(d.Now)+"\n"+b.String())
	return err
}

// ended returns the line for a part that a Document no longer has.
func ended(part string) string {
	switch part {
	case rejectionPart:
		return "file no longer rejected"
	default:
		return "removed: " + part
	}
}

var (
	requestID = regexp.MustCompile(` \(request [^)]*\)`)
	digits    = regexp.MustCompile(`[0-9]+`)
)

// stable returns a Document without the values that differ from poll to poll: the ids of
// requests, the time of the next poll, and the number of the retry. A pool whose polls fail
// has the same phase during a poll and between two polls.
func stable(d Document) Document {
	d.Pools, d.NotReady = slices.Clone(d.Pools), slices.Clone(d.NotReady)
	for i := range d.Pools {
		p := &d.Pools[i]
		p.Until = time.Time{}
		p.Problem = requestID.ReplaceAllString(p.Problem, "")
		p.Reason = digits.ReplaceAllString(requestID.ReplaceAllString(p.Reason, ""), "N")
		polling := p.Phase == string(runtime.PoolPolling) || p.Phase == string(runtime.PoolBackoff)
		if polling && !p.FailingSince.IsZero() {
			p.Phase = "failing"
		}
	}
	for i := range d.NotReady {
		d.NotReady[i].Reason = requestID.ReplaceAllString(d.NotReady[i].Reason, "")
	}
	return d
}

// textOf returns the text of a part, which is empty if there is no such part.
func textOf(parts []line, part string) string {
	for _, p := range parts {
		if p.part == part {
			return p.text
		}
	}
	return ""
}

// join joins adjacent lines of one part into one text.
func join(lines []line) (joined []line) {
	for _, l := range lines {
		if last := len(joined) - 1; last >= 0 && joined[last].part == l.part {
			joined[last].text += l.text + "\n"
		} else {
			joined = append(joined, line{l.part, l.text + "\n"})
		}
	}
	return joined
}
