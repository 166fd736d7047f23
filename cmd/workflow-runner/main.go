// Command workflow-runner runs the steps of one workflow job inside the job's
// instance. The agent starts it and writes a handoff to its standard input. In a
// Pod, the agent sends the handoff through a file. Users do not start this program,
// except to print its version.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/runner"
)

// handoffTimeout is the time in which the agent must write the handoff.
const handoffTimeout = 30 * time.Second

const usage = `workflow-runner: runs the steps of one workflow job

Usage:
  workflow-runner COMMAND [ARGUMENTS]

The agent starts this program in the instance of a job.

Commands:
  run      read the handoff of a job and run it
  prepare  prepare a Pod for the container of its job
  key      prepare a Pod that has this program in a volume
  version  print the version, the commit and the platform of this program
  help     print the help of a command

Flags:
  --help, -h     print this help
  --version, -v  print the version
`

var commandHelp = map[string]string{
	"run": `Usage:
  workflow-runner run
      read the handoff from standard input
  workflow-runner run --handoff FILE --sender KEY --key FILE
      read the handoff, sealed to the key in a file, from a file
  workflow-runner run --handoff FILE --sender KEY
      read the handoff, compressed, from a file

The handoff in a file is accepted only if it is signed with the sender's key.

Runs the job of a handoff. The exit code reports to the agent how the job ended.
`,
	"prepare": `Usage:
  workflow-runner prepare DIRECTORY FILE

Copies this program to DIRECTORY, creates a key there, and writes its public half to
FILE.
`,
	"key": `Usage:
  workflow-runner key DIRECTORY FILE

Creates a key in DIRECTORY, and writes its public half to FILE.
`,
	"version": `Usage:
  workflow-runner version

Prints the version, the commit and the platform of this program.
`,
	"help": `Usage:
  workflow-runner help [COMMAND]

Prints the help of a command.
`,
}

