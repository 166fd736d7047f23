package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/agentid"
)

func TestExecutors(t *testing.T) {
	t.Run("pools share the executor of the Docker engine", func(t *testing.T) {
		_, socket := serve(t, "unix", filepath.Join(t.TempDir(), "engine"), http.HandlerFunc(idleEngine))
		executors := &executors{
			environ: environment{"DOCKER_HOST": "unix://" + socket}, agent: &agentid.Agent{ID: "agent"},
			log: slog.New(slog.DiscardHandler),
		}
		first, _, err := executors.open(t.Context(), "docker")
		noError(t, err)
		second, _, err := executors.open(t.Context(), "docker")
		noError(t, err)
		if first != second {
			t.Error("two pools have two executors")
		}
	})
	t.Run("processes are not isolated: one warning is logged", func(t *testing.T) {
		t.Setenv("TMPDIR", t.TempDir())
		var log bytes.Buffer
		executors := &executors{agent: &agentid.Agent{ID: "agent"}, log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 2 { // a pool and its replacement
			_, _, err := executors.open(t.Context(), "process")
			noError(t, err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") ||
			!strings.Contains(text, "not isolated") {
			t.Errorf("the log is %q, want one warning", text)
		}
	})
	t.Run("an engine that did not respond is tried again", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "engine")
		executors := &executors{
			environ: environment{"DOCKER_HOST": "unix://" + path}, agent: &agentid.Agent{ID: "agent"},
			log: slog.New(slog.DiscardHandler),
		}
		if _, _, err := executors.open(t.Context(), "docker"); err == nil {
			t.Error("a missing engine gave no error")
		}
		serve(t, "unix", path, http.HandlerFunc(idleEngine))
		_, _, err := executors.open(t.Context(), "docker")
		noError(t, err)
	})
}
