package main

import (
	"path/filepath"
	"testing"
	"time"
)

// smallDiskSize is the size in bytes of the disks that tests fill.
const smallDiskSize = 1 << 20

// TestRunDiskFull runs jobs while a disk of the agent is full.
func TestRunDiskFull(t *testing.T) {
	t.Parallel()
	t.Run("state directory", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		service := w.observe()
		end := outcome{status: "succeeded", runs: 1, claims: 1}
		stories{
			"before the claim": func(w *world) {
				state := filepath.Join(w.directory, "state")
				smallDisk(w.t, state, smallDiskSize)
				agent := w.agent()
				agent.waitFor("converged")
				free := fill(w.t, state)
				w.queue(w.stack(), w.shortJob(service))
				w.await(w.stack(), "succeeded")
				agent.wantPrinted(0, "cannot record") // the journal has an empty file for the record
				free()
				w.judge(service, agent, end.at(time.Now()))
			},
			"while the job runs and its agent is killed": func(w *world) {
				state := filepath.Join(w.directory, "state")
				smallDisk(w.t, state, smallDiskSize)
				agent := w.startedJob(oneStep(service.witness(w) + "\necho running; sleep 3; echo finished"))
				free := fill(w.t, state)
				w.kill(agent)
				since := time.Now()
				again := w.agent()
				w.await(w.stack(), "succeeded")
				again.waitFor("job succeeded")
				free()
				w.judge(service, again, end.at(since))
			},
		}.run(w, service)
	})
	t.Run("shared directory", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker")
		service := w.observe()
		stories{"job": func(w *world) {
			shared := w.shared()
			smallDisk(w.t, shared, smallDiskSize) // smaller than the runner
			w.queue(w.stack(), w.shortJob(service))
			agent := w.agent("shared_volume_directory: " + shared)
			w.judge(service, agent, outcome{
				status: "failed", reason: "no space left on device", claims: 1, since: time.Now(),
			})
		}}.run(w, service)
	})
	t.Run("directory of the Docker engine", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		engine := w.newEngine()
		service := w.observe()
		stories{"job": func(w *world) {
			smallDisk(w.t, filepath.Join(engine.data(), "containers"), smallDiskSize)
			free := fill(w.t, filepath.Join(engine.data(), "containers"))
			w.queue(w.stack(), w.shortJob(service))
			agent := w.agent()
			w.await(w.stack(), "failed")
			free()
			w.judge(service, agent, outcome{
				status: "failed", reason: "no space left on device", claims: 1, since: time.Now(),
			})
		}}.run(w, service)
	})
}
