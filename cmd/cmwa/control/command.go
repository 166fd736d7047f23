package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Terminal contains what the commands need from the program.
type Terminal struct {
	Stdout, Stderr io.Writer

	// Directory returns the state directory of the agent with a configuration file, and the name
	// of that file for messages. Config is the value of --config.
	Directory func(config string) (directory, name string, err error)
}

// Commands returns the commands pause, resume and drain.
func Commands(t Terminal) []command.Command {
	return []command.Command{pauseCommand(t), resumeCommand(t), drainCommand(t)}
}

// FindsAgent is the part of a help text about how a command finds the agent.
const FindsAgent = `The agent is found by its configuration file and its state directory, on this machine: run this as
the agent's user (or root), with its variables.`

// exitCodes is the part of a help text about exit codes.
const exitCodes = " Exit code 2: no agent, or no such pool."

// form returns the form of a command with a further item. Config is the value of --config.
func form(config *string, further command.Item) command.Form {
	return command.Form{
		command.Optional(command.String(config, "config", command.File,
			"configuration file of the agent; otherwise the file that cmwa run would use")),
		further,
	}
}

// call sends a request to the agent with a configuration file, and prints its warning.
func (t Terminal) call(ctx context.Context, config string, request Request) (directory string, _ Response, _ error) {
	directory, name, err := t.Directory(config)
	if err != nil {
		return "", Response{}, cli.Usage(err)
	}
	response, err := Ask(ctx, directory, name, request)
	if err != nil {
		return "", Response{}, cli.Usage(err)
	}
	if response.Warning != "" {
		fmt.Fprintf(t.Stderr, "cmwa: warning: %s\n", printable.Text(response.Warning))
	}
	return directory, response, nil
}

// pools returns the names of the pools of the running agent, for the completion of a command line. It
// returns none if no agent runs.
func (t Terminal) pools(args []string) (names []string) {
	config := ""
	if i := slices.Index(args, "--config"); i >= 0 && i+1 < len(args) {
		config = args[i+1]
	}
	directory, _, err := t.Directory(config)
	if err != nil {
		return nil
	}
	response, err := Call(context.Background(), directory, Request{Command: Show})
	if err != nil {
		return nil
	}
	for _, pool := range response.Pools {
		names = append(names, printable.Text(pool.Name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func drainCommand(t Terminal) command.Command {
	config, wait := "", false
	return command.Command{
		Name: "drain", Help: "stop the running agent after its jobs",
		Forms: []command.Form{form(&config, command.Optional(command.Bool(&wait, "wait",
			"wait until the agent has ended")))},
		Long: `Does what the first TERM does: the agent claims no more jobs, waits for running jobs, up to
shutdown_timeout, and ends with exit code 0. After cmwa drain, a first TERM stops no job; a second
TERM does.

A supervisor that always restarts the agent, such as Kubernetes or systemd with Restart=always,
starts it again. To keep it from claiming jobs, use cmwa pause.

` + FindsAgent + exitCodes,
		Run: func(ctx context.Context, _ []string) error {
			directory, agent, err := t.call(ctx, config, Request{Command: Drain})
			if err != nil {
				return err
			}
			switch jobs := agent.Jobs(""); {
			case !agent.Changed && agent.StopAt.IsZero():
				fmt.Fprintf(t.Stdout, "the agent is stopping its jobs already (jobs: %d)\n", jobs)
			case !agent.Changed:
				fmt.Fprintf(t.Stdout, "the agent is draining already; running jobs (%d) may finish until %s\n",
					jobs, agent.StopAt.Format(time.RFC3339))
			default:
				fmt.Fprintf(t.Stdout, "the agent claims no more jobs; running jobs (%d) may finish until %s\n",
					jobs, agent.StopAt.Format(time.RFC3339))
			}

			if !wait {
				return nil
			}
			if err := Wait(ctx, directory, agent); err != nil {
				if errors.Is(err, context.Canceled) {
					return cli.ExitError(cli.ExitInterrupted)
				}
				return err
			}
			fmt.Fprintln(t.Stdout, "the agent has ended")
			return nil
		},
	}
}

func pauseCommand(t Terminal) command.Command {
	return pausing(t, Pause, "pause", "make a pool of the running agent claim no jobs",
		`The pool claims no jobs until cmwa resume; its running jobs continue. It stays paused when its
settings change, when it is replaced, and when the agent starts again with the same state directory.
A poll that is under way is not aborted, so one more job may start.

A paused pool does not make the agent unready. cmwa status shows it, and the metric
cmwa_pool_paused is 1.`)
}

func resumeCommand(t Terminal) command.Command {
	return pausing(t, Resume, "resume", "make a paused pool claim jobs again",
		"Ends cmwa pause. The pool polls at once, unless the service or a failure makes it wait.")
}

// pausing returns the command pause or resume.
func pausing(t Terminal, do Command, name, help, long string) command.Command {
	config := ""
	return command.Command{
		Name: name, Help: help, Long: long + "\n\n" + FindsAgent + exitCodes,
		Forms: []command.Form{form(&config, command.Argument("POOL", command.Listed("POOL", t.pools)))},
		Run: func(ctx context.Context, args []string) error {
			pool := args[0]
			_, agent, err := t.call(ctx, config, Request{Command: do, Pool: pool})
			if err != nil {
				return err
			}
			state, already := "resumed: it claims jobs", ""
			if do == Pause {
				state = fmt.Sprintf("paused: it claims no jobs until cmwa resume (running jobs: %d)", agent.Jobs(pool))
			}
			if !agent.Changed {
				already = "already "
			}
			fmt.Fprintf(t.Stdout, "pool %s %s%s\n", printable.QuoteName(pool), already, state)
			return nil
		},
	}
}

// StopJob returns the command jobs stop.
func StopJob(t Terminal) command.Command {
	config := ""
	return command.Command{
		Name: "stop", Help: "stop a running job, which is reported as failed",
		Forms: []command.Form{form(&config, command.Argument("JOB", command.Text("JOB")))},
		Long: `JOB is an id of cmwa jobs list, or its beginning. The agent interrupts pulumi, which has
cancel_grace_period to end and to release the lock of its stack, and then 30 s. A scan or a policy
evaluation has only the 30 s, and is completed as failed, so that the service does not give it out
again. The command does not wait for the end of the job; cmwa jobs list shows it. To cancel a deployment
at the service, use the service.

` + FindsAgent + " Exit code 2: no agent, or no such job.",
		Run: func(ctx context.Context, args []string) error {
			_, agent, err := t.call(ctx, config, Request{Command: Stop, Job: args[0]})
			if err != nil {
				return err
			}
			name := ""
			if agent.Job != "" {
				name = " of " + printable.QuoteName(agent.Job)
			}
			fmt.Fprintf(t.Stdout, "the agent stops job %s%s\n", printable.QuoteName(args[0]), name)
			return nil
		},
	}
}
