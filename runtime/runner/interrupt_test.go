package runner_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// pretend makes the test program behave like a program of a step if it was started under the
// name of that program. Otherwise it returns, and the tests run.
func pretend() {
	switch filepath.Base(os.Args[0]) {
	case "pulumi":
		pretendPulumi()
	case "pulumi-resource-test":
		signals := notify()
		go func() {
			for s := range signals {
				fmt.Println("plugin got", s)
			}
		}()
		_, _ = io.Copy(io.Discard, os.Stdin) // until pulumi ends
		os.Exit(0)
	case "executor":
		pretendExecutor()
	case "tool":
		signals := notify()
		fmt.Println("started")
		fmt.Println("tool got", <-signals)
		os.Exit(1)
	}
}

func TestMain(m *testing.M) {
	pretend()
	// These tests mostly wait for processes and for retries, so more of them than processors
	// can run at the same time. The flag -parallel sets another number.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func notify() chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return signals
}

// exitOn ends the program if there is an error.
func exitOn(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}

// pretendPulumi is a pulumi with a lock and a plugin. The first signal cancels its operation,
// which takes the time in the first argument. The second signal ends it, unless there is a
// second argument.
func pretendPulumi() {
	signals := notify()
	plugin := exec.Command("pulumi-resource-test")
	plugin.Stdout = os.Stdout
	plugin.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err := plugin.StdinPipe()
	exitOn(err)
	exitOn(plugin.Start())
	exitOn(os.WriteFile("lock", nil, 0o600))
	takes, err := time.ParseDuration(os.Args[1])
	exitOn(err)
	fmt.Println("started")
	var done <-chan time.Time
	for n := 1; ; {
		select {
		case s := <-signals:
			fmt.Printf("pulumi got %v as signal %d\n", s, n)
			if done == nil {
				done = time.After(takes)
			} else if len(os.Args) < 3 {
				os.Exit(1)
			}
			n++
		case <-done:
			_ = os.Remove("lock")
			fmt.Println("pulumi releases the lock")
			os.Exit(255)
		}
	}
}

// pretendExecutor runs pulumi as a program with the Automation API does: when the executor
// gets a signal, it kills pulumi.
func pretendExecutor() {
	signals := notify()
	child := exec.Command("pulumi", os.Args[1:]...)
	child.Stdout = os.Stdout
	exitOn(child.Start())
	var watch sync.WaitGroup
	watch.Go(func() {
		if s, ok := <-signals; ok {
			fmt.Println("executor got", s)
			_ = child.Process.Kill()
		}
	})
	err := child.Wait()
	signal.Stop(signals)
	fmt.Println("executor has seen:", err)
	os.Exit(1)
}

// quickPulumi is a pulumi that handles signals a few milliseconds after its start. This test
// program may need seconds on a busy machine, and a SIGINT would kill it.
const quickPulumi = `#!/bin/sh
n=0
trap 'n=$((n+1)); echo "pulumi got interrupt as signal $n"' INT
touch lock
echo started
while [ $n = 0 ]; do sleep 0.1; done
sleep 0.5 # for a second signal
rm lock
echo pulumi releases the lock
exit 255
`

// programs adds the programs of pretend to the PATH of a fixture, and scripts/pulumi to the
// directory of its steps.
func (w *fixture) programs() {
	w.t.Helper()
	self, err := os.Executable()
	noError(w.t, err)
	directory := w.t.TempDir()
	for _, name := range []string{"pulumi", "pulumi-resource-test", "executor", "tool"} {
		noError(w.t, os.Symlink(self, filepath.Join(directory, name)))
	}
	scripts := filepath.Join(w.handoff.Root, "scripts")
	noError(w.t, os.Mkdir(scripts, 0o755))
	noError(w.t, os.WriteFile(filepath.Join(scripts, "pulumi"), []byte(quickPulumi), 0o755))
	for i, entry := range w.options.Environ {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			w.options.Environ[i] = "PATH=" + directory + ":" + path
		}
	}
}

