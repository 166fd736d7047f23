// Command cmwa is a workflow agent for Pulumi Cloud and for services that speak
// like it: it claims workflow jobs and runs each in an environment of its own,
// as a configuration file says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/schema"
)

// version is set when a release is built.
var version = ""

// Exit codes, as the README lists them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // the command line or the configuration is wrong
)

// usageError is an error that only an edit can cure.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError ends a command with a code of its own. Everything there is to say has
// been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// streams is what a command works on beside its arguments.
type streams struct {
	environ []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

func main() {
	if len(os.Args) > 1 && os.Args[1] != "run" {
		// The other commands end within milliseconds. Collecting a heap of a few
		// megabytes is a fifth of their time.
		debug.SetGCPercent(400)
	}
	soft, hard, stop := signals()
	code := execute(soft, hard, os.Args[1:], streams{os.Environ(), os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// signals returns a context that ends with the first TERM or INT, and one that
// ends with the second. The third ends the process at once, as it would any other:
// what is left then is found by the next start.
func signals() (soft, hard context.Context, stop func()) {
	soft, cancelSoft := context.WithCancel(context.Background())
	hard, cancelHard := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range ch {
			if soft.Err() != nil {
				cancelHard()
				signal.Reset(syscall.SIGTERM, syscall.SIGINT)
			}
			cancelSoft()
		}
	}()
	return soft, hard, func() {
		signal.Stop(ch)
		close(ch)
		<-done
		cancelHard()
		cancelSoft()
	}
}

// execute runs one command line and returns its exit code.
func execute(soft, hard context.Context, args []string, s streams) int {
	root := commands(hard, s)
	err := root.Parse(args)
	switch {
	case err == nil:
		err = root.Run(soft)
	case !errors.Is(err, flag.ErrHelp):
		err = usageError{err}
	}
	var usage usageError
	var code exitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
		if len(args) > 0 && args[0] == "plan" {
			return exitInvalid // 2 says that there are changes
		}
		return exitUsage
	default:
		fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
		return exitFailure
	}
}

// commands makes the tree of commands anew: it holds the state of one parse.
func commands(hard context.Context, s streams) *ffcli.Command {
	root := &ffcli.Command{
		Name: "cmwa", ShortUsage: "cmwa COMMAND [FLAGS]",
		ShortHelp: "a workflow agent for Pulumi Cloud", FlagSet: s.flags("cmwa"),
		Subcommands: []*ffcli.Command{
			runCommand(hard, s),
			statusCommand(s),
			vetCommand(s),
			planCommand(s),
			configureCommand(s),
			configCommand(s),
			explainCommand(s),
			schemaCommand(s),
			completionCommand(hard, s),
			versionCommand(s),
		},
	}
	root.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return usageError{unknownCommand(args[0], root.Subcommands)}
		}
		fmt.Fprintln(s.stderr, ffcli.DefaultUsageFunc(root))
		return usageError{errors.New("name a command")}
	}
	return root
}

func unknownCommand(word string, commands []*ffcli.Command) error {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	if best := schema.Closest(word, names); best != "" {
		return fmt.Errorf("there is no command %q: did you mean %s?", word, best)
	}
	return fmt.Errorf("there is no command %q: the commands are %s", word, strings.Join(names, ", "))
}

// flags makes an empty set of flags for one command.
func (s streams) flags(name string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(s.stderr)
	return set
}

func versionCommand(s streams) *ffcli.Command {
	return &ffcli.Command{
		Name: "version", ShortUsage: "cmwa version", ShortHelp: "print the version",
		FlagSet: s.flags("cmwa version"),
		Exec: func(context.Context, []string) error {
			_, err := fmt.Fprintln(s.stdout, release())
			return err
		},
	}
}

// release is the version of this build: as set at a release, or as the Go
// toolchain knows it.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
