package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// Limits of the tests that kill agents.
const (
	knownLimit    = time.Minute // from a restart until the service knows the outcome and nothing is left
	storiesAtOnce = 5           // stories of one target that run at a time; they mostly wait
)

// largeText makes a handoff so large that the agent sends it in a ConfigMap. An annotation
// of the Pod then makes the kubelet read the ConfigMap at once.
var largeText = strings.Repeat("0123456789abcdef", 12_000)

// TestKillPoints kills the agent at each point of a job, starts it again, and checks that
// the job ran once, was reported once, and left nothing.
func TestKillPoints(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		service := w.observe()
		stories := stories{}
		for i, entry := range killEntries {
			present := slices.DeleteFunc([]string{"docker", "kubernetes", "process"}, func(target string) bool {
				return entry.absent[target] != ""
			})
			if slices.Contains(present, w.target) && inTurn(i, w.target, present) {
				stories[string(entry.point)] = func(w *world) { w.killAt(service, entry) }
			}
		}
		stories.run(w, service)
	})
}

// stories are scenarios that use one service, by name. Each story runs one job, disturbs
// it, and checks how the job ends. Each story has its own world.
type stories map[string]func(w *world)

// run runs all stories, at most storiesAtOnce at a time. Each story has its own pool. Its
// agents send their requests through the observer.
func (s stories) run(w *world, service *observer) {
	w.t.Helper()
	bin, err := staticPrograms()
	w.must(err)
	var all sync.WaitGroup
	defer all.Wait()
	free := make(chan struct{}, storiesAtOnce)
	for name, story := range s {
		all.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			w.t.(*testing.T).Run(name, func(t *testing.T) {
				own := &world{
					t: t, directory: t.TempDir(), bin: bin, url: service.url, user: w.user, target: w.target,
					cluster: w.cluster, docker: w.docker, ids: map[string]string{},
				}
				pool := own.createPool(own.stack())
				own.pool, own.poolID = pool.token, pool.id
				story(own)
			})
		})
	}
}

// killAt runs a job whose agent is killed at a point. It then starts the agent again, and
// checks the job.
func (w *world) killAt(service *observer, entry killEntry) {
	w.t.Helper()
	job, settings := w.killedJob(service, entry.point)
	w.queue(w.stack(), job)
	w.runUntil(entry.point, settings...)
	end := outcome{status: "succeeded", runs: 1, claims: 1, since: time.Now()}
	if entry.outcome == requeued {
		end.claims = 2
	}
	w.judge(service, w.agent(settings...), end)
}

// runUntil starts an agent, and blocks until the agent is killed at a point.
func (w *world) runUntil(point killpoint.Point, settings ...string) {
	w.t.Helper()
	agent := w.agentWith([]string{"CMWA_KILL_AT=" + string(point)}, settings...)
	if !agent.ends(storyLimit) {
		w.t.Fatalf("the agent does not reach the point %s:\n%s", point, agent.output())
	}
	if status, ok := agent.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		w.t.Fatalf("the agent ended with %v, and was not killed at the point %s:\n%s",
			agent.cmd.ProcessState, point, agent.output())
	}
}

// killedJob returns the job for a point, and the settings of its agent.
func (w *world) killedJob(service *observer, point killpoint.Point) (order, []string) {
	w.t.Helper()
	job := w.shortJob(service)
	switch {
	case w.target == "docker" && point == killpoint.ImagePulling:
		job.Image = serveBaseImage(w)
		return job, []string{"pull_image: true"}
	case w.target == "docker" && point == killpoint.DirectoryCreated:
		return job, []string{"shared_volume_directory: " + w.shared()}
	case point == killpoint.HandoffStored:
		job.Steps[0].Run += "\n: " + largeText
	}
	return job, nil
}

// shortJob returns a job that takes a second. Its script reports each of its runs to the
// observer.
func (w *world) shortJob(service *observer) order {
	return oneStep(service.witness(w) + "\nsleep 1; echo finished")
}

// stack returns the name of a story's own stack. Stories share a service, and a stack runs
// only one deployment at a time.
func (w *world) stack() string {
	name := w.t.Name()
	return strings.ReplaceAll(name[strings.LastIndex(name, "/")+1:], "_", "-")
}

// shared creates a directory for shared_volume_directory.
func (w *world) shared() string {
	w.t.Helper()
	directory := filepath.Join(w.directory, "shared")
	w.must(os.Mkdir(directory, 0o755))
	return directory
}

// outcome is how a job must end.
type outcome struct {
	status string    // of the deployment
	reason string    // a text that the log must contain
	runs   int       // how often the script runs
	claims int       // how often agents claim the job
	since  time.Time // when the agent was started again, or when the fault occurred
}

// judge checks that the job of a story ends in time with the wanted outcome, is reported once,
// and leaves nothing behind. Then it ends the agent.
func (w *world) judge(service *observer, agent *program, want outcome) {
	w.t.Helper()
	t, stack := w.t, w.stack()

	// The service knows the expected outcome in time.
	status := w.ended(stack, want.since.Add(knownLimit))
	known := time.Since(want.since)
	if status != want.status {
		t.Fatalf("the job is %s after %s\n%s\n%s", status, known.Round(time.Millisecond), w.log(stack), w.logs())
	}
	if status == "succeeded" {
		w.wantSteps(stack, "succeeded", "succeeded")
		if log := w.log(stack); strings.Count(log, "\nfinished\n") != 1 {
			t.Errorf("the log does not contain the last line of the step exactly once:\n%s", log)
		}
	}
	w.wantLog(stack, want.reason)

	// The job was claimed, ran and was reported as often as expected.
	saw, job := service.of(w, stack)
	if saw.claims != want.claims || saw.runs != want.runs || saw.finals != 1 {
		t.Errorf("the job was claimed %d times, ran %d times and was reported %d times; want %d, %d and 1\n%s",
			saw.claims, saw.runs, saw.finals, want.claims, want.runs, w.logs())
	}

	// The running agent removes everything that the job has left. After the end of the agent,
	// there is no process either.
	left := w.remains(stack, job)
	for len(left) > 0 && time.Since(want.since) < knownLimit {
		agent.ends(10 * lookEvery)
		left = w.remains(stack, job)
	}
	clean := time.Since(want.since)
	if len(left) > 0 {
		t.Errorf("not removed after %s: %s\n%s", clean.Round(time.Second), strings.Join(left, ", "), w.logs())
	}
	agent.waitFor("converged") // before that, a TERM may end the agent with another exit code
	agent.signal(syscall.SIGTERM)
	agent.exit(0)
	if left := append(w.remains(stack, job), w.processes()...); len(left) > 0 {
		t.Errorf("not removed after the agent's end: %s\n%s", strings.Join(left, ", "), agent.output())
	}
	agent.wantPrinted(0, " ERR ")
	t.Logf("known after %s, clean after %s", known.Round(time.Millisecond), clean.Round(time.Millisecond))
}