// stopStep runs the job until the log of step 1 contains "started", and requests a stop. It
// returns this log and the time that the stop took. During is called after the request.
func (w *fixture) stopStep(during func()) (log string, took time.Duration) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	requested := make(chan time.Time, 1)
	go func() {
		w.awaitLog(1, "\nstarted\n")
		requested <- time.Now()
		stop()
		during()
	}()
	w.runIn(ctx, runtime.CodeFailed)
	return w.record().Text(1), time.Since(<-requested)
}

func TestInterrupt(t *testing.T) {
	for name, c := range map[string]struct {
		script       string
		want, refuse []string
	}{
		"pulumi below a shell": {
			"trap 'echo shell got TERM' TERM; pulumi 300ms",
			[]string{"Interrupting pulumi (process ", "pulumi got interrupt as signal 1\n",
				"pulumi releases the lock\n", "pulumi ended by itself "},
			[]string{"signal 2", "plugin got", "shell got"},
		},
		"pulumi in place of the shell": {
			"exec pulumi 300ms",
			[]string{"pulumi got interrupt as signal 1\n", "pulumi releases the lock\n", "pulumi ended by itself "},
			[]string{"signal 2", "plugin got"},
		},
		"pulumi below a program that would kill it": {
			"executor 300ms",
			[]string{"pulumi got interrupt as signal 1\n", "pulumi releases the lock\n",
				"executor has seen: exit status 255\n", "pulumi ended by itself "},
			[]string{"signal 2", "executor got"},
		},
		"pulumi in the background": {
			"pulumi 300ms & wait",
			[]string{"pulumi got interrupt as signal 1\n", "pulumi releases the lock\n"},
			[]string{"signal 2"},
		},
		"pulumi that starts after another one": {
			"pulumi 100ms; scripts/pulumi; sleep 600",
			[]string{"pulumi got interrupt as signal 1\n", "pulumi releases the lock\n", "started\n",
				"pulumi got interrupt as signal 1\n", "pulumi releases the lock\n"},
			[]string{"signal 2"},
		},
		"another program that handles SIGINT": {
			"trap 'echo shell got TERM' TERM; tool; sleep 600",
			[]string{"Interrupting tool (process ", "tool got interrupt\n", "shell got TERM\n"},
			[]string{"pulumi"},
		},
		"no program that handles SIGINT": {
			"trap 'echo shell got TERM; exit 0' TERM; echo started; " + forever,
			[]string{"shell got TERM\n"},
			[]string{"Interrupting", "pulumi"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, steps(c.script, "echo never"))
			w.programs()
			w.handoff.CancelGrace = 60
			log, took := w.stopStep(func() {})
			w.wantSteps(runtime.Succeeded, runtime.Failed, runtime.NotStarted)
			w.wantLog(1, append(c.want, "Error: the job was stopped by a signal to its runner\n")...)
			for _, text := range c.refuse {
				if _, output, _ := strings.Cut(log, "\nstarted\n"); strings.Contains(output, text) {
					t.Errorf("the log contains %q, which it must not:\n%s", text, log)
				}
			}
			if took > 30*time.Second {
				t.Errorf("it took %s, want at most 30s of the cancel grace period of 60s", took)
			}
			if _, err := os.Stat(filepath.Join(w.handoff.Root, "lock")); err == nil {
				t.Error("the lock was not released")
			}
		})
	}
}

