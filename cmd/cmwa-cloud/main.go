// Command cmwa-cloud is a self-hosted service for pulumi and workflow agents, compatible with
// Pulumi Cloud, and the client for it. One data directory contains everything, and no account is
// needed.
//
// serve takes its settings from flags and from the variables of Pulumi's self-hosted service: the table of parameters
// has the flag, variable, default and check of each, and that of unused the other variables. backup and restore use the
// data directory, and not the API.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// stdio contains the environment, the standard output and the standard error of a command.
type stdio struct {
	environ func(name string) (string, bool)
	stdout  io.Writer
	stderr  io.Writer
}

// table returns a writer that aligns columns, with a line of titles if there are any. The caller flushes it.
func (s stdio) table(titles ...string) *tabwriter.Writer {
	table := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	for _, line := range titles {
		fmt.Fprintln(table, line)
	}
	return table
}

// variable returns an environment variable, or an empty text.
func (s stdio) variable(name string) string {
	value, _ := s.environ(name)
	return value
}

func main() {
	// The signals are received until the process exits, so that a late one does not change the exit
	// code.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	os.Exit(run(ctx, os.Args[1:], stdio{os.LookupEnv, os.Stdout, os.Stderr}))
}

// run runs one command line and returns its exit code. A followed deployment that
// fails makes the command fail.
func run(ctx context.Context, args []string, s stdio) int {
	return cli.Exit(s.stderr, "cmwa-cloud", newProgram(s).Run(ctx, args, s.stdout, s.stderr))
}

// newProgram returns the description of this program. Its flags hold the state of one
// command line.
func newProgram(s stdio) command.Program {
	return command.Program{
		Name: "cmwa-cloud", Help: "a backend for pulumi and workflow agents, and the client for it",
		Long: "First steps: \"cmwa-cloud serve --data data\" starts the service, \"cmwa-cloud pool create NAME\" " +
			"makes a pool with a token for agents, and \"cmwa-cloud deploy\" queues a deployment.\n\n" +
			"All commands except serve, config, backup and restore are clients. They find the service with --url " +
			"or CMWA_CLOUD_URL, and need an access token in --token-file or PULUMI_ACCESS_TOKEN.",
		Commands: []command.Command{
			serveCommand(s),
			configCommand(s),
			backupCommand(s),
			restoreCommand(s),
			{Name: "token", Help: "create, list and delete access tokens", Commands: []command.Command{
				tokenCreate(s), tokenList(s), tokenDelete(s),
			}},
			{Name: "pool", Help: "create, list, show and delete agent pools", Commands: []command.Command{
				poolCreate(s), poolList(s), poolShow(s), poolToken(s), poolDelete(s),
			}},
			{Name: "stack", Help: "list stacks", Commands: []command.Command{stackList(s)}},
			{Name: "settings", Help: "print and change the deployment settings of a stack", Commands: []command.Command{
				settingsGet(s), settingsSet(s),
			}},
			queueCommand(s),
			pauseCommand(s, "pause", "start no deployment of an organization or a stack", "paused"),
			pauseCommand(s, "resume", "start deployments of an organization or a stack again", "resumed"),
			deployCommand(s),
			listCommand(s),
			statusCommand(s),
			logsCommand(s),
			cancelCommand(s),
			{
				Name: "activity", Help: "create, list, show and cancel scans and policy evaluations",
				Commands: []command.Command{
					activityCreate(s), activityList(s), activityStatus(s), activityLogs(s), activityCancel(s),
				},
			},
		},
	}
}
