package main

import (
	"context"
	"log/slog"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// superviseBySystemd sends the messages of sd_notify(3) that a unit with Type=notify and WatchdogSec= waits for: that
// the agent is ready, that it still responds and, once stopping is done, that it stops. It returns when ctx is done. In
// a process that systemd has not started it does nothing.
//
// The agent responds as long as check returns. Otherwise the messages end, and systemd starts the agent again.
func superviseBySystemd(ctx context.Context, stopping <-chan struct{}, check func(), log *slog.Logger) {
	send := func(message string) (sent bool) {
		sent, err := systemd.SdNotify(false, message)
		if err != nil {
			log.Warn("cannot notify systemd", "message", message, "error", err)
		}
		return sent
	}
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read the limit of systemd's watchdog", "error", err)
	}
	if !send(systemd.SdNotifyReady) {
		return
	}
	var due <-chan time.Time
	if limit > 0 {
		ticker := time.NewTicker(limit / 2) // as sd_watchdog_enabled(3) recommends
		defer ticker.Stop()
		due = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			send(systemd.SdNotifyStopping)
			stopping = nil
		case <-due:
			check()
			send(systemd.SdNotifyWatchdog)
		}
	}
}
