package main

import (
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"strings"

	"github.com/lmittmann/tint"
	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/reconcile"
)

// openLog makes the logger that the configuration asks for, and what closes its
// sink.
func openLog(spec reconcile.ProcessSpec, stderr io.Writer) (*slog.Logger, func(), error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(spec.LogLevel)); err != nil {
		return nil, nil, fmt.Errorf("set up the log: %w", err)
	}
	sink, shut := stderr, func() {}
	if spec.Syslog {
		writer, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "cmwa")
		if err != nil {
			return nil, nil, fmt.Errorf("reach syslog: %w: start a syslog daemon, or set syslog to false", err)
		}
		sink, shut = writer, func() { _ = writer.Close() }
	}
	if strings.EqualFold(spec.LogFormat, "json") {
		return slog.New(slog.NewJSONHandler(sink, &slog.HandlerOptions{Level: level})), shut, nil
	}
	handler := tint.NewTextHandler(sink, &tint.Options{Level: level, TimeFormat: "2006-01-02T15:04:05.000Z07:00", NoColor: !terminal(sink)})
	return slog.New(handler), shut, nil
}

// terminal reports whether w is a terminal that may be coloured.
func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
}
