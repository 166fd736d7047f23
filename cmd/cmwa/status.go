package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
)

const (
	statusLimit = 5 * time.Second // of one question
	statusBytes = 8 << 20         // of one answer: some ten thousand jobs
	statusEvery = time.Second     // between two looks of --watch
	defaultPort = 8080            // of http_server_port, for a file that says nothing of it
)

func statusCommand(s streams) command {
	q := inquiry{environ: readEnvironment(s.environ)}
	var asJSON, watched bool
	return command{
		name: "status", help: "tell what the running agent does, and what it thinks of its configuration",
		forms: []form{{
			optional(
				stringFlag(&q.config, "config", aFile, "configuration file of the agent; otherwise the one that cmwa run would find"),
				stringFlag(&q.url, "url", aURL, "where the agent's HTTP server is; otherwise http_server_address and http_server_port of the configuration on this machine"),
			),
			optional(boolFlag(&asJSON, "json", "print the whole answer in JSON; with --watch, one line for each look")),
			optional(boolFlag(&watched, "watch", "look again each second, until an INT or TERM")),
		}},
		long: "Asks the agent on this machine, at the http_server_address and http_server_port of its configuration; or the one at --url.\n" +
			"Tells what is in force, what the last change did, why a change was refused, and what each pool does.\n" +
			"With --watch the picture is drawn anew on a terminal; elsewhere only lines that have changed are printed.\n" +
			"Exit code 0: healthy and ready, and what the file says is what runs; 1: not so; 2: the agent cannot be reached,\n" +
			"or the command line is wrong. With --watch it is the code of the last answer.\n" +
			"Ready means that every pool has been answered by its service, has not failed for longer than health_threshold,\n" +
			"and can run jobs; the reasons are shown if it is not.",
		run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("status takes no argument %q: name a file with --config", args[0])
			}
			show := s.shower(asJSON, watched)
			d, err := q.ask(ctx)
			if err != nil {
				return cli.Usage(err)
			}
			if err := show(d, nil); err != nil {
				return err
			}
			if watched {
				if d, err = s.follow(ctx, &q, d, show); err != nil {
					return err
				}
			}
			if !d.good() {
				return cli.ExitError(cli.ExitFailure)
			}
			return nil
		},
	}
}

// good reports whether nobody need look at the agent.
func (d statusDocument) good() bool {
	return d.Healthy && d.Ready && d.Converged && d.Config.Rejection == nil
}

// follow shows the status again and again until ctx ends, and returns the last
// one. An agent that cannot be reached any more may come back.
func (s streams) follow(ctx context.Context, q *inquiry, last statusDocument, show func(statusDocument, error) error) (statusDocument, error) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case <-tick.C:
		}
		d, err := q.ask(ctx)
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

// inquiry is how to ask an agent for its status.
type inquiry struct {
	config, url string
	environ     environment
	found       string // the URL at which an agent has answered
}

// ask asks once. Errors are for people, and quote nothing that was answered.
//
// A file that is spoilt while it is followed no longer tells the port, and the
// agent that refuses it is where it was.
func (q *inquiry) ask(ctx context.Context) (statusDocument, error) {
	where, guessed, err := q.where()
	if err != nil {
		return statusDocument{}, err
	}
	if guessed != "" && q.found != "" {
		where, guessed = q.found, ""
	}
	d, err := askAt(ctx, where, q.url == "")
	switch {
	case err == nil:
		q.found = where
	case guessed != "":
		err = fmt.Errorf("%w: that port is a guess, because %s: name the agent with --url", err, guessed)
	case errors.Is(err, errNoAgent):
		err = fmt.Errorf("%w: is it running, and is this its http_server_port?", err)
	}
	return d, err
}

