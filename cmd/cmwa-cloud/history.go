package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// deployment is a deployment in a response of the service.
type deployment struct {
	ID        string
	Version   int
	Status    string
	Outcome   string `json:"cmwaStatus"` // empty in answers of services other than cmwa-cloud
	Operation string `json:"pulumiOperation"`
	Created   string
	Project   string                `json:"projectName"`
	Stack     string                `json:"stackName"`
	Agent     string                `json:"cmwaAgent"` // that claimed the deployment, if cmwa-cloud answers
	Pool      struct{ Name string } `json:"agentPool"`
	Jobs      []struct {
		Steps []struct {
			Name, Status string
			Outcome      string `json:"cmwaStatus"`
		}
	}
}

// outcome returns the status, or cancelled.
func (d deployment) outcome() string { return outcome(d.Status, d.Outcome) }

func outcome(status, extended string) string {
	if extended != "" {
		return extended
	}
	return status
}

// find returns the deployment of a stack that has a version or an id, and its API path. If
// which is empty, find returns the last deployment.
func (c *client) find(ctx context.Context, stack, which string) (d deployment, path string, err error) {
	at := stack + "/deployments"
	switch _, number := strconv.Atoi(which); {
	case which == "":
		var all struct{ Deployments []deployment }
		if err := c.call(ctx, http.MethodGet, at+"?page=1&pageSize=1", nil, &all); err != nil {
			return d, "", err
		}
		if len(all.Deployments) == 0 {
			return d, "", errors.New("the stack has no deployments yet: queue one with cmwa-cloud deploy")
		}
		d = all.Deployments[0]
	case number == nil:
		err = c.call(ctx, http.MethodGet, at+"/version/"+which, nil, &d)
	default:
		err = c.call(ctx, http.MethodGet, at+"/"+url.PathEscape(which), nil, &d)
	}
	return d, at + "/" + url.PathEscape(d.ID), err
}

// deploymentAction is what a command does with a deployment at an API path.
type deploymentAction func(ctx context.Context, c *client, d deployment, path string) error

// deploymentCommand returns a command for one deployment.
func deploymentCommand(s stdio, name, help string, do deploymentAction, options ...command.Option) command.Command {
	connection := newConnection(s)
	arguments := []command.Item{stackArgument, command.Argument("[VERSION|ID]", command.Text("VERSION"))}
	return command.Command{
		Name: name, Help: help, Forms: connection.form(arguments, options...),
		Long: "VERSION is the number of the deployment. Without it, the last deployment of the stack is used.",
		Run: func(ctx context.Context, args []string) error {
			c, stack, err := connection.openStack(args[0])
			if err != nil {
				return err
			}
			which := ""
			if len(args) > 1 {
				which = args[1]
			}
			d, path, err := c.find(ctx, stack, which)
			if err != nil {
				return err
			}
			return do(ctx, c, d, path)
		},
	}
}

func statusCommand(s stdio) command.Command {
	show := func(_ context.Context, _ *client, d deployment, _ string) error {
		fmt.Fprintf(s.stdout, "%s: deployment %d, %s\n", d.outcome(), d.Version, d.ID)
		table := s.table()
		for _, job := range d.Jobs {
			for i, step := range job.Steps {
				fmt.Fprintf(table, "  %d\t%s\t%s\n", i, step.Name, outcome(step.Status, step.Outcome))
			}
		}
		return table.Flush()
	}
	return deploymentCommand(s, "status", "show a deployment and its steps", show)
}

func logsCommand(s stdio) command.Command {
	follow := false
	printLog := func(ctx context.Context, c *client, _ deployment, path string) error {
		if follow {
			return c.follow(ctx, path, s)
		}
		return c.printLog(ctx, path, s)
	}
	return deploymentCommand(s, "logs", "print the log of a deployment", printLog,
		command.Bool(&follow, "follow", "print lines until the deployment ends; exit code 1 if it does not succeed"))
}

// printLog prints the log of a deployment or an activity as far as it is stored.
func (c *client) printLog(ctx context.Context, path string, s stdio) error {
	for token := ""; ; {
		page, err := c.logs(ctx, path, token)
		if err != nil {
			return err
		}
		if err := page.print(s.stdout); err != nil {
			return fmt.Errorf("print the log: %w", err)
		}
		if page.Next == "" || page.Next == token {
			return nil
		}
		token = page.Next
	}
}

func cancelCommand(s stdio) command.Command {
	cancel := func(ctx context.Context, c *client, d deployment, path string) error {
		if err := c.call(ctx, http.MethodPost, path+"/cancel", nil, nil); err != nil {
			return err
		}
		_, err := fmt.Fprintf(s.stdout, "deployment %d is cancelled\n", d.Version)
		return err
	}
	return deploymentCommand(s, "cancel", "cancel a deployment", cancel)
}

// localTime returns a time of RFC 3339 in the time zone of this process, without fractions of a second
// and without the zone: 2026-11-23 16:17:36.
func localTime(text string) string {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return at.Local().Format(time.DateTime)
}

func listCommand(s stdio) command.Command {
	connection := newConnection(s)
	return command.Command{
		Name: "list", Help: "list the last 100 deployments of a stack",
		Forms: connection.form([]command.Item{stackArgument}),
		Run: func(ctx context.Context, args []string) error {
			c, stack, err := connection.openStack(args[0])
			if err != nil {
				return err
			}
			var all struct{ Deployments []deployment }
			if err := c.call(ctx, http.MethodGet, stack+"/deployments?page=1&pageSize=100", nil, &all); err != nil {
				return err
			}
			table := s.table("VERSION\tOPERATION\tSTATUS\tCREATED\tID")
			for _, d := range all.Deployments {
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", d.Version, d.Operation, d.outcome(),
					localTime(d.Created), d.ID)
			}
			return table.Flush()
		},
	}
}
