package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema/report"
)

// watchInterval is the time between two requests of --watch.
const watchInterval = time.Second

func statusCommand(s stdio) command.Command {
	c := client{environ: s.environ}
	var asJSON, watched bool
	return command.Command{
		Name: "status", Help: "print the status of the running agent and its configuration",
		Forms: []command.Form{{
			c.agent(),
			command.Optional(command.Bool(&asJSON, "json",
				"print the whole response in JSON; with --watch, one line for each request")),
			command.Optional(command.Bool(&watched, "watch", "repeat every second, until an INT or TERM")),
		}},
		Long: `Prints the configuration in force, what the last change did, why a change was rejected, and what
each pool does. ` + control.FindsAgent + `

With --watch, the output on a terminal is the present status; other output contains only the changed
lines.

Exit code 0: healthy and ready, and the file is in force; 1: otherwise; 2: the agent cannot be
reached, or the command line is wrong. With --watch it is the code of the last response.

Ready means that the service of every pool has responded, that no pool has failed for longer than
health_threshold, and that every pool can run jobs. If the agent is not ready, the reasons are
printed.`,
		Run: func(ctx context.Context, _ []string) error {
			show := s.statusPrinter(asJSON, watched)
			d, err := c.fetch(ctx)
			if err != nil {
				return cli.Usage(err)
			}
			if err := show(d, nil); err != nil {
				return err
			}
			if watched {
				if d, err = c.watch(ctx, d, show); err != nil {
					return err
				}
			}
			if !d.OK() {
				return cli.ExitError(cli.ExitFailure)
			}
			return nil
		},
	}
}

// client fetches the status of one agent, which the command line names.
type client struct {
	config, url string
	environ     environment

	directory, name string // state directory of the agent, and name of its configuration; empty before the first call
}

// agent returns the flags that name the agent.
func (c *client) agent() command.Item {
	return command.Optional(
		command.String(&c.config, "config", command.File, "configuration file of the agent; "+
			"otherwise the file that cmwa run would use"),
		command.String(&c.url, "url", command.URL, "URL of the HTTP server of an agent on another machine, "+
			"of another user, or without a state directory"),
	)
}

// fetch fetches the status once. Its errors are messages for users, and quote nothing of
// the response.
func (c *client) fetch(ctx context.Context) (status.Document, error) {
	if c.url != "" && c.config != "" {
		return status.Document{}, errors.New("name either --config or --url")
	}
	if c.url != "" {
		at, err := statusURL(c.url)
		if err != nil {
			return status.Document{}, err
		}
		return status.Fetch(ctx, at, false)
	}
	response, err := c.ask(ctx, control.Request{Command: control.Status})
	if err != nil {
		return status.Document{}, fmt.Errorf("%w; or name the agent with --url", err)
	}
	return status.Decode(response.Result, "the control socket")
}

// ask sends a request to the agent over its control socket. It finds the agent by its
// configuration once, because a running agent stays the same when its file becomes invalid.
func (c *client) ask(ctx context.Context, request control.Request) (control.Response, error) {
	if c.directory == "" {
		var err error
		if c.directory, c.name, err = stateDirectory(c.config, c.environ); err != nil {
			return control.Response{}, err
		}
	}
	return control.Ask(ctx, c.directory, c.name, request)
}

// watch fetches and shows the status until ctx ends, and returns the last status. It
// continues if the agent does not respond.
func (c *client) watch(ctx context.Context, last status.Document, show printer) (status.Document, error) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case <-tick.C:
		}
		d, err := c.fetch(ctx)
		if ctx.Err() != nil {
			return last, nil
		}
		if err == nil {
			last = d
		}
		if err := show(last, err); err != nil {
			return last, err
		}
	}
}

func statusURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "",
		u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", errors.New("--url must be a URL such as http://127.0.0.1:8080, without user, query or fragment")
	case path.Base(u.Path) != "status":
		u = u.JoinPath("status")
	}
	return u.String(), nil
}

// printer shows a status. The error is the reason why there is no newer status; it may be
// nil.
type printer func(status.Document, error) error

// statusPrinter returns the printer that the flags select.
func (s stdio) statusPrinter(asJSON, watched bool) printer {
	switch {
	case asJSON && watched:
		encoder := json.NewEncoder(s.stdout)
		return func(d status.Document, lost error) error {
			if lost != nil {
				return s.printLost(lost)
			}
			return encoder.Encode(d)
		}
	case asJSON:
		return func(d status.Document, _ error) error { return report.WriteJSON(s.stdout, d) }
	case watched && isTerminal(s.stdout) && s.environ["TERM"] != "dumb":
		return func(d status.Document, lost error) error {
			_, height := sizeOf(s.stdout)
			return status.Redraw(s.stdout, d, lost, height, s.coloured(s.stdout))
		}
	case watched:
		return s.changePrinter()
	default:
		return func(d status.Document, _ error) error { return status.WriteText(s.stdout, d, s.coloured(s.stdout)) }
	}
}

// changePrinter returns a printer of changed lines. The printer omits an error if the
// previous call printed the same error.
func (s stdio) changePrinter() printer {
	var changes status.Changes
	printed := ""
	return func(d status.Document, lost error) error {
		switch {
		case lost == nil:
			printed = ""
			return changes.Write(s.stdout, d)
		case lost.Error() == printed:
			return nil
		}
		printed = lost.Error()
		return s.printLost(lost)
	}
}

func (s stdio) printLost(lost error) error {
	_, err := fmt.Fprintf(s.stderr, "cmwa: %v\n", lost)
	return err
}