func TestStop(t *testing.T) {
	// start returns a fixture whose step runs the script and has variables that name its stack.
	start := func(t *testing.T, script string) *fixture {
		t.Helper()
		definition := steps(script)
		definition.Env = map[string]cloud.SecretValue{
			"PULUMI_CI_ORGANIZATION": {Value: secret.New("acme")}, "PULUMI_CI_PROJECT": {Value: secret.New("web")},
			"PULUMI_CI_STACK": {Value: secret.New("dev")},
		}
		w := newFixture(t, definition)
		w.programs()
		return w
	}
	commands := []string{
		"  pulumi cancel --yes --stack acme/web/dev ", "  pulumi stack export --stack acme/web/dev --file stack.json ",
		"  pulumi stack import --stack acme/web/dev --file stack.json\n",
	}

	t.Run("pulumi that needs too long is terminated", func(t *testing.T) {
		t.Parallel()
		w := start(t, "pulumi 1h")
		w.handoff.CancelGrace = 0.5
		_, took := w.stopStep(func() {})
		w.wantLog(1, append([]string{"pulumi got interrupt as signal 1\n", "pulumi got terminated as signal 2\n",
			"pulumi did not end within the cancel_grace_period, and was terminated after "}, commands...)...)
		if took < 500*time.Millisecond || took > 20*time.Second {
			t.Errorf("it took %s, want a little more than 500ms", took)
		}
		if last := w.lastProgress(); last.Pulumi != runtime.PulumiTerminated || last.Stack != "acme/web/dev" {
			t.Errorf("the last progress is %+v, want a terminated pulumi of the stack acme/web/dev", last)
		}
	})

	t.Run("pulumi that does not end is killed", func(t *testing.T) {
		t.Parallel()
		w := start(t, "pulumi 1h stubborn")
		w.handoff.CancelGrace, w.handoff.Grace = 0.3, 0.4
		w.expireAfter(400*time.Millisecond, 1, "as signal 2\n")
		w.stopStep(func() {})
		killed := []string{"pulumi got terminated as signal 2\n", "pulumi was killed after "}
		w.wantLog(1, append(killed, commands...)...)
		if last := w.lastProgress(); last.Pulumi != runtime.PulumiKilled {
			t.Errorf("the last progress is %+v, want a killed pulumi", last)
		}
	})

	t.Run("agent ends the cancel grace period", func(t *testing.T) {
		t.Parallel()
		w := start(t, "pulumi 1h")
		interrupted, terminate := make(chan struct{}), make(chan struct{})
		w.options.Interrupted, w.options.Terminate = interrupted, terminate
		w.handoff.CancelGrace = 0.3
		close(interrupted)
		_, took := w.stopStep(func() {
			w.awaitLog(1, "as signal 1\n")
			time.AfterFunc(time.Second, func() { close(terminate) }) // later than the handoff's period
		})
		w.wantLog(1, "which has the cancel_grace_period of the agent to end\n", "pulumi got terminated as signal 2\n")
		if took < time.Second {
			t.Errorf("it took %s, want at least 1s, the time until the agent's request", took)
		}
	})

	t.Run("agent adds the reason before the failure is reported", func(t *testing.T) {
		t.Parallel()
		w := start(t, "pulumi 10ms")
		interrupted, terminate := make(chan struct{}), make(chan struct{})
		w.options.Interrupted, w.options.Terminate = interrupted, terminate
		close(interrupted)
		w.handoff.CancelGrace = 60
		w.stopStep(func() {
			w.awaitLog(1, "Error: the job was stopped by a signal to its runner\n")
			if status := w.record().Steps[1].Status; status != runtime.Running {
				t.Errorf("the step is %s before the agent's next request, want %s", status, runtime.Running)
			}
			w.progress.await(t, `"stopped":true`) // the agent makes its request then
			close(terminate)
		})
		if last := w.lastProgress(); last.Pulumi != runtime.PulumiEnded || last.Status != runtime.Failed || !last.Stopped {
			t.Errorf("the last progress is %+v, want a pulumi that ended and a failed step that was stopped", last)
		}
	})

	t.Run("forced stop skips all stages", func(t *testing.T) {
		t.Parallel()
		w := start(t, "pulumi 1h stubborn")
		w.handoff.CancelGrace = 60
		force := make(chan struct{})
		w.options.ForceStop = force
		_, took := w.stopStep(func() {
			w.awaitLog(1, "as signal 1\n")
			close(force)
		})
		if took > 20*time.Second {
			t.Errorf("it took %s, want at most 20s", took)
		}
		w.wantLog(1, append([]string{"pulumi was killed after "}, commands...)...)
	})

	t.Run("pulumi is interrupted at the time limit of a step", func(t *testing.T) {
		t.Parallel()
		definition := steps("pulumi 300ms")
		definition.Steps[1].Timeout = cloud.Duration(time.Second)
		w := newFixture(t, definition)
		w.programs()
		w.handoff.CancelGrace = 60
		w.expireAfter(time.Second, 1, "\nstarted\n")
		w.run(runtime.CodeFailed)
		w.wantLog(1, "Interrupting pulumi (process ", "which has 1m0s to end (cancel_grace_period)\n",
			"pulumi releases the lock\n", "pulumi ended by itself ",
			"Error: the step took longer than its time limit of 1s and was stopped\n")
	})
}
