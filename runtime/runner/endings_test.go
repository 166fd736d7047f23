package runner_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runner"
)

// forever is a script that does not end by itself. Its shell runs a trap at once, because it
// blocks in wait and not in sleep.
const forever = `while :; do sleep 1 & wait $!; done`

func TestRunEnd(t *testing.T) {
	t.Parallel()
	t.Run("step that exceeds its time limit is terminated", func(t *testing.T) {
		definition := steps(`trap 'echo asked to end; exit 0' TERM; echo started; `+forever, "echo never")
		definition.Steps[1].Timeout = cloud.Duration(300 * time.Millisecond)
		w := newFixture(t, definition)
		w.expireAfter(300*time.Millisecond, 1, "\nstarted\n")
		w.run(runtime.CodeFailed)
		w.wantSteps(runtime.Succeeded, runtime.Failed, runtime.NotStarted)
		w.wantLog(1, "started\nasked to end\n"+
			"Error: the step took longer than its time limit of 300ms and was stopped\n")
	})

	t.Run("job that exceeds its time limit is terminated", func(t *testing.T) {
		definition := steps("echo quick", "echo started; sleep 600")
		definition.Timeout = cloud.Duration(500 * time.Millisecond)
		w := newFixture(t, definition)
		w.expireAfter(500*time.Millisecond, 2, "\nstarted\n")
		w.run(runtime.CodeFailed)
		w.wantSteps(runtime.Succeeded, runtime.Succeeded, runtime.Failed)
		w.wantLog(2, "started\nError: the job took longer than its time limit of 500ms and was stopped\n")
	})

	t.Run("time limits of a job and of a step, and the grace period, last as long as they are set", func(t *testing.T) {
		for name, set := range map[string]func(*cloud.Definition, cloud.Duration){
			"job":  func(d *cloud.Definition, limit cloud.Duration) { d.Timeout = limit },
			"step": func(d *cloud.Definition, limit cloud.Duration) { d.Steps[1].Timeout = limit },
		} {
			t.Run(name, func(t *testing.T) {
				definition := steps("sleep 600")
				set(&definition, cloud.Duration(300*time.Millisecond))
				w := newFixture(t, definition)
				begin := time.Now()
				w.run(runtime.CodeFailed)
				if took := time.Since(begin); took < 300*time.Millisecond {
					t.Errorf("it took %s, want at least the time limit of 300ms", took)
				}
				w.wantLog(1, "Error: the "+name+" took longer than its time limit of 300ms and was stopped\n")
			})
		}
		t.Run("grace period", func(t *testing.T) {
			definition := steps(`trap '' TERM; echo started; ` + forever)
			definition.Steps[1].Timeout = cloud.Duration(time.Second)
			w := newFixture(t, definition)
			w.handoff.Grace = 0.5
			var expired time.Time
			w.options.Expire(time.Second, func() {
				w.awaitLog(1, "\nstarted\n")
				expired = time.Now()
			})
			w.run(runtime.CodeFailed)
			if took := time.Since(expired); took < 500*time.Millisecond {
				t.Errorf("the step ended %s after its time limit, want at least the grace period of 500ms", took)
			}
		})
	})

	t.Run("whole process group gets TERM and after the grace period KILL", func(t *testing.T) {
		definition := steps(`
		sh -c 'trap "echo child was asked; exit 0" TERM; echo $$ > ready; ` + forever + `' &
		sh -c 'trap "" TERM; echo $$ > stubborn; ` + forever + `' &
		trap 'echo parent was asked; exit 0' TERM
		while [ ! -s ready ] || [ ! -s stubborn ]; do sleep 0.01; done
		echo started; ` + forever)
		definition.Steps[1].Timeout = cloud.Duration(time.Second)
		w := newFixture(t, definition)
		w.handoff.Grace = 0.5
		w.expireAfter(time.Second, 1, "\nstarted\n")
		w.options.Expire(500*time.Millisecond, func() {
			w.awaitLog(1, "\nchild was asked\n")
			w.awaitLog(1, "\nparent was asked\n")
		})
		w.run(runtime.CodeFailed)
		w.wantLog(1, "started\n", "was asked\n", "was asked\n", "Error: the step took longer than its time limit of 1s")
		wantDead(t, filepath.Join(w.handoff.Root, "stubborn"))
	})

	t.Run("output of children is kept after the shell has ended", func(t *testing.T) {
		definition := steps(
			`sh -c 'trap "sleep 0.7; echo tidied up; exit 0" TERM; echo started; ` + forever + `' & ` + forever)
		definition.Steps[1].Timeout = cloud.Duration(300 * time.Millisecond)
		w := newFixture(t, definition)
		w.expireAfter(300*time.Millisecond, 1, "\nstarted\n")
		w.run(runtime.CodeFailed)
		w.wantLog(1, "started\n", "tidied up\n", "Error: the step took longer")
	})

	t.Run("forced stop kills the step immediately", func(t *testing.T) {
		w := newFixture(t, steps(`trap 'echo not yet' TERM; echo $$ > id; echo started; `+forever))
		forceStop := make(chan struct{})
		w.options.ForceStop = forceStop
		begin := time.Now()
		w.stopStep(func() {
			w.awaitLog(1, "\nnot yet\n")
			close(forceStop)
		})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("it took %s, want at most 10s", took)
		}
		w.wantLog(1, "started\nnot yet\nError: the job was stopped by a signal to its runner\n")
		wantDead(t, filepath.Join(w.handoff.Root, "id"))
	})

	t.Run("job with a stop request before its start runs no step", func(t *testing.T) {
		w := newFixture(t, steps("echo it ran > ran"))
		ctx, stop := context.WithCancel(t.Context())
		stop()
		w.runIn(ctx, runtime.CodeFailed)
		w.wantSteps(runtime.Succeeded, runtime.Failed)
		w.wantLog(1, "Error: the job was stopped by a signal to its runner\n")
		if _, err := os.Stat(filepath.Join(w.handoff.Root, "ran")); err == nil {
			t.Error("the step was run")
		}
	})

	t.Run("reason of a failure is the last line of the log", func(t *testing.T) {
		const memory = ", which often means that memory ran out\n"
		for script, want := range map[string]string{
			"kill -9 $$":                  "Error: the script was killed by signal 9 (killed)" + memory,
			"kill -11 $$":                 "Error: the script was killed by signal 11 (segmentation fault)\n",
			"sh -c 'kill -9 $$'; exit $?": "Error: the script ended with exit code 137" + memory,
			"no-such-program":             "Error: the script ended with exit code 127\n",
		} {
			w := newFixture(t, steps("echo started\n"+script))
			w.run(runtime.CodeFailed)
			w.wantLog(1, "started\n", want)
			if !strings.HasSuffix(w.record().Text(1), want) {
				t.Errorf("script %q: the last line of the log is not the reason:\n%s", script, w.record().Text(1))
			}
		}
	})

	t.Run("background processes do not delay the end of a step", func(t *testing.T) {
		for name, background := range map[string]string{
			"silent":    "sleep 600 &",
			"talkative": "(while :; do echo still here; sleep 0.02; done) &",
			"flooding":  "yes 'flood flood flood flood flood flood' &",
		} {
			t.Run(name, func(t *testing.T) {
				w := newFixture(t, steps(background+"\necho $! > id\necho done",
					"kill -0 $(cat id) && echo it runs; kill -9 $(cat id)"))
				w.run(runtime.CodeSucceeded)
				w.wantLog(1, "done\n")
				w.wantLog(2, "it runs\n")

				// Sending the lines of the flood takes processor time after the end of the step's output.
				first, second := w.record().Steps[1].Lines, w.record().Steps[2].Lines
				done := slices.IndexFunc(first, func(line cloud.LogLine) bool { return line.Text == "done\n" })
				if done < 0 || len(second) == 0 {
					t.Fatal("the log has no line of the shell, or none of the next step")
				}
				end := second[0].Time
				if name == "flooding" {
					end = first[len(first)-1].Time
				}
				if took := end.Sub(first[done].Time); took > 10*time.Second {
					t.Errorf("the step ended %s after its shell, want at most 10s", took)
				}
			})
		}
	})

	t.Run("all output before the end of the shell arrives", func(t *testing.T) {
		// The shell ends while the pipe is full and another process keeps it open.
		w := newFixture(t, steps(
			"sleep 600 & echo $! > id\nhead -c 60000 /dev/zero | tr '\\0' '\\n'; echo last", "kill $(cat id)"))
		w.run(runtime.CodeSucceeded)
		if lines := len(w.record().Steps[1].Lines); lines != 60_003 {
			t.Errorf("%d lines have arrived, want 60003", lines)
		}
		w.wantLog(1, "\nlast\n")
	})

	runner.InBubble(t, "job ends although the agent does not read its progress", func(t *testing.T) {
		code, record, took := virtualJob{
			scripts: []string{"echo one", "echo two"},
			edit:    func(_ *runtime.Handoff, o *runner.Options) { o.Progress, _ = net.Pipe() },
		}.run(t.Context(), t)
		if code != runtime.CodeSucceeded || record.Steps[2].Status != runtime.Succeeded {
			t.Errorf("code %d, steps %v, want success", code, record.Statuses())
		}
		if took > 10*time.Second {
			t.Errorf("it took %s, want at most 10s: the runner waits for the agent to read its progress", took)
		}
	})
}

