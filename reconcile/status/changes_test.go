package status

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestChanges(t *testing.T) {
	t.Run("each change is printed once", func(t *testing.T) {
		d, write := fixedDocument(), changeWriter(t)
		if first := write(d); !strings.Contains(first, "POOL") || !strings.Contains(first, "2026-11-21T10:18:00Z") {
			t.Errorf("the first text is\n%s", first)
		}
		d.Now = d.Now.Add(time.Second)
		if second := write(d); second != "" {
			t.Errorf("without a change the text is\n%s", second)
		}
		d.Pools[0].Phase, d.Pools[0].Until, d.Pools[0].Reason = "polling", time.Time{}, ""
		third := write(d)
		if !strings.HasPrefix(third, "2026-11-21T13:30:01Z\nprod ") || !strings.Contains(third, "polling") ||
			strings.Contains(third, "POOL") || strings.Contains(third, "config") {
			t.Errorf("after a change of one pool the text is\n%s", third)
		}
		d.Pools, d.Config.Rejection = d.Pools[:1], nil
		want := "2026-11-21T13:30:01Z\nfile no longer rejected\n" +
			"removed: pool a-pool-with-a-name-that-is-much-too-long-for-a-table, a-2\n"
		if ended := write(d); ended != want {
			t.Errorf("got %q, want %q", ended, want)
		}
	})
	t.Run("a long failure does not need more and more memory", func(t *testing.T) {
		d := fixedDocument()
		d.Pools[0].FailingSince = d.Now
		var changes Changes
		for range 10 {
			if err := changes.Write(io.Discard, d); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(changes.series[poolPart(d.Pools[0])].written); n != 1 {
			t.Errorf("%d texts of one state are stored, want 1", n)
		}
	})
	t.Run("repeated failure is printed once", func(t *testing.T) {
		d, write := fixedDocument(), changeWriter(t)
		p := &d.Pools[0]
		p.Stuck, p.Phase, p.Until, p.Reason, p.Problem = false, "polling", time.Time{}, "", ""
		write(d)

		// A poll fails, with another request id each time, and is retried.
		p.FailingSince = d.Now
		var printed []string
		for try := range 5 {
			d.Now = d.Now.Add(10 * time.Second)
			p.Phase, p.Until, p.Reason = "backoff", d.Now.Add(time.Minute), fmt.Sprintf("try %d of 6", try+2)
			p.Problem = fmt.Sprintf("the service answers 500 (request r-%d)", try)
			d.NotReady[1].Reason = p.Problem
			printed = append(printed, write(d))
			p.Phase, p.Until, p.Reason = "polling", time.Time{}, ""
			printed = append(printed, write(d))
		}
		if !strings.Contains(printed[0], "(request r-0)") || !strings.Contains(printed[0], "try 2 of 6") {
			t.Errorf("the first failure is\n%s", printed[0])
		}
		if again := strings.Join(printed[2:], ""); again != "" {
			t.Errorf("the repeated failures are\n%s", again)
		}

		// Another problem, the end of a job, and a success are written.
		p.Problem = "the service answers 401 (request r-9)"
		if text := write(d); !strings.Contains(text, "401") {
			t.Errorf("another problem is\n%s", text)
		}
		p.Jobs = nil
		if text := write(d); !strings.Contains(text, "0/5") {
			t.Errorf("the end of a job is\n%s", text)
		}
		p.FailingSince, p.Problem = time.Time{}, ""
		if text := write(d); !strings.Contains(text, "polling") || strings.Contains(text, "problem") {
			t.Errorf("the success is\n%s", text)
		}
		p.FailingSince, p.Problem = d.Now, "the service answers 401 (request r-10)"
		if text := write(d); !strings.Contains(text, "401") {
			t.Errorf("a failure after a success is\n%s", text)
		}
	})
}

// changeWriter returns a function that returns the text that Changes writes of a Document.
func changeWriter(t *testing.T) func(Document) string {
	var changes Changes
	return func(d Document) string {
		t.Helper()
		var out bytes.Buffer
		if err := changes.Write(&out, d); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
}
