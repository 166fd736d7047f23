package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// activity is a scan or a policy evaluation in a response of the service.
type activity struct {
	ID, Kind, Name, Status, Reason, Created string
	RetriesLeft                             int
	Leases                                  []struct {
		Agent, Status, Acquired string
		Steps                   []struct{ Name, Status string }
	}
}

// ended reports whether the status is final.
func (a activity) ended() bool {
	return slices.Contains([]string{"Completed", "Failed", "Canceled"}, a.Status)
}

// describe returns the status with its reason.
func (a activity) describe() string {
	if a.Reason == "" {
		return a.Status
	}
	return a.Status + ": " + a.Reason
}

// poolOfActivity is the argument for the pool of an activity.
var poolOfActivity = command.Argument("POOL", command.Text("POOL"))

// openActivities returns a client, and the API path of the activities of a pool.
func (f *poolFlags) openActivities(ctx context.Context, pool string) (*client, string, error) {
	c, path, err := f.openPool(ctx, pool)
	return c, path + "/activities", err
}

// activityFlags are the flags of activity create that set fields of the request.
type activityFlags struct {
	kind, name, image, shell, file, retries, delay, timeout string
	run, env, secretEnv                                     []string
}

func (f *activityFlags) options() []command.Option {
	text := command.Text
	return []command.Option{
		command.String(&f.kind, "kind", command.OneOf(server.ActivityKinds()...), "kind of the work"),
		command.Repeated(&f.run, "run", text("SCRIPT"), "script of a step"),
		command.String(&f.name, "name", text("TEXT"), "name for people"),
		command.String(&f.image, "image", command.Image, "container image of the job"),
		command.String(&f.shell, "shell", text("PROGRAM"), "shell of the steps"),
		command.Repeated(&f.env, "env", text("NAME=VALUE"), "environment variable of the job"),
		command.Repeated(&f.secretEnv, "secret-env", command.Name,
			"secret environment variable of the job, with its value from the environment of this command"),
		command.String(&f.timeout, "timeout", text("DURATION"), "time limit of the job"),
		command.String(&f.retries, "retries", text("NUMBER"),
			"how often the work is leased again after a lease has expired or its agent has given it back (default 3)"),
		command.String(&f.delay, "retry-delay", text("DURATION"),
			"delay before work is leased again after an agent has given it back (default 10s)"),
		command.String(&f.file, "file", command.File, "file with a request as JSON; flags override it"),
	}
}

// activityFields replaces the names of request fields in a message by the names of the flags
// that set them.
var activityFields = strings.NewReplacer(
	"environmentVariables", "--env", "retryDelay", "--retry-delay", "retries", "--retries", "timeout", "--timeout",
	"cmwaSteps", "--run", "kind must", "--kind must",
)

// request returns the body of the request.
func (f *activityFlags) request(s stdio) (object, error) {
	body, err := readRequest(f.file)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"kind": f.kind, "name": f.name, "image": f.image, "shell": f.shell,
		"timeout": f.timeout, "retryDelay": f.delay} {
		if value != "" {
			body[name] = value
		}
	}
	if f.retries != "" {
		number, err := strconv.Atoi(f.retries)
		if err != nil {
			return nil, cli.Usagef("--retries must be a number")
		}
		body["retries"] = number
	}
	for _, flag := range []struct{ name, value string }{{"--timeout", f.timeout}, {"--retry-delay", f.delay}} {
		if _, err := time.ParseDuration(flag.value); flag.value != "" && err != nil {
			return nil, cli.Usagef("%s must be a duration such as 10m", flag.name)
		}
	}
	if len(f.run) > 0 {
		var steps []object
		for _, script := range f.run {
			steps = append(steps, object{"run": script})
		}
		body["steps"] = steps
	}
	if err := putVariables(body, f.env, f.secretEnv, s, "environmentVariables"); err != nil {
		return nil, err
	}
	if body["kind"] == nil || body["steps"] == nil {
		return nil, cli.Usagef("activity create needs --kind and --run")
	}
	return body, nil
}