// wantDead checks that the process whose id is in a file has ended.
func wantDead(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	noError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	noError(t, err)
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d still runs", pid)
}

// TestYield checks that a stopped runner reports the stop in its progress and then waits, so
// that the agent can log the reason before the runner reports the failure.
func TestYield(t *testing.T) {
	w := newFixture(t, steps(`trap 'echo unlocking; exit 0' TERM; echo started; `+forever, "echo never"))
	w.handoff.Yield = runtime.Seconds(0.3)
	if _, took := w.stopStep(func() {}); took < w.handoff.Yield.Duration() {
		t.Errorf("the runner ended %s after the stop request, want at least %s", took, w.handoff.Yield.Duration())
	}
	w.wantSteps(runtime.Succeeded, runtime.Failed, runtime.NotStarted)
	w.wantLog(1, "started\nunlocking\nError: the job was stopped by a signal to its runner")
	lines := strings.Count(w.record().Text(1), "\n")
	want := fmt.Sprintf(`{"step":1,"lines":%d,"status":"running","stopped":true}`, lines)
	if !strings.Contains(w.progress.String(), want) {
		t.Errorf("the progress is\n%s\nwant %s", w.progress.String(), want)
	}
}

func TestRunGone(t *testing.T) {
	t.Parallel()
	t.Run("job whose calls the service refuses is stopped and not reported", func(t *testing.T) {
		for _, status := range []int{404, 409, 410, 412, 401} {
			t.Run(strconv.Itoa(status), func(t *testing.T) {
				t.Parallel()
				gate := &gate{}
				w := newFixture(t, steps(`trap 'echo asked > asked; exit 0' TERM
				echo started
				while [ ! -e speak ]; do sleep 0.02; done
				echo this line meets the refusal
				`+forever, "echo never"), gate.filter)
				go func() {
					w.awaitLog(1, "\nstarted\n")
					w.awaitHeartbeat() // if it is refused, it counts as a call
					gate.status.Store(int64(status))
					if err := os.WriteFile(filepath.Join(w.handoff.Root, "speak"), nil, 0o600); err != nil {
						t.Error(err)
					}
				}()
				w.run(runtime.CodeGone)
				w.wantSteps(runtime.Succeeded, runtime.Running, runtime.NotStarted)
				if _, err := os.Stat(filepath.Join(w.handoff.Root, "asked")); err != nil {
					t.Error("the step got no SIGTERM")
				}
				calls := gate.refused.Load()
				switch final := status == 409 || status == 410; {
				case final && calls != 2:
					t.Errorf("the service got %d calls, want two: the refused lines, "+
						"and the heartbeat that confirms the refusal", calls)
				case !final && (calls < 3 || calls > 20):
					t.Errorf("the service got %d calls until the runner ended the job, want 3 to 20", calls)
				}
			})
		}
	})

	t.Run("rejection after a stop request ends the job without a report", func(t *testing.T) {
		t.Parallel()
		gate := &gate{}
		w := newFixture(t, steps("echo started; "+forever), gate.filter)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			w.awaitLog(1, "\nstarted\n")
			gate.status.Store(400)
			stop()
		}()
		w.runIn(ctx, runtime.CodeGone)
		w.wantSteps(runtime.Succeeded, runtime.Running)
	})
}
