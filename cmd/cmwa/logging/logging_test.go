package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/position"
)

// lines returns the lines of a log in JSON, without their time.
func lines(t *testing.T, out *bytes.Buffer) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(fields, "time")
		list = append(list, fields)
	}
	return list
}

func TestLog(t *testing.T) {
	t.Run("durations are seconds in JSON", func(t *testing.T) {
		var out bytes.Buffer
		log := New(&out, "json")
		log.With("retry_in", 20*time.Second).WithGroup("job").Info("job ended", "duration", 110*time.Millisecond,
			"step", 3)
		want := map[string]any{
			"level": "INFO", "msg": "job ended", "retry_in_seconds": 20.0,
			"job": map[string]any{"duration_seconds": 0.11, "step": 3.0},
		}
		if got := lines(t, &out); len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("durations have a unit in text", func(t *testing.T) {
		var out bytes.Buffer
		New(&out, "text").Info("job ended", "duration", 110*time.Millisecond)
		if !strings.HasSuffix(out.String(), " INF job ended duration=110ms\n") {
			t.Errorf("got %q", &out)
		}
	})
	t.Run("a logger follows the sink in use", func(t *testing.T) {
		var out bytes.Buffer
		log := New(&out, "")
		logger := log.With("pool", "a")
		sink, err := log.Open(reconcile.ProcessSpec{LogLevel: "warn", LogFormat: "json"})
		if err != nil {
			t.Fatal(err)
		}
		log.Use(sink)
		logger.Info("not logged")
		logger.Warn("poll failed")
		if got := lines(t, &out); len(got) != 1 || got[0]["pool"] != "a" {
			t.Errorf("got %v", got)
		}
	})
}

func TestLogFailure(t *testing.T) {
	problems := position.Problems{
		{File: "a.yaml", Line: 2, Column: 12, Path: "log_level", Message: "must be one of a, b", Hint: "write a"},
		{Path: "PULUMI_AGENT_SYSLOG", Message: "must be true or false"},
		{File: "a.yaml", Path: "token", Message: "is missing"}, // without a line
	}
	t.Run("each problem is one line of JSON", func(t *testing.T) {
		var out bytes.Buffer
		err := New(&out, "JSON").Failure(cli.Usage(fmt.Errorf("load: %w", problems)))
		want := []map[string]any{
			{"level": "ERROR", "msg": "agent failed", "error": "log_level: must be one of a, b",
				"file": "a.yaml", "line": 2.0, "column": 12.0, "hint": "write a"},
			{"level": "ERROR", "msg": "agent failed", "error": "PULUMI_AGENT_SYSLOG: must be true or false"},
			{"level": "ERROR", "msg": "agent failed", "error": "token: is missing", "file": "a.yaml"},
		}
		if got := lines(t, &out); fmt.Sprint(got) != fmt.Sprint(want) ||
			!errors.Is(err, cli.ExitError(cli.ExitUsage)) {
			t.Errorf("%v, got %v, want %v", err, got, want)
		}
	})
	t.Run("an error that is not a list of problems is one line of JSON", func(t *testing.T) {
		var out bytes.Buffer
		err := New(&out, "json").Failure(errors.New("no disk"))
		if got := lines(t, &out); len(got) != 1 || got[0]["error"] != "no disk" ||
			!errors.Is(err, cli.ExitError(cli.ExitFailure)) {
			t.Errorf("%v, got %v", err, got)
		}
	})
	t.Run("in text, the error is returned and not logged", func(t *testing.T) {
		var out bytes.Buffer
		if err := New(&out, "text").Failure(problems); !errors.As(err, new(position.Problems)) || out.Len() > 0 {
			t.Errorf("%v, got %q", err, &out)
		}
	})
}
