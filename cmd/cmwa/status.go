package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

const (
	watchInterval = time.Second // between two requests of --watch
	defaultPort   = 8080        // of http_server_port, for a file that does not set it
)

func statusCommand(s stdio) command.Command {
	c := client{environ: s.environ}
	var asJSON, watched bool
	return command.Command{
		Name: "status", Help: "print the status of the running agent and its configuration",
		Forms: []command.Form{{
			command.Optional(
				command.String(&c.config, "config", command.File, "configuration file of the agent; "+
					"otherwise the file that cmwa run would use"),
				command.String(&c.url, "url", command.URL, "URL of the agent's HTTP server; "+
					"otherwise http_server_address and http_server_port of the configuration on this machine"),
			),
			command.Optional(command.Bool(&asJSON, "json",
				"print the whole response in JSON; with --watch, one line for each request")),
			command.Optional(command.Bool(&watched, "watch", "repeat every second, until an INT or TERM")),
		}},
		Long: `Requests the status of the agent from its HTTP server, at the http_server_address and
http_server_port of its configuration, or at --url. Prints the configuration in force, what the last
change did, why a change was rejected, and what each pool does.

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
	last        string // address that responded last
}

// fetch fetches the status once. Its errors are messages for users, and quote nothing of
// the response.
//
// If the file becomes invalid between two requests, its port may be unreadable. The agent
// rejects that file and keeps its port, so fetch uses the address that responded last.
func (c *client) fetch(ctx context.Context) (status.Document, error) {
	at, guessed, err := c.address()
	if err != nil {
		return status.Document{}, err
	}
	if guessed != "" && c.last != "" {
		at, guessed = c.last, ""
	}
	d, err := status.Fetch(ctx, at, c.url == "")
	switch {
	case err == nil:
		c.last = at
	case guessed != "":
		err = fmt.Errorf("%w: that port is a guess, because %s: name the agent with --url", err, guessed)
	case errors.Is(err, status.ErrNoAgent):
		err = fmt.Errorf("%w: is it running, and is this its http_server_port?", err)
	}
	return d, err
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

// address returns the URL of the agent's status. Guessed is the reason why the port could
// not be read; it is empty if the port was read.
func (c *client) address() (at, guessed string, err error) {
	if c.url != "" && c.config != "" {
		return "", "", errors.New("name either --config or --url")
	}
	if c.url != "" {
		at, err := statusURL(c.url)
		return at, "", err
	}
	source, err := find(c.config, c.environ)
	if err != nil {
		return "", "", fmt.Errorf("%w; or name the agent with --url", err)
	}
	address, port, guessed := serverOf(source)
	if port == 0 {
		return "", "", errors.New("the agent of this configuration has no HTTP server: " +
			"set http_server_port, or name another agent with --url")
	}
	if ip, err := netip.ParseAddr(address); address == "" || err == nil && ip.IsUnspecified() {
		address = "127.0.0.1" // the agent listens on all addresses
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(address, strconv.Itoa(port)), Path: "/status"}
	return u.String(), guessed, nil
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

// serverOf returns where the agent's HTTP server listens. It also reads a file that the
// agent rejects, because a running agent keeps its HTTP server when it rejects an edit.
// guessed is the reason why the port could not be read.
func serverOf(source schema.Source) (address string, port int, guessed string) {
	const portVariable = "PULUMI_AGENT_HTTP_SERVER_PORT"
	text := strings.TrimSpace(source.Environ[portVariable])
	empty := len(bytes.TrimSpace(source.Content)) == 0
	source.Elsewhere = true
	if c, _ := schema.Load(source); c != nil && (text != "" || !empty) {
		return c.HTTPServerAddress, c.HTTPServerPort, ""
	}

	// From an invalid configuration, read only these two keys.
	address = strings.TrimSpace(source.Environ["PULUMI_AGENT_HTTP_SERVER_ADDRESS"])
	if address == "" {
		address = schema.TopLevelScalar(source.Content, "http_server_address")
		if strings.Trim(address, hostCharacters) != "" {
			address = ""
		}
	}
	switch {
	case text != "":
		guessed = portVariable + " is not a port number"
	case source.Path == "":
		guessed = fmt.Sprintf("there is no %s in %s", schema.FileName, strings.Join(source.Searched, ", "))
	case empty:
		guessed = printable.QuoteName(source.Path) + " is empty"
	default:
		guessed = printable.QuoteName(source.Path) + " cannot be used (see cmwa vet)"
		text = schema.TopLevelScalar(source.Content, "http_server_port")
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return address, defaultPort, guessed
	}
	return address, int(number), ""
}

// hostCharacters are the characters of host names and IP addresses. An address with another
// character would not pass validation, and could contain control characters of a terminal.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:%_-"

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
			return status.Redraw(s.stdout, d, lost, height)
		}
	case watched:
		return s.changePrinter()
	default:
		return func(d status.Document, _ error) error { return status.WriteText(s.stdout, d) }
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
