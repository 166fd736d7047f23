package logging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lmittmann/tint"
	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Log is a log whose level, format and sink can be replaced while it is in use. It is
// safe for concurrent use.
type Log struct {
	*slog.Logger
	stderr  io.Writer
	current atomic.Pointer[Sink]
}

// Sink is the destination, the format and the level of a log.
type Sink struct {
	level   slog.Level
	format  string
	syslog  bool
	handler slog.Handler
	close   func()
}

// New returns a log that writes to standard error. Every format except json means text.
func New(stderr io.Writer, format string) *Log {
	l := &Log{stderr: stderr}
	sink, _ := l.Open(reconcile.ProcessSpec{LogLevel: "info", LogFormat: format}) // no error without syslog
	l.current.Store(sink)
	l.Logger = slog.New(handler{l, nil})
	return l
}

// Open opens the sink of a configuration, without using it. If the sink in use has the
// same level, format and destination, Open returns that sink.
func (l *Log) Open(spec reconcile.ProcessSpec) (*Sink, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(spec.LogLevel)); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	now := l.current.Load()
	if now != nil && now.level == level && now.format == spec.LogFormat && now.syslog == spec.Syslog {
		return now, nil
	}

	sink := &Sink{level: level, format: spec.LogFormat, syslog: spec.Syslog, close: func() {}}
	out := l.stderr
	if spec.Syslog {
		writer, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "cmwa")
		if err != nil {
			return nil, fmt.Errorf("connect to syslog: %w: start a syslog daemon, or set syslog to false", err)
		}
		out, sink.close = writer, func() { _ = writer.Close() }
	}

	if sink.isJSON() {
		sink.handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds})
	} else {
		sink.handler = tint.NewTextHandler(out, &tint.Options{
			Level: level, TimeFormat: "2006-01-02T15:04:05.000Z07:00", NoColor: !colored(out),
		})
	}
	return sink, nil
}

func (s *Sink) isJSON() bool { return strings.EqualFold(s.format, "json") }

// inSeconds replaces a duration by its seconds, and adds the unit to its key.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
	}
	return a
}

// Use makes a sink the one in use, and closes the previous one.
func (l *Log) Use(sink *Sink) {
	if old := l.current.Swap(sink); old != sink {
		old.close()
	}
}

// Discard closes a sink that was opened and never used.
func (l *Log) Discard(sink *Sink) {
	if sink != l.current.Load() {
		sink.close()
	}
}

// OnClose makes the log call closed when it closes the sink that is in use now.
func (l *Log) OnClose(closed func()) {
	sink := *l.current.Load()
	inner := sink.close
	sink.close = func() { inner(); closed() }
	l.current.Store(&sink)
}

// Close closes the sink in use.
func (l *Log) Close() { l.current.Load().close() }

// Failure logs the error that ends the program if the format is json: one line for each
// problem. It then returns the exit code as a [cli.ExitError], so that nothing else is
// printed. If the format is not json, or err is nil or a [cli.ExitError] already, Failure
// logs nothing and returns err.
func (l *Log) Failure(err error) error {
	if _, printed := errors.AsType[cli.ExitError](err); printed || err == nil || !l.current.Load().isJSON() {
		return err
	}
	const message = "agent failed"
	problems, ok := errors.AsType[position.Problems](err)
	if !ok {
		l.Error(message, "error", err)
	}
	for _, p := range problems {
		text := p
		text.File, text.Line, text.Column, text.Hint = "", 0, 0, ""
		attributes := []any{"error", text.String()}
		if p.File != "" {
			attributes = append(attributes, "file", p.File)
		}
		if p.Line > 0 {
			attributes = append(attributes, "line", p.Line, "column", p.Column)
		}
		if p.Hint != "" {
			attributes = append(attributes, "hint", p.Hint)
		}
		l.Error(message, attributes...)
	}
	return cli.ExitError(cli.Code(err))
}

// handler passes each record to the sink in use.
type handler struct {
	log    *Log
	scopes []func(slog.Handler) slog.Handler // attributes and groups of the logger, in order
}

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.log.current.Load().handler.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, record slog.Record) error {
	inner := h.log.current.Load().handler
	for _, scope := range h.scopes {
		inner = scope(inner)
	}
	return inner.Handle(ctx, record)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(inner slog.Handler) slog.Handler { return inner.WithAttrs(attrs) })
}

func (h handler) WithGroup(name string) slog.Handler {
	return h.with(func(inner slog.Handler) slog.Handler { return inner.WithGroup(name) })
}

func (h handler) with(scope func(slog.Handler) slog.Handler) slog.Handler {
	return handler{h.log, append(slices.Clone(h.scopes), scope)}
}

// colored reports whether w is a terminal that may show colours.
func colored(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
}
