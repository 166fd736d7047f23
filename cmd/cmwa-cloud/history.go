package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/peterbourgon/ff/v3/ffcli"
)

// deployment is one as the service shows it.
type deployment struct {
	ID        string
	Version   int
	Status    string
	Operation string `json:"pulumiOperation"`
	Created   string
	Jobs      []struct {
		Steps []struct{ Name, Status string }
	}
}

// find finds a deployment of a stack by version or id; the last one when
// neither is named.
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

// onDeployment is a command about one deployment.
func onDeployment(w world, name, help string, more func(act *action)) *ffcli.Command {
	set := flags(w, "cmwa-cloud "+name)
	act := &action{w: w, account: accountFlags(set, w, "token-file", "access-token-file")}
	act.follow = new(bool)
	if name == "logs" {
		set.BoolVar(act.follow, "follow", false, "show the log as it runs, and end with 1 if the deployment fails")
	}
	more(act)
	return &ffcli.Command{
		Name: name, ShortUsage: "cmwa-cloud " + name + " ORG/PROJECT/STACK [VERSION|ID] [FLAGS]", ShortHelp: help, FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			names, err := arguments(set, args, "ORG/PROJECT/STACK", "[VERSION|ID]")
			if err != nil {
				return err
			}
			stack, err := stackPath(names[0])
			if err != nil {
				return err
			}
			c, err := act.account.open()
			if err != nil {
				return err
			}
			d, path, err := c.find(ctx, stack, names[1])
			if err != nil {
				return err
			}
			return act.do(ctx, c, d, path)
		},
	}
}

// action is what a command does with the deployment that it was given.
type action struct {
	w       world
	account *account
	follow  *bool
	do      func(ctx context.Context, c *client, d deployment, path string) error
}

func statusCommand(w world) *ffcli.Command {
	return onDeployment(w, "status", "show a deployment and its steps", func(act *action) {
		act.do = func(_ context.Context, _ *client, d deployment, _ string) error {
			fmt.Fprintf(w.stdout, "%s: deployment %d, %s\n", d.Status, d.Version, d.ID)
			table := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
			for _, job := range d.Jobs {
				for i, step := range job.Steps {
					fmt.Fprintf(table, "  %d\t%s\t%s\n", i, step.Name, step.Status)
				}
			}
			return table.Flush()
		}
	})
}

func logsCommand(w world) *ffcli.Command {
	return onDeployment(w, "logs", "show the log of a deployment", func(act *action) {
		act.do = func(ctx context.Context, c *client, _ deployment, path string) error {
			if *act.follow {
				return c.follow(ctx, path, w)
			}
			for token := ""; ; {
				page, err := c.logs(ctx, path, token)
				if err != nil {
					return err
				}
				if err := page.print(w.stdout); err != nil {
					return fmt.Errorf("show the log: %w", err)
				}
				if page.Next == "" || page.Next == token {
					return nil
				}
				token = page.Next
			}
		}
	})
}

func cancelCommand(w world) *ffcli.Command {
	return onDeployment(w, "cancel", "cancel a deployment", func(act *action) {
		act.do = func(ctx context.Context, c *client, d deployment, path string) error {
			if err := c.call(ctx, http.MethodPost, path+"/cancel", nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(w.stdout, "deployment %d is cancelled\n", d.Version)
			return err
		}
	})
}

func listCommand(w world) *ffcli.Command {
	set := flags(w, "cmwa-cloud list")
	account := accountFlags(set, w, "token-file", "access-token-file")
	return &ffcli.Command{
		Name: "list", ShortUsage: "cmwa-cloud list ORG/PROJECT/STACK [FLAGS]", ShortHelp: "list the last deployments of a stack", FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			names, err := arguments(set, args, "ORG/PROJECT/STACK")
			if err != nil {
				return err
			}
			stack, err := stackPath(names[0])
			if err != nil {
				return err
			}
			c, err := account.open()
			if err != nil {
				return err
			}
			var all struct{ Deployments []deployment }
			if err := c.call(ctx, http.MethodGet, stack+"/deployments?page=1&pageSize=100", nil, &all); err != nil {
				return err
			}
			table := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "VERSION\tOPERATION\tSTATUS\tCREATED\tID")
			for _, d := range all.Deployments {
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", d.Version, d.Operation, d.Status, d.Created, d.ID)
			}
			return table.Flush()
		},
	}
}