func activityCreate(s stdio) command.Command {
	flags, follow := newPoolFlags(s), false
	var f activityFlags
	options := append(f.options(),
		command.Bool(&follow, "follow", "print the log until the work ends; exit code 1 if it is not completed"))
	return command.Command{
		Name: "create", Help: "queue a scan or a policy evaluation for a pool",
		Forms: flags.form([]command.Item{poolOfActivity}, options...),
		Run: func(ctx context.Context, args []string) error {
			body, err := f.request(s)
			if err != nil {
				return err
			}
			c, path, err := flags.openActivities(ctx, args[0])
			if err != nil {
				return err
			}

			var answer struct{ ID string }
			err = c.call(ctx, http.MethodPost, path, body, &answer)
			if f.file == "" {
				err = withFlags(err, activityFields)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(s.stdout, "%s is queued: %s\n", body["kind"], answer.ID)
			if !follow {
				return nil
			}
			return c.followActivity(ctx, path+"/"+url.PathEscape(answer.ID), s)
		},
	}
}

// followActivity prints the log of an activity until the activity ends, and returns an error
// unless it is completed. If the activity is leased again, the log of the new lease follows.
func (c *client) followActivity(ctx context.Context, path string, s stdio) error {
	notice, leases, token := time.After(agentNotice), 0, ""
	complete := false // the whole log of the last lease is printed
	return follow(ctx, "the work", func() (followState, error) {
		// Read the next page of the last lease's log.
		var a activity
		var page logPage
		if err := c.call(ctx, http.MethodGet, path, nil, &a); err != nil {
			return following, err
		}
		select {
		case <-notice:
			if len(a.Leases) == 0 {
				fmt.Fprintf(s.stderr, "waiting for an agent of the pool that leases %s: see cmwa-cloud pool list\n",
					a.Kind)
			}
		default:
		}
		if len(a.Leases) > 0 {
			if len(a.Leases) != leases {
				leases, token, complete = len(a.Leases), "", false
				fmt.Fprintf(s.stdout, "== lease %d, of agent %s\n", leases, a.Leases[leases-1].Agent)
			}
			if !complete {
				var err error
				if page, err = c.logs(ctx, path, token); err != nil {
					return following, err
				}
				// The page is that of another lease if there is a new one since the first call.
				var now activity
				if err := c.call(ctx, http.MethodGet, path, nil, &now); err != nil || len(now.Leases) != leases {
					return following, err
				}
				complete = page.Next == ""
			}
		}

		// Print the page. After the last page of an activity that has ended, print its status.
		if err := page.print(s.stdout); err != nil {
			return hasEnded, fmt.Errorf("print the log: %w", err)
		}
		if a.ended() && (page.Next == "" || page.Next == token) {
			fmt.Fprintf(s.stdout, "== %s\n", a.describe())
			if a.Status != "Completed" {
				return hasEnded, fmt.Errorf("the work has ended as %s", a.Status)
			}
			return hasEnded, nil
		}
		if page.Next != "" {
			token = page.Next
		}
		return following, nil
	})
}

func activityList(s stdio) command.Command {
	flags := newPoolFlags(s)
	return command.Command{
		Name: "list", Help: "list the last 100 scans and policy evaluations of a pool",
		Forms: flags.form([]command.Item{poolOfActivity}),
		Run: func(ctx context.Context, args []string) error {
			c, path, err := flags.openActivities(ctx, args[0])
			if err != nil {
				return err
			}
			var all struct{ Activities []activity }
			if err := c.call(ctx, http.MethodGet, path, nil, &all); err != nil {
				return err
			}
			table := s.table("ID\tKIND\tSTATUS\tRETRIES LEFT\tCREATED\tNAME")
			for _, a := range all.Activities {
				fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\n", a.ID, a.Kind, a.Status, a.RetriesLeft,
					localTime(a.Created), a.Name)
			}
			return table.Flush()
		},
	}
}

// activityAction is what a command does with an activity at an API path.
type activityAction func(ctx context.Context, c *client, path string) error

// activityCommand returns a command for one activity.
func activityCommand(s stdio, name, help string, do activityAction, options ...command.Option) command.Command {
	flags := newPoolFlags(s)
	return command.Command{
		Name: name, Help: help,
		Forms: flags.form([]command.Item{poolOfActivity, command.Argument("ID", command.Text("ID"))}, options...),
		Run: func(ctx context.Context, args []string) error {
			c, path, err := flags.openActivities(ctx, args[0])
			if err != nil {
				return err
			}
			return do(ctx, c, path+"/"+url.PathEscape(args[1]))
		},
	}
}

func activityStatus(s stdio) command.Command {
	return activityCommand(s, "status", "show a scan or policy evaluation, its leases and their steps",
		func(ctx context.Context, c *client, path string) error {
			var a activity
			if err := c.call(ctx, http.MethodGet, path, nil, &a); err != nil {
				return err
			}
			fmt.Fprintf(s.stdout, "%s (%s %s, %d retries left)\n", a.describe(), a.Kind, a.ID, a.RetriesLeft)
			table := s.table()
			for i, lease := range a.Leases {
				fmt.Fprintf(table, "lease %d\t%s\t%s\t%s\n", i+1, lease.Agent, localTime(lease.Acquired), lease.Status)
				for number, step := range lease.Steps {
					fmt.Fprintf(table, "  %d\t%s\t\t%s\n", number, step.Name, step.Status)
				}
			}
			return table.Flush()
		})
}

func activityLogs(s stdio) command.Command {
	follow := false
	return activityCommand(s, "logs", "print the log of the last lease of a scan or policy evaluation",
		func(ctx context.Context, c *client, path string) error {
			if follow {
				return c.followActivity(ctx, path, s)
			}
			return c.printLog(ctx, path, s)
		},
		command.Bool(&follow, "follow", "print lines until the work ends; exit code 1 if it is not completed"))
}

func activityCancel(s stdio) command.Command {
	return activityCommand(s, "cancel", "cancel a scan or policy evaluation",
		func(ctx context.Context, c *client, path string) error {
			if err := c.call(ctx, http.MethodPost, path+"/cancel", nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintln(s.stdout, "the work is cancelled")
			return err
		})
}