// askAt asks once at a URL. An agent on this machine is asked without a proxy.
func askAt(ctx context.Context, where string, here bool) (statusDocument, error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return statusDocument{}, errNoURL
	}
	request.Header.Set("Accept", "application/json")
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	if here {
		transport.Proxy = nil
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return statusDocument{}, fmt.Errorf("%w at %s: %s", errNoAgent, where, whyNoAnswer(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return statusDocument{}, fmt.Errorf("what listens at %s answers with code %d: it is no agent, or one of an earlier release", where, response.StatusCode)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, statusBytes+1))
	switch {
	case err != nil:
		return statusDocument{}, fmt.Errorf("the answer of %s broke off: %s", where, whyNoAnswer(err))
	case len(content) > statusBytes:
		return statusDocument{}, fmt.Errorf("the answer of %s is larger than %d MiB: it is no agent", where, statusBytes>>20)
	}
	var version struct{ Version int }
	var d statusDocument
	if json.Unmarshal(content, &version) != nil || version.Version <= 0 {
		return statusDocument{}, fmt.Errorf("the answer of %s is not that of an agent", where)
	}
	if version.Version != statusVersion {
		return statusDocument{}, fmt.Errorf("the agent at %s tells its status in version %d and this program knows version %d: use the cmwa of the agent", where, version.Version, statusVersion)
	}
	if json.Unmarshal(content, &d) != nil {
		return statusDocument{}, fmt.Errorf("the answer of %s is not that of an agent", where)
	}
	return d, nil
}

// whyNoAnswer says in words why a call failed.
func whyNoAnswer(err error) string {
	var name *net.DNSError
	var late net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(err, &name):
		return "there is no such host"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return fmt.Sprintf("nothing within %s", statusLimit)
	default:
		return "it cannot be talked to"
	}
}

var (
	errNoAgent = errors.New("no agent answers")
	errNoURL   = errors.New("--url must be a URL such as http://127.0.0.1:8080, without user, query or fragment")
)

// where is the URL to ask. Guessed says why its port is a guess, if it is one.
func (q *inquiry) where() (where, guessed string, err error) {
	if q.url != "" && q.config != "" {
		return "", "", errors.New("name either --config or --url")
	}
	if q.url != "" {
		u, err := url.Parse(q.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return "", "", errNoURL
		}
		if path.Base(u.Path) != "status" {
			u = u.JoinPath("status")
		}
		return u.String(), "", nil
	}
	source, err := find(q.config, q.environ)
	if err != nil {
		return "", "", fmt.Errorf("%w; or name the agent with --url", err)
	}
	address, port, guessed := serverOf(source)
	if port == 0 {
		return "", "", errors.New("the agent of this configuration has no HTTP server: set http_server_port, or name another agent with --url")
	}
	if ip, err := netip.ParseAddr(address); address == "" || err == nil && ip.IsUnspecified() {
		address = "127.0.0.1" // it listens on all addresses
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(address, strconv.Itoa(port)), Path: "/status"}
	return u.String(), guessed, nil
}

// Keys of the file that hold where the HTTP server is, and the variables that
// overlay them.
const (
	addressKey      = "http_server_address"
	portKey         = "http_server_port"
	addressVariable = "PULUMI_AGENT_HTTP_SERVER_ADDRESS"
	portVariable    = "PULUMI_AGENT_HTTP_SERVER_PORT"
)

// serverOf returns where the agent's HTTP server listens. It also reads a file that
// the agent rejects, since an agent that runs has a status then, too. guessed is why
// the port could not be read.
func serverOf(source schema.Source) (address string, port int, guessed string) {
	// A valid configuration has both.
	text := strings.TrimSpace(source.Environ[portVariable])
	empty := len(bytes.TrimSpace(source.Content)) == 0
	source.Elsewhere = true
	if c, _ := schema.Load(source); c != nil && (text != "" || !empty) {
		return c.HTTPServerAddress, c.HTTPServerPort, ""
	}

	// Of an invalid one, read these two keys only.
	address = strings.TrimSpace(source.Environ[addressVariable])
	if address == "" {
		address = schema.TopLevelScalar(source.Content, addressKey)
		if strings.ContainsFunc(address, func(r rune) bool { return !strings.ContainsRune(hostCharacters, r) }) {
			address = ""
		}
	}
	switch {
	case text != "":
		guessed = portVariable + " is no port"
	case source.Path == "":
		guessed = fmt.Sprintf("there is no %s in %s", schema.FileName, strings.Join(source.Searched, ", "))
	case empty:
		guessed = quotedName(source.Path) + " is empty"
	default:
		guessed = quotedName(source.Path) + " cannot be used, as cmwa vet tells"
		text = schema.TopLevelScalar(source.Content, portKey)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return address, defaultPort, guessed
	}
	return address, int(number), ""
}

