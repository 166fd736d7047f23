package main

import (
	"log/slog"
	"net/http"
	"path/filepath"
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
