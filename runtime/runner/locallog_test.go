package runner

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

func linesOf(texts ...string) (lines []cloud.LogLine) {
	for _, text := range texts {
		lines = append(lines, cloud.LogLine{Text: text})
	}
	return lines
}

// writes keeps what each call of Write gets.
type writes struct{ all []string }

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	return len(p), nil
}

func TestLocalLog(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		var none *localLog
		none.add(1, linesOf("first\n"))
		none.close()
	})
	t.Run("writes each line with its step", func(t *testing.T) {
		var out bytes.Buffer
		l := newLocalLog(&out)
		l.add(1, linesOf("first\n", "second, without an end", "\n"))
		l.add(2, linesOf("third\n"))
		l.close()
		l.add(2, linesOf("after the end\n"))
		want := "step 1 | first\nstep 1 | second, without an end\nstep 1 | \nstep 2 | third\n"
		if got := out.String(); got != want {
			t.Errorf("the log is %q, want %q", got, want)
		}
	})
	t.Run("cuts long lines, each part with its step", func(t *testing.T) {
		var out bytes.Buffer
		l := newLocalLog(&out)
		long := strings.Repeat("é", 3*runtime.MaxLocalLine/2)
		l.add(1, linesOf(long+"\n"))
		l.close()
		var joined string
		for line := range strings.Lines(out.String()) {
			if !runtime.IsLocalLine(line) || len(line) > runtime.MaxLocalLine+20 {
				t.Errorf("a line has %d bytes and begins with %.20q", len(line), line)
			}
			joined += strings.TrimSuffix(strings.TrimPrefix(line, "step 1 | "), "\n")
		}
		if joined != long {
			t.Errorf("the parts have %d bytes, want the %d of the line", len(joined), len(long))
		}
	})
	t.Run("writes whole lines that a pipe takes at once", func(t *testing.T) {
		out := &writes{}
		l := newLocalLog(out)
		l.add(1, linesOf(slices.Repeat([]string{strings.Repeat("x", 1500) + "\n"}, 10)...))
		l.close()
		if len(out.all) < 5 {
			t.Errorf("only %d writes", len(out.all))
		}
		for _, text := range out.all {
			if len(text) > 4096 || !strings.HasPrefix(text, "step 1 | ") || !strings.HasSuffix(text, "x\n") {
				t.Errorf("a write has %d bytes: %.12q", len(text), text)
			}
		}
	})
	t.Run("ends at its limit with a note", func(t *testing.T) {
		var out bytes.Buffer
		l := newLocalLog(&out)
		l.remaining = len("step 1 | first\n")
		l.add(1, linesOf("first\n"))
		l.add(2, linesOf("second\n"))
		l.add(3, linesOf("third\n"))
		l.close()
		want := "step 1 | first\nstep 2 | [only the service has the following lines of this job]\n"
		if got := out.String(); got != want {
			t.Errorf("the log is %q, want %q", got, want)
		}
	})
	t.Run("drops lines that no process reads, and counts them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reader, writer := io.Pipe()
			l := newLocalLog(writer)
			long := strings.Repeat("x", runtime.MaxLocalLine) + "\n"
			for range maxLocalQueue/len(long) + 10 {
				l.add(1, linesOf(long))
			}
			_, _ = l.Write([]byte("a message of the runner\n"))
			lost := l.lost
			var text []byte
			read := make(chan struct{})
			go func() { defer close(read); text, _ = io.ReadAll(reader) }()
			l.close()
			_ = writer.Close()
			<-read
			want := fmt.Sprintf("\na message of the runner\nstep 1 | [only the service has these lines: %d]\n", lost)
			if lost == 0 || !strings.HasSuffix(string(text), want) {
				t.Errorf("%d lines are lost, and the log ends with %q", lost, text[max(0, len(text)-200):])
			}
		})
	})
	t.Run("closes although no process reads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reader, writer := io.Pipe()
			l := newLocalLog(writer)
			l.add(1, linesOf("line\n"))
			begin := time.Now()
			l.close()
			if took := time.Since(begin); took != progressFlush {
				t.Errorf("close took %v, want %v", took, progressFlush)
			}
			_ = reader.Close() // ends the write
			<-l.done
		})
	})
}
