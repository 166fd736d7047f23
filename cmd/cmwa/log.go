package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lmittmann/tint"

	"github.com/cmwa-project/cmwa/reconcile"
)

// logSwitch is a log whose level, format and sink can be replaced while it is in use.
// The first sink writes text to standard error.
type logSwitch struct {
	stderr  io.Writer
	logger  *slog.Logger
	current atomic.Pointer[logSink]
}

// logSink is where a log goes, and in what form.
type logSink struct {
	level   slog.Level
	format  string
	syslog  bool
	handler slog.Handler
	close   func()
}

func newSwitch(stderr io.Writer) *logSwitch {
	s := &logSwitch{stderr: stderr}
	sink, _ := s.open(reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}) // to standard error: it cannot fail
	s.current.Store(sink)
	s.logger = slog.New(switchHandler{s, nil})
	return s
}

// open makes the sink that the configuration asks for, without using it. It
// returns the one in use if that is the same.
func (s *logSwitch) open(spec reconcile.ProcessSpec) (*logSink, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(spec.LogLevel)); err != nil {
		return nil, fmt.Errorf("set up the log: %w", err)
	}
	now := s.current.Load()
	if now != nil && now.level == level && now.format == spec.LogFormat && now.syslog == spec.Syslog {
		return now, nil
	}
	sink := &logSink{level: level, format: spec.LogFormat, syslog: spec.Syslog, close: func() {}}
	out := s.stderr
	if spec.Syslog {
		writer, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "cmwa")
		if err != nil {
			return nil, fmt.Errorf("reach syslog: %w: start a syslog daemon, or set syslog to false", err)
		}
		out, sink.close = writer, func() { _ = writer.Close() }
	}
	if strings.EqualFold(spec.LogFormat, "json") {
		sink.handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})
	} else {
		sink.handler = tint.NewTextHandler(out, &tint.Options{
			Level: level, TimeFormat: "2006-01-02T15:04:05.000Z07:00", NoColor: !terminal(out),
		})
	}
	return sink, nil
}

// use makes a sink the one in use, and closes the one before.
func (s *logSwitch) use(sink *logSink) {
	if old := s.current.Swap(sink); old != sink {
		old.close()
	}
}

// discard closes a sink that was opened and never used.
func (s *logSwitch) discard(sink *logSink) {
	if sink != s.current.Load() {
		sink.close()
	}
}

func (s *logSwitch) close() { s.current.Load().close() }

// switchHandler hands each record to the sink in use.
type switchHandler struct {
	of   *logSwitch
	with []func(slog.Handler) slog.Handler // what the logger was given beside, in order
}

func (h switchHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of.current.Load().handler.Enabled(ctx, level)
}

func (h switchHandler) Handle(ctx context.Context, record slog.Record) error {
	handler := h.of.current.Load().handler
	for _, with := range h.with {
		handler = with(handler)
	}
	return handler.Handle(ctx, record)
}

func (h switchHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.and(func(inner slog.Handler) slog.Handler { return inner.WithAttrs(attrs) })
}

func (h switchHandler) WithGroup(name string) slog.Handler {
	return h.and(func(inner slog.Handler) slog.Handler { return inner.WithGroup(name) })
}

func (h switchHandler) and(with func(slog.Handler) slog.Handler) slog.Handler {
	return switchHandler{h.of, append(slices.Clone(h.with), with)}
}

// terminal reports whether w is a terminal that may be coloured.
func terminal(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == ""
}
