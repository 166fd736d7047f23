package runner

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
)

// failingWriter writes into a buffer until it fails.
type failingWriter struct {
	bytes.Buffer
	err   error
	calls int
}

func (w *failingWriter) Write(p []byte) (int, error) {
	w.calls++
	if w.err != nil {
		return 0, w.err
	}
	return w.Buffer.Write(p)
}

func TestLocalLog(t *testing.T) {
	lines := []cloud.LogLine{{Text: "first\n"}, {Text: "second, without an end"}, {Text: "third\n"}}

	t.Run("none", func(t *testing.T) {
		var none *localLog
		none.add(1, lines)
	})
	t.Run("ends at its limit with a note", func(t *testing.T) {
		w := &failingWriter{}
		l := &localLog{w: w, remaining: len("step 1 | first\n") + 5}
		l.add(1, lines)
		l.add(2, lines)
		want := "step 1 | first\nstep 1 | [only the service has the following lines of this job]\n"
		if got := w.String(); got != want {
			t.Errorf("the log is %q, want %q", got, want)
		}
	})
	t.Run("stays silent after an error", func(t *testing.T) {
		w := &failingWriter{err: errors.New("closed pipe")}
		l := &localLog{w: w, remaining: 1 << 10}
		l.add(1, lines)
		w.err = nil
		l.add(1, lines)
		if got := w.String(); strings.Contains(got, "first") {
			t.Errorf("the log goes on after an error: %q", got)
		}
	})
}
