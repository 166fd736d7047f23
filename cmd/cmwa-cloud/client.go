package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	callLimit = 30 * time.Second
	maxAnswer = 64 << 20 // bytes
)

// account is where a client command finds the service, and as whom.
type account struct {
	url, tokenFile string
	w              world
}

// accountFlags adds the flags of every client command. Name is that of the
// access token's file; a second one may be given.
func accountFlags(set *flag.FlagSet, w world, names ...string) *account {
	a := &account{w: w}
	standard := w.variable("CMWA_CLOUD_URL")
	if standard == "" {
		standard = "http://127.0.0.1:8585"
	}
	set.StringVar(&a.url, "url", standard, "the service (CMWA_CLOUD_URL)")
	for _, name := range names {
		set.StringVar(&a.tokenFile, name, "", "file with the access token (otherwise PULUMI_ACCESS_TOKEN holds the token itself)")
	}
	return a
}

// client speaks for one user.
type client struct {
	url   string
	token secret.String
	http  *http.Client
}

// open makes a client. It sends nothing.
func (a *account) open() (*client, error) {
	place, err := url.Parse(a.url)
	if err != nil || place.Host == "" || place.Scheme != "http" && place.Scheme != "https" {
		return nil, cli.Usagef("--url must be a URL such as http://127.0.0.1:8585")
	}
	token := strings.TrimSpace(a.w.variable("PULUMI_ACCESS_TOKEN"))
	if a.tokenFile != "" {
		text, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the access token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token == "" {
		return nil, cli.Usagef("set PULUMI_ACCESS_TOKEN, or name a file that holds the token: the service wrote one into the file access-token of its data folder")
	}
	// A redirect would take the token to another address.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	caller := &http.Client{Timeout: callLimit, CheckRedirect: refuse}
	return &client{strings.TrimRight(a.url, "/"), secret.New(token), caller}, nil
}

// statusError is an answer that says no.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	if e.code == http.StatusUnauthorized {
		return e.message + " (check PULUMI_ACCESS_TOKEN or the token's file: the right one is in the file access-token of the service's data folder)"
	}
	return e.message
}

// is tells whether an error is an answer with this code.
func is(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// call asks once. Body and answer may be nil.
func (c *client) call(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("write a request: %w", err)
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	request.Header.Set("Authorization", cloud.AuthScheme+" "+c.token.Reveal())
	request.Header.Set("Accept", cloud.AcceptV8)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Pulumi-Deployment-Initiator", "cmwa-cloud")
	response, err := c.http.Do(request)
	if err != nil {
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err
		}
		return fmt.Errorf("cannot reach %s: %w: start it with cmwa-cloud serve, or set --url or CMWA_CLOUD_URL", c.url, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the service's answer: %w", err)
	}
	if to, err := response.Location(); err == nil && response.StatusCode/100 == 3 {
		address := (&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String()
		return fmt.Errorf("%s answers with a redirect to %s: set --url or CMWA_CLOUD_URL to %s",
			c.url, address, strings.TrimSuffix(address, request.URL.Path))
	}
	if response.StatusCode/100 != 2 {
		var refusal cloud.ErrorBody
		if json.Unmarshal(text, &refusal) != nil || refusal.Message == "" {
			refusal.Message = response.Status
		}
		return &statusError{response.StatusCode, refusal.Message}
	}
	if answer == nil || len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of %s is not the JSON that is documented: is it a Pulumi Cloud?", c.url)
	}
	return nil
}

// stackPath is the API's path of a stack that is named ORG/PROJECT/STACK.
func stackPath(name string) (string, error) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", cli.Usagef("%q is not the name of a stack: write ORG/PROJECT/STACK", name)
	}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/api/stacks/" + strings.Join(parts, "/"), nil
}
