package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

func queueCommand(s stdio) command.Command {
	flags := newPoolFlags(s)
	return command.Command{
		Name: "queue", Help: "list the last 100 deployments of an organization, with the agent that ran each",
		Forms: flags.form(nil),
		Run: func(ctx context.Context, _ []string) error {
			c, organization, err := flags.open(ctx)
			if err != nil {
				return err
			}
			var metadata struct{ Paused bool }
			if err := c.call(ctx, http.MethodGet, organization+"/deployments/metadata", nil, &metadata); err != nil {
				return err
			}
			var all struct{ Deployments []deployment }
			const page = "/deployments?page=1&pageSize=100"
			if err := c.call(ctx, http.MethodGet, organization+page, nil, &all); err != nil {
				return err
			}
			table := s.table("STACK\tVERSION\tOPERATION\tSTATUS\tPOOL\tAGENT\tCREATED")
			for _, d := range all.Deployments {
				fmt.Fprintf(table, "%s/%s\t%d\t%s\t%s\t%s\t%s\t%s\n", d.Project, d.Stack, d.Version, d.Operation,
					d.outcome(), cmp.Or(d.Pool.Name, "-"), cmp.Or(d.Agent, "-"), localTime(d.Created))
			}
			if metadata.Paused {
				fmt.Fprintln(s.stderr, "the organization is paused: no deployment starts until cmwa-cloud resume")
			}
			return table.Flush()
		},
	}
}

// pauseCommand returns the command that pauses, or resumes, an organization or a stack.
func pauseCommand(s stdio, name, help, done string) command.Command {
	flags := newPoolFlags(s)
	stack := command.Argument("[ORG/PROJECT/STACK]", command.Text("STACK"))
	return command.Command{
		Name: name, Help: help, Forms: flags.form([]command.Item{stack}),
		Long: "Without a stack, all deployments of the organization are meant. Deployments are still queued, and " +
			"running ones continue.",
		Run: func(ctx context.Context, args []string) error {
			var c *client
			var path, subject string
			var err error
			switch {
			case len(args) > 0 && flags.organization != "":
				return cli.Usagef("name a stack or --org, not both")
			case len(args) > 0:
				c, path, err = flags.connection.openStack(args[0])
				subject = args[0]
			default:
				c, path, err = flags.open(ctx)
				subject = "the organization"
			}
			if err != nil {
				return err
			}
			if err := c.call(ctx, http.MethodPost, path+"/deployments/"+name, nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.stdout, "%s is %s\n", subject, done)
			return err
		},
	}
}

// listedStack is a stack in a list of the service.
type listedStack struct {
	Organization string `json:"orgName"`
	Project      string `json:"projectName"`
	Name         string `json:"stackName"`
	LastUpdate   int64  // seconds since 1970; 0 before the first update
	Resources    *int   `json:"resourceCount"`
}

func stackList(s stdio) command.Command {
	connection, organization := newConnection(s), ""
	return command.Command{
		Name: "list", Help: "list the stacks",
		Forms: connection.form(nil, command.String(&organization, "org", command.Name, "organization; otherwise all")),
		Run: func(ctx context.Context, _ []string) error {
			c, err := connection.open()
			if err != nil {
				return err
			}
			table := s.table("STACK\tRESOURCES\tLAST UPDATE")
			query := url.Values{}
			if organization != "" {
				query.Set("organization", organization)
			}
			for {
				var page struct {
					Stacks []listedStack
					Next   string `json:"continuationToken"`
				}
				if err := c.call(ctx, http.MethodGet, "/api/user/stacks?"+query.Encode(), nil, &page); err != nil {
					return err
				}
				for _, one := range page.Stacks {
					resources := "-"
					if one.Resources != nil {
						resources = fmt.Sprint(*one.Resources)
					}
					name := one.Organization + "/" + one.Project + "/" + one.Name
					fmt.Fprintf(table, "%s\t%s\t%s\n", name, resources, unixTime(one.LastUpdate))
				}
				if page.Next == "" || page.Next == query.Get("continuationToken") {
					return table.Flush()
				}
				query.Set("continuationToken", page.Next)
			}
		},
	}
}
