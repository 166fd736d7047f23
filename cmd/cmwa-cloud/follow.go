package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	followInterval = 250 * time.Millisecond
	followFailures = 40              // failed calls in a row after which one more ends the command
	agentNotice    = 5 * time.Second // time without a first line, after which a notice is printed
)

// logPage is a page of a log.
type logPage struct {
	Lines []struct {
		Header string
		Line   string
	}
	Next string `json:"nextToken"`
}

// print prints a page: a header for each step, and its lines without change.
func (p logPage) print(out io.Writer) error {
	var b strings.Builder
	for _, line := range p.Lines {
		if line.Header != "" {
			b.WriteString("== " + line.Header + "\n")
		}
		b.WriteString(line.Line)
		if line.Line != "" && !strings.HasSuffix(line.Line, "\n") {
			b.WriteString("\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// logs returns the page of a log that follows a token.
func (c *client) logs(ctx context.Context, deployment, token string) (page logPage, err error) {
	path := deployment + "/logs"
	if token != "" {
		path += "?continuationToken=" + url.QueryEscape(token)
	}
	return page, c.call(ctx, http.MethodGet, path, nil, &page)
}

// followState is the state of the deployment or activity that a command follows.
type followState int

const (
	following followState = iota
	hasMore               // more lines can be read at once
	hasEnded
)

// follow calls read until read returns hasEnded, and returns the error of that call. It
// waits for followInterval between two calls, unless read returns hasMore. It retries
// followFailures errors in a row, and returns the next error. A refusal of the service
// (status below 500) is returned at once. The end of ctx does not stop the subject.
func follow(ctx context.Context, subject string, read func() (followState, error)) error {
	for failures := 0; ; {
		state, err := read()
		var refused *statusError
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no longer following; %s continues", subject)
		case state == hasEnded:
			return err
		case err != nil && (errors.As(err, &refused) && refused.code < 500 || failures >= followFailures):
			return err
		case err != nil:
			failures++
		default:
			failures = 0
			if state == hasMore {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
}

// poolName returns the name of the pool of a deployment, after a space. The result is "" if it is unknown.
func (c *client) poolName(ctx context.Context, path string) string {
	var d struct {
		Pool struct{ Name string } `json:"agentPool"`
	}
	if err := c.call(ctx, http.MethodGet, path, nil, &d); err != nil || d.Pool.Name == "" {
		return ""
	}
	return " " + d.Pool.Name
}

// follow prints the log of a deployment until it ends, and returns an error unless the
// deployment succeeds. The end of ctx does not stop the deployment.
func (c *client) follow(ctx context.Context, path string, s stdio) error {
	notice, token, silent := time.After(agentNotice), "", true
	complete := false // the whole log is printed
	return follow(ctx, "the deployment", func() (followState, error) {
		// Print a notice if there is no line for too long.
		select {
		case <-notice:
			if silent {
				fmt.Fprintf(s.stderr, "waiting for an agent of the pool%s, which polls once per polling_interval "+
					"(default 1m), or for an earlier deployment of the stack: see cmwa-cloud pool list\n",
					c.poolName(ctx, path))
			}
		default:
		}

		var page logPage
		if !complete {
			var err error
			if page, err = c.logs(ctx, path, token); err != nil {
				return following, err
			}
			if err := page.print(s.stdout); err != nil {
				return hasEnded, fmt.Errorf("print the log: %w", err)
			}
		}

		// After the last page, print how the deployment has ended.
		if complete = page.Next == ""; complete {
			var d deployment
			if err := c.call(ctx, http.MethodGet, path, nil, &d); err != nil {
				return following, err
			}
			if d.outcome() != "succeeded" {
				return hasEnded, fmt.Errorf("the deployment has ended as %s", d.outcome())
			}
			fmt.Fprintln(s.stdout, "== the deployment succeeded")
			return hasEnded, nil
		}
		silent = silent && len(page.Lines) == 0
		more := page.Next != token && len(page.Lines) > 1
		token = page.Next
		if more {
			return hasMore, nil
		}
		return following, nil
	})
}
