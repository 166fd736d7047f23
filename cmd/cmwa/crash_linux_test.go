package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// TestRunCrash kills the runner of a job, removes its instance, simulates a restart of the
// machine, or removes the state directory of the agent. TestKillPoints kills the agent.
func TestRunCrash(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		service := w.observe()
		const ended = "the instance of this job ended before the runner reported an outcome"
		failed := func(reason string) outcome { return outcome{status: "failed", reason: reason, runs: 1, claims: 1} }
		all := stories{
			"runner killed": func(w *world) {
				agent := w.hangingJob(service)
				since := time.Now()
				w.killRunner()
				w.judge(service, agent, failed(ended).at(since))
			},
			"instance removed": func(w *world) {
				agent := w.hangingJob(service)
				since := time.Now()
				w.endInstance()
				w.judge(service, agent, failed("the instance of this job").at(since))
			},
			"runner killed while the agent is down": func(w *world) {
				w.kill(w.hangingJob(service))
				w.killRunner()
				since := time.Now()
				w.judge(service, w.agent(), failed(ended).at(since))
			},
			"reboot": func(w *world) {
				w.kill(w.hangingJob(service))
				w.endInstance()
				since := time.Now()
				w.judge(service, w.agent(), failed("").at(since))
			},
			"state directory lost": func(w *world) { w.loseState(service) },
		}
		for i, name := range slices.Sorted(maps.Keys(all)) {
			if !inTurn(i, w.target, []string{"docker", "process", "kubernetes"}) {
				delete(all, name)
			}
		}
		all.run(w, service)
	})
}

// at returns the outcome with the time of the fault, or of the agent's restart after it.
func (o outcome) at(since time.Time) outcome {
	o.since = since
	return o
}

// hangingJob starts an agent and a job that runs until it is killed.
func (w *world) hangingJob(service *observer) *program {
	w.t.Helper()
	return w.startedJob(oneStep(service.witness(w) + "\necho running; sleep 600"))
}

// startedJob starts an agent and a job, and blocks until the job runs.
func (w *world) startedJob(job order) *program {
	w.t.Helper()
	w.queue(w.stack(), job)
	agent := w.agent()
	w.waitStarted(w.stack())
	return agent
}

// killRunner ends the runner of the world's only job with SIGKILL.
func (w *world) killRunner() {
	w.t.Helper()
	if w.target == "docker" {
		w.engine("kill", "--signal", "KILL", w.container(w.stack()))
		return
	}
	file, mark := "environ", regexp.QuoteMeta(w.directory)
	if w.cluster != nil {
		file, mark = "cgroup", string(w.worker(w.stack()).UID)
		mark = strings.ReplaceAll(mark, "-", "[-_]") // a cgroup's name has dashes or underscores
	}
	killed := false
	for _, pid := range processesWith(file, mark) {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		program, _, _ := bytes.Cut(command, []byte{0})
		if filepath.Base(string(program)) == "workflow-runner" {
			w.must(syscall.Kill(pid, syscall.SIGKILL))
			killed = true
		}
	}
	if !killed {
		w.t.Fatal("the runner of the job was not found")
	}
}

// processesWith returns the processes whose file in /proc has a match of a regular expression.
func processesWith(file, expression string) (pids []int) {
	match := regexp.MustCompile(expression).Match
	all, _ := filepath.Glob("/proc/[0-9]*/" + file)
	for _, path := range all {
		if content, err := os.ReadFile(path); err == nil && match(content) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// endInstance ends the instance of the world's only job, as a restart of the machine or an
// operator does.
func (w *world) endInstance() {
	w.t.Helper()
	switch w.target {
	case "docker":
		w.engine("rm", "--force", w.container(w.stack()))
	case "kubernetes":
		pods := kubetest.Client(w.t, w.cluster.Admin, corev1.SchemeGroupVersion).Delete().
			Namespace(w.cluster.Name).Resource("pods")
		options := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		w.must(pods.Name(w.worker(w.stack()).Name).Body(options).Do(w.t.Context()).Error())
	default:
		for _, pid := range processesWith("environ", regexp.QuoteMeta("CMWA_JOB_DIRECTORY="+w.directory)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// loseState kills the agent and removes its state directory. The job finishes, and its runner
// reports the outcome. Its container is not removed, because the next agent cannot know that
// the container belonged to an earlier run of the same agent.
func (w *world) loseState(service *observer) {
	w.t.Helper()
	w.kill(w.startedJob(oneStep(service.witness(w) + "\necho running; sleep 3; echo finished")))
	w.must(os.RemoveAll(filepath.Join(w.directory, "state")))
	again := w.agent()
	again.waitFor("converged")
	w.await(w.stack(), "succeeded")
	if saw, _ := service.of(w, w.stack()); saw != (observed{claims: 1, runs: 1, finals: 1}) {
		w.t.Errorf("the service has received %+v, want 1 claim, 1 run and 1 final status", saw)
	}
	again.wantPrinted(0, "job resumed")
	if w.target == "docker" {
		w.engine("rm", "--force", w.container(w.stack())) // which no agent knows
	}
}

// TestRunLostClaim kills an agent after it has fetched the definition of a job and before the
// job has an instance, and removes the agent's state directory. Only the service can end the job.
func TestRunLostClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process", "--heartbeat-limit", "3s")
	service := w.observe()
	stories{"claimed job": func(w *world) {
		w.queue(w.stack(), w.shortJob(service))
		w.runUntil(killpoint.DefinitionFetched)
		w.must(os.RemoveAll(filepath.Join(w.directory, "state")))
		since := time.Now()
		again := w.agent()
		if status := w.ended(w.stack(), since.Add(knownLimit)); status != "failed" {
			t.Errorf("the job is %s, want failed", status)
		}
		if saw, _ := service.of(w, w.stack()); saw != (observed{claims: 1}) {
			t.Errorf("the service has received %+v, want only one claim", saw)
		}
		again.signal(syscall.SIGTERM)
		again.exit(0)
	}}.run(w, service)
}

// TestRunEngineCrash kills the daemons of a Docker engine while a job runs.
func TestRunEngineCrash(t *testing.T) {
	t.Parallel()
	success := outcome{status: "succeeded", runs: 1, claims: 1}
	for name, story := range map[string]struct {
		options []string
		fault   func(e *ownEngine)
		sleep   int // seconds until the job ends by itself
		end     outcome
	}{
		"dockerd killed with live-restore": {[]string{"--live-restore"}, (*ownEngine).restart, 3, success},
		"dockerd killed without live-restore": {
			nil, (*ownEngine).restart, 600, // the engine stops the container when it starts again
			outcome{status: "failed", reason: "Error: the job was stopped", runs: 1, claims: 1},
		},
		"containerd killed": {nil, (*ownEngine).killContainerd, 3, success},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "process")
			engine := w.newEngine(story.options...)
			service := w.observe()
			stories{name: func(w *world) {
				agent := w.startedJob(oneStep(
					service.witness(w) + fmt.Sprintf("\necho running; sleep %d; echo finished", story.sleep)))
				story.fault(engine)
				w.judge(service, agent, story.end.at(time.Now()))
			}}.run(w, service)
		})
	}
}
