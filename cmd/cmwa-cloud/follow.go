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
	lookEvery   = 250 * time.Millisecond
	looksLost   = 40              // calls in a row that may fail while a log is followed
	agentAwaits = 5 * time.Second // before it is said that no agent has come
)

// logPage is a page of a log.
type logPage struct {
	Lines []struct {
		Header string
		Line   string
	}
	Next string `json:"nextToken"`
}

// print shows a page: a header for each step, then its lines as they are.
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

// logs asks for a page from a token on.
func (c *client) logs(ctx context.Context, deployment, token string) (page logPage, err error) {
	path := deployment + "/logs"
	if token != "" {
		path += "?continuationToken=" + url.QueryEscape(token)
	}
	return page, c.call(ctx, http.MethodGet, path, nil, &page)
}

// follow shows the log of a deployment to its end, and returns an error unless
// it succeeds. The deployment goes on when ctx ends.
func (c *client) follow(ctx context.Context, deployment string, w world) error {
	patience := time.After(agentAwaits)
	token, silent, lost := "", true, 0
	for {
		page, err := c.logs(ctx, deployment, token)
		var refused *statusError
		switch {
		case ctx.Err() != nil:
			return errors.New("stopped watching; the deployment goes on")
		case err != nil && (errors.As(err, &refused) && refused.code < 500 || lost >= looksLost):
			return err
		case err != nil:
			lost++
		default:
			lost = 0
			if err := page.print(w.stdout); err != nil {
				return fmt.Errorf("show the log: %w", err)
			}
			if page.Next == "" {
				return c.verdict(ctx, deployment, w)
			}
			silent = silent && len(page.Lines) == 0
			if page.Next != token {
				token = page.Next
				if len(page.Lines) > 1 {
					continue
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		case <-patience:
			if silent {
				fmt.Fprintln(w.stderr, "waiting for an agent of the pool, or for an earlier deployment of the stack")
			}
		}
	}
}

// verdict says how a deployment ended.
func (c *client) verdict(ctx context.Context, deployment string, w world) error {
	var answer struct{ Status string }
	if err := c.call(ctx, http.MethodGet, deployment, nil, &answer); err != nil {
		return err
	}
	if answer.Status != "succeeded" {
		return fmt.Errorf("the deployment has ended as %s", answer.Status)
	}
	fmt.Fprintln(w.stdout, "== the deployment succeeded")
	return nil
}
