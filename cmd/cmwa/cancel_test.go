package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slowProgram has a resource whose creation takes the duration in the format, but ends early
// if pulumi cancels it.
const slowProgram = `name: tests
runtime: yaml
resources:
  slow:
    type: cmwatest:Delay
    properties: { create: %s }
`

// stackLocks returns the locks of a directory that is the backend of stacks.
func stackLocks(t *testing.T, state string) (locks []string) {
	t.Helper()
	directory := filepath.Join(state, ".pulumi", "locks")
	err := filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".json" { // the directory also has files with attributes
			locks = append(locks, path)
		}
		return nil // the directory may not exist yet
	})
	noError(t, err)
	return locks
}

// TestCancelPulumi stops a real pulumi while it creates a resource: by a cancellation,
// by a time limit, by the end of shutdown_timeout, and by a cancellation after a crash of the
// agent. Afterwards the stack is unlocked, and the next update succeeds.
func TestCancelPulumi(t *testing.T) {
	t.Parallel()
	const ended = "pulumi ended by itself "
	targets := []string{"docker"}
	if whole() {
		targets = append(targets, "process")
	}
	at(t, targets, func(t *testing.T, w *world) {
		// Prepare a stack whose backend has locks.
		state := filepath.Join(w.directory, "state")
		noError(t, os.MkdirAll(state, 0o755))
		settings := []string{"shutdown_timeout: 1s", "cancel_grace_period: 2m"}
		if w.target == "docker" {
			settings = append(settings, `docker: {volumes: ["`+state+":"+state+`"]}`)
		}
		deploy := func(create, timeout string) {
			t.Helper()
			w.queue("dev", order{
				Image: "cmwa/job:local",
				Env: map[string]any{
					"PULUMI_BACKEND_URL":       "file://" + state,
					"PULUMI_CONFIG_PASSPHRASE": map[string]string{"secret": "the passphrase of this test"},
				},
				Steps: []step{{Name: "pulumi update", Timeout: timeout, Run: "" +
					"mkdir -p program && cd program && cat >Pulumi.yaml <<'END'\n" + fmt.Sprintf(slowProgram, create) +
					"END\npulumi stack select --create --non-interactive dev || exit\n" +
					"pulumi up --yes --skip-preview --non-interactive --stack dev"}},
			})
		}
		// begin starts an update, and returns while pulumi creates the resource. It returns how long
		// the start took.
		begin := func() time.Duration {
			t.Helper()
			started := time.Now()
			deploy("10m", "")
			w.eventually("pulumi creates the resource", func() bool {
				return strings.Contains(w.log("dev"), "slow creating") && len(stackLocks(t, state)) == 1
			})
			return time.Since(started)
		}
		// released checks that the stack is not locked, and that the next update succeeds.
		released := func(agent *program) {
			t.Helper()
			w.eventually("the stack is unlocked", func() bool { return len(stackLocks(t, state)) == 0 })
			deploy("10ms", "")
			if status := w.await("dev", "succeeded", "failed"); status != "succeeded" {
				t.Errorf("the next update has ended as %s:\n%s\n%s", status, w.log("dev"), agent.output())
			}
		}

		// A cancellation.
		agent := w.agent(settings...)
		took := begin()
		w.call(http.MethodPost, w.path("dev")+"/cancel", nil, nil)
		agent.waitFor("job cancelled by the service")
		agent.waitFor("pulumi ended by itself after the interrupt")
		w.eventually("the log of the cancelled job names the cause and the end of pulumi", func() bool {
			log := w.log("dev")
			return strings.Contains(log, "Interrupting pulumi (process ") && strings.Contains(log, ended)
		})
		released(agent)

		// A time limit. On a slow machine, pulumi takes longer until it handles signals.
		limit := max(15*time.Second, 4*took).Round(time.Second)
		deploy("10m", fmt.Sprintf("%.0fs", limit.Seconds()))
		w.await("dev", "failed")
		w.wantLog("dev", "Interrupting pulumi (process ", ended, "longer than its time limit of "+limit.String())
		released(agent)

		// The end of shutdown_timeout, and a cancellation after a crash of the agent.
		begin()
		agent.signal(syscall.SIGTERM)
		agent.exit(0)
		w.wantLog("dev", ended, "Reason: the agent is stopping, and shutdown_timeout has passed")
		agent = w.agent(settings...)
		released(agent)
		begin()
		w.kill(agent)
		agent = w.agent(settings...)
		agent.waitFor("job resumed")
		w.call(http.MethodPost, w.path("dev")+"/cancel", nil, nil)
		agent.waitFor("pulumi ended by itself after the interrupt")
		released(agent)
	})
}