func main() {
	os.Exit(execute(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(args, environ []string, stdin *os.File, stdout, stderr io.Writer) int {
	// Run a job. Process 1 of a container only supervises a second process.
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("component", "runner")
	source, runs := handoffSource(args, stdin)
	switch {
	case runs && os.Getpid() == 1:
		hide(log)
		code, err := runner.Init()
		if err != nil {
			log.Error("runner failed as process 1", "error", err)
			return runtime.CodeUsage
		}
		return code
	case runs:
		inPod := len(args) > 1 // only a Pod gets its handoff in a file
		return run(environ, source, inPod, stdout, stderr, log)
	}

	switch {
	case len(args) == 3 && args[0] == "prepare":
		return prepared(prepare(args[1], args[2]), log)
	case len(args) == 3 && args[0] == "key":
		return prepared(handoff.PrepareKey(args[1], args[2]), log)
	case len(args) == 1 && slices.Contains([]string{"version", "--version", "-v"}, args[0]):
		fmt.Fprint(stdout, cli.VersionText("workflow-runner"))
		return cli.ExitOK
	}

	text, requested := helpFor(args)
	if requested {
		fmt.Fprint(stdout, text)
		return cli.ExitOK
	}
	fmt.Fprint(stderr, text)
	return runtime.CodeUsage
}

// helpFor returns the help that the arguments request. If they do not request help, it
// returns an error message, and requested is false.
func helpFor(args []string) (text string, requested bool) {
	isHelp := func(arg string) bool { return slices.Contains([]string{"help", "--help", "-h"}, arg) }
	switch {
	case len(args) == 0:
		return usage, false
	case len(args) == 1 && isHelp(args[0]):
		return usage, true
	case len(args) == 2 && isHelp(args[0]) && commandHelp[args[1]] != "":
		return commandHelp[args[1]], true
	case len(args) == 2 && isHelp(args[1]) && commandHelp[args[0]] != "":
		return commandHelp[args[0]], true
	case commandHelp[args[0]] != "" && !isHelp(args[0]):
		return "workflow-runner: wrong arguments\n\n" + commandHelp[args[0]], false
	default:
		return fmt.Sprintf("workflow-runner: unknown command %q: see workflow-runner help\n", args[len(args)-1]), false
	}
}

// handoffSource returns the function that reads the handoff of a job, if the arguments are
// a complete command "run". Otherwise ok is false.
func handoffSource(args []string, stdin io.Reader) (source func(context.Context) (*runtime.Handoff, error), ok bool) {
	switch {
	case len(args) == 1 && args[0] == "run":
		return func(ctx context.Context) (*runtime.Handoff, error) { return receive(ctx, stdin) }, true
	case len(args) < 5 || args[0] != "run" || args[1] != "--handoff" || args[3] != "--sender":
		return nil, false
	case len(args) == 5:
		return fromFile(func(ctx context.Context) ([]byte, error) {
			return handoff.ReceivePacked(ctx, args[4], args[2])
		}), true
	case len(args) == 7 && args[5] == "--key":
		return fromFile(func(ctx context.Context) ([]byte, error) {
			return handoff.Receive(ctx, args[6], args[4], args[2])
		}), true
	}
	return nil, false
}

// fromFile returns a function that decodes the handoff that receive returns.
func fromFile(receive func(context.Context) ([]byte, error)) func(context.Context) (*runtime.Handoff, error) {
	return func(ctx context.Context) (*runtime.Handoff, error) {
		text, err := receive(ctx)
		if err != nil {
			return nil, err
		}
		return runtime.ReadHandoff(bytes.NewReader(text))
	}
}

// prepare prepares a Pod for the container of its job: it copies this program to
// directory, and writes a public key to report.
func prepare(directory, report string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return handoff.Prepare(program, directory, report)
}

// prepared returns the exit code of a command that prepares a Pod, and logs its error.
func prepared(err error, log *slog.Logger) int {
	if err != nil {
		log.Error("cannot prepare the Pod", "error", err)
		return cli.ExitFailure
	}
	return cli.ExitOK
}

func run(
	environ []string, source func(context.Context) (*runtime.Handoff, error), inPod bool, stdout, stderr io.Writer,
	log *slog.Logger,
) int {
	ctx, requests := signals(inPod)
	hide(log)
	job, err := source(ctx)
	if err != nil {
		log.Error(err.Error())
		return runtime.CodeUsage
	}
	return runner.Run(ctx, job, runner.Options{
		Version: cli.Version(), Environ: environ, Progress: stdout, LocalLog: stderr, Log: log,
		Interrupted: requests.interrupted, Terminate: requests.terminate, ForceStop: requests.forceStop,
	})
}

// hide protects the memory and the open files of this process from the steps. Process 1
// and its child both call it, because both have the stream of progress to the agent. The
// child does not inherit the protection: an exec resets it (PR_SET_DUMPABLE, prctl(2)).
func hide(log *slog.Logger) {
	if err := runner.Hide(); err != nil {
		log.Warn("cannot protect the memory of the runner from other processes of this user", "error", err)
	}
}

// receive reads the handoff from standard input. It returns an error if the agent does not
// write the handoff within handoffTimeout, or if ctx ends.
func receive(ctx context.Context, stdin io.Reader) (*runtime.Handoff, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handoffTimeout,
		fmt.Errorf("no handoff from the agent within %s", handoffTimeout))
	defer cancel()
	job, err := cli.Await(ctx, func() (*runtime.Handoff, error) { return runtime.ReadHandoff(stdin) })
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("stopped before the handoff from the agent")
	}
	return job, err
}

// requests are the requests to stop the job that signals to the runner express. See
// [signals].
type requests struct {
	interrupted, terminate, forceStop chan struct{}
}

// signals returns a context and the requests of later signals. The first signal, which is INT
// or one of [runner.StopSignals], cancels the context. The first INT, even after a TERM, means
// that the agent ends the cancel grace period. The first other signal that is not the first of
// all ends this period now, and the next one kills the step. In a Pod, INT is like TERM: it is
// the stop signal of the image, since no agent sends signals there.
//
// A SIGPIPE is received and dropped, so that the job continues when the agent stops
// reading. The runner does not ignore the signal, because the steps would inherit that.
//
// The signals are received until the process exits. A signal that the agent sends while the runner
// exits would otherwise replace the exit code, by which the agent knows that the outcome is
// reported.
func signals(inPod bool) (ctx context.Context, r requests) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(context.Background())
	r = requests{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	received := make(chan os.Signal, 8)
	signal.Notify(received, append(runner.StopSignals(), syscall.SIGINT)...)
	go func() {
		interrupted := false
		next := []func(){func() { close(r.terminate) }, func() { close(r.forceStop) }}
		for s := range received {
			switch {
			case s == syscall.SIGINT && !inPod && !interrupted:
				interrupted = true
				close(r.interrupted)
			case s == syscall.SIGINT && !inPod, ctx.Err() == nil: // not the first INT, or the first signal
			case len(next) > 0:
				next[0]()
				next = next[1:]
			}
			cancel()
		}
	}()
	return ctx, r
}