// hostCharacters are those of names and addresses of hosts. An address with others
// would not pass validation, and could steer the terminal.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:%_-"

// shower returns what shows a status, or why there is none at present.
func (s streams) shower(asJSON, watched bool) func(statusDocument, error) error {
	switch {
	case asJSON && watched:
		encoder := json.NewEncoder(s.stdout)
		return func(d statusDocument, err error) error {
			if err != nil {
				return s.sayLost(err)
			}
			return encoder.Encode(d)
		}
	case asJSON:
		return func(d statusDocument, _ error) error { return writeJSON(s.stdout, d) }
	case watched && isTerminal(s.stdout) && readEnvironment(s.environ)["TERM"] != "dumb":
		return s.redraw
	case watched:
		return s.changes()
	default:
		return func(d statusDocument, _ error) error {
			for _, l := range d.lines(d.ages()) {
				if _, err := fmt.Fprintln(s.stdout, l.text); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

func (s streams) sayLost(err error) error {
	_, err = fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
	return err
}

// redraw draws the picture over the one before, as much of it as the terminal
// has room for.
func (s streams) redraw(d statusDocument, lost error) error {
	lines := d.lines(d.ages())
	if lost != nil {
		lines = append(paragraph("lost", "lost", lost.Error()), lines...)
	}
	if file, ok := s.stdout.(*os.File); ok {
		if _, height, err := term.GetSize(int(file.Fd())); err == nil && height > 2 && len(lines) >= height {
			hidden := len(lines) - height + 2
			lines = append(lines[:height-2], line{"more", fmt.Sprintf("... and %s", several(hidden, "line"))})
		}
	}
	var b strings.Builder
	b.WriteString("\x1b[H") // top left
	for _, l := range lines {
		b.WriteString(l.text + "\x1b[K\n") // and nothing of the line before
	}
	b.WriteString("\x1b[J") // and nothing below
	_, err := io.WriteString(s.stdout, b.String())
	return err
}

// changes returns what prints the parts of the picture that were not so the last
// time, and what has gone. Times are told in full, since ages would change with
// each look.
func (s streams) changes() func(statusDocument, error) error {
	var known []line
	said := "" // of an agent that is lost
	return func(d statusDocument, lost error) error {
		if lost != nil {
			if said == lost.Error() {
				return nil
			}
			said = lost.Error()
			return s.sayLost(lost)
		}
		said = ""
		var b strings.Builder
		now := together(d.lines(clocks()))
		for _, part := range now {
			if !slices.Contains(known, part) {
				b.WriteString(part.text)
			}
		}
		for _, part := range known {
			if !slices.ContainsFunc(now, func(other line) bool { return other.of == part.of }) {
				b.WriteString("gone: " + part.of + "\n")
			}
		}
		known = now
		_, err := io.WriteString(s.stdout, b.String())
		return err
	}
}

// together joins the lines that stand for one thing.
func together(lines []line) (joined []line) {
	for _, l := range lines {
		if last := len(joined) - 1; last >= 0 && joined[last].of == l.of {
			joined[last].text += l.text + "\n"
		} else {
			joined = append(joined, line{l.of, l.text + "\n"})
		}
	}
	return joined
}
