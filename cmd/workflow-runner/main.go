// Command workflow-runner stands in the environment of one workflow job and
// runs its steps. The agent starts it and writes a handover to its standard
// input, or, in a Pod, sends it sealed through a file; people have no use for it
// but to ask for its version.
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
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/runner"
)

// handoverLimit is the time in which the agent must have handed the job over.
const handoverLimit = 30 * time.Second

const usage = `workflow-runner runs the steps of one workflow job. It is started by the agent.

  workflow-runner run        reads a handover from standard input and runs the job
  workflow-runner version    prints the version

In a Pod:

  workflow-runner prepare FOLDER FILE              copies itself to FOLDER, makes a key there, and
                                                   writes its public half to FILE
  workflow-runner key FOLDER FILE                  makes a key only
  workflow-runner run --handoff FILE --key FILE    reads the handover, sealed to the key, from a file
  workflow-runner run --handoff FILE               reads the handover, compressed, from a file
`

func main() {
	os.Exit(execute(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(args, environ []string, stdin *os.File, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("component", "runner")
	source, runs := handoffSource(args, stdin)
	switch {
	case runs && os.Getpid() == 1:
		hide(log)
		code, err := runner.Init()
		if err != nil {
			log.Error("the runner does not work as process 1", "error", err)
			return runtime.CodeUsage
		}
		return code
	case runs:
		return run(environ, source, stdout, log)
	case len(args) == 3 && args[0] == "prepare":
		return prepare(args[1], args[2], log)
	case len(args) == 3 && args[0] == "key":
		return prepareKey(args[1], args[2], log)
	case len(args) == 1 && args[0] == "version":
		fmt.Fprintln(stdout, cli.Version())
		return 0
	case len(args) == 1 && (args[0] == "help" || args[0] == "-h" || args[0] == "--help"):
		fmt.Fprint(stdout, usage)
		return 0
	}
	fmt.Fprint(stderr, usage)
	return runtime.CodeUsage
}

// handoffSource returns a function that reads the handoff of a job from where the
// arguments of "run" name it. Ok is false for other arguments.
func handoffSource(args []string, stdin io.Reader) (source func(context.Context) (*runtime.Handover, error), ok bool) {
	switch {
	case len(args) == 1 && args[0] == "run":
		return func(ctx context.Context) (*runtime.Handover, error) { return receive(ctx, stdin) }, true
	case len(args) == 5 && args[0] == "run" && args[1] == "--handoff" && args[3] == "--key":
		return fromFile(func(ctx context.Context) ([]byte, error) { return handoff.Receive(ctx, args[4], args[2]) }), true
	case len(args) == 3 && args[0] == "run" && args[1] == "--handoff":
		return fromFile(func(ctx context.Context) ([]byte, error) { return handoff.ReceivePacked(ctx, args[2]) }), true
	}
	return nil, false
}

// fromFile returns a function that decodes the handoff that receive returns.
func fromFile(receive func(context.Context) ([]byte, error)) func(context.Context) (*runtime.Handover, error) {
	return func(ctx context.Context) (*runtime.Handover, error) {
		text, err := receive(ctx)
		if err != nil {
			return nil, err
		}
		return runtime.ReadHandover(bytes.NewReader(text))
	}
}

// prepare makes a Pod ready for the job's own container: it copies this program
// to folder, and writes a public key to report.
func prepare(folder, report string, log *slog.Logger) int {
	program, err := os.Executable()
	if err == nil {
		err = handoff.Prepare(program, folder, report)
	}
	if err != nil {
		log.Error("cannot prepare the Pod", "error", err)
		return 1
	}
	return 0
}

// prepareKey makes a Pod ready that has this program in a volume: it makes a key in
// folder, and writes the public half to report.
func prepareKey(folder, report string, log *slog.Logger) int {
	if err := handoff.PrepareKey(folder, report); err != nil {
		log.Error("cannot prepare the Pod", "error", err)
		return 1
	}
	return 0
}

// run runs the job whose handoff source returns.
func run(
	environ []string, source func(context.Context) (*runtime.Handover, error), stdout io.Writer, log *slog.Logger,
) int {
	ctx, hurry, done := signals()
	defer done()
	hide(log)
	handover, err := source(ctx)
	if err != nil {
		log.Error(err.Error())
		return runtime.CodeUsage
	}
	return runner.Run(ctx, handover, runner.Options{
		Version: cli.Version(), Environ: environ, Progress: stdout, Hurry: hurry, Log: log,
	})
}

// hide closes this process's memory and open files to the steps. Process 1 needs
// it as much as its child: both hold the stream of progress to the agent, and an
// exec clears the mark (PR_SET_DUMPABLE, prctl(2)), so each sets its own.
func hide(log *slog.Logger) {
	if err := runner.Hide(); err != nil {
		log.Warn("the runner's memory is open to other processes of this user", "error", err)
	}
}

// receive reads the handover. It returns an error if the agent takes longer than
// handoverLimit to write it, or if ctx ends.
func receive(ctx context.Context, stdin io.Reader) (*runtime.Handover, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handoverLimit,
		fmt.Errorf("the agent has handed no job over within %s", handoverLimit))
	defer cancel()
	handover, err := cli.Await(ctx, func() (*runtime.Handover, error) { return runtime.ReadHandover(stdin) })
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("asked to stop before the agent has handed a job over")
	}
	return handover, err
}

// signals returns a context that the first TERM, INT or HUP cancels, and a channel
// that is closed with the second. A SIGPIPE is received and dropped, so that an
// agent that stopped reading does not end the job. Steps would inherit an ignored
// SIGPIPE.
func signals() (ctx context.Context, hurry <-chan struct{}, stop func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	first, second, stop := cli.Signals(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return first, second.Done(), stop
}
