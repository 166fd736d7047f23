package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// broken is a writer that fails.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// readAll reads lines of progress until the writer closes the connection.
func readAll(t *testing.T, agent net.Conn) []runtime.Progress {
	var all []runtime.Progress
	decoder := json.NewDecoder(agent)
	for {
		var p runtime.Progress
		if err := decoder.Decode(&p); err != nil {
			return all
		}
		all = append(all, p)
	}
}

func TestProgressWriter(t *testing.T) {
	InBubble(t, "agent that does not read does not block report and gets the latest value later", func(t *testing.T) {
		out, agent := net.Pipe()
		p := newProgress(out, slog.New(slog.DiscardHandler))
		begin := time.Now()
		for i := range 10_000 {
			p.report(runtime.Progress{Step: 1, Lines: i, Status: runtime.Running})
		}
		p.report(runtime.Progress{Step: 1, Lines: 10_000, Status: runtime.Failed})
		if took := time.Since(begin); took > 0 {
			t.Errorf("the calls of report took %s, want no time", took)
		}
		time.AfterFunc(time.Second, func() { p.close(); _ = out.Close() })
		time.Sleep(2 * time.Second)
		all := readAll(t, agent)
		last := runtime.Progress{Step: 1, Lines: 10_000, Status: runtime.Failed}
		if len(all) == 0 || len(all) > 3 || all[len(all)-1] != last {
			t.Errorf("the agent reads %+v, want at most three lines and the last status", all)
		}
	})

	InBubble(t, "agent that reads gets every value in order", func(t *testing.T) {
		out, agent := net.Pipe()
		p := newProgress(out, slog.New(slog.DiscardHandler))
		want := []runtime.Progress{
			{Step: 0, Status: runtime.Succeeded},
			{Step: 1, Status: runtime.Running},
			{Step: 1, Lines: 4, Status: runtime.Running},
		}
		go func() {
			for _, value := range want {
				p.report(value)
				synctest.Wait()
			}
			p.close()
			_ = out.Close()
		}()
		if got := readAll(t, agent); !slices.Equal(got, want) {
			t.Errorf("the agent reads %+v, want %+v", got, want)
		}
	})

	InBubble(t, "close waits a limited time and ends the writer", func(t *testing.T) {
		var log bytes.Buffer
		out, _ := net.Pipe()
		p := newProgress(out, slog.New(slog.NewTextHandler(&log, nil)))
		p.report(runtime.Progress{Step: 1, Status: runtime.Succeeded})
		begin := time.Now()
		p.close()
		if took := time.Since(begin); took != progressFlush {
			t.Errorf("close took %s, want %s", took, progressFlush)
		}
		if strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("the log is\n%s\nwant one warning", &log)
		}
		p.report(runtime.Progress{Step: 1, Lines: 1}) // has no effect after close
	}) // synctest.Test fails if the writer has not ended

	InBubble(t, "write error is logged once and does not block close", func(t *testing.T) {
		var log bytes.Buffer
		p := newProgress(broken{}, slog.New(slog.NewTextHandler(&log, nil)))
		for i := range 10 {
			p.report(runtime.Progress{Step: 1, Lines: i})
			synctest.Wait()
		}
		begin := time.Now()
		p.close()
		if took := time.Since(begin); took > 0 || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("close took %s, want no time; the log is\n%s\nwant one warning", took, &log)
		}
	})
}
