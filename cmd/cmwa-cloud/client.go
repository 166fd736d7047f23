package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	callTimeout = 30 * time.Second
	maxAnswer   = 64 << 20 // bytes
)

// connection contains the URL of the service and the file with the access token, as the flags
// of a client command set them.
type connection struct {
	url, tokenFile string
	s              stdio
}

func newConnection(s stdio) *connection {
	c := &connection{url: s.variable("CMWA_CLOUD_URL"), s: s}
	if c.url == "" {
		c.url = "http://127.0.0.1:8585"
	}
	return c
}

// stackArgument is the argument for the name of a stack.
var stackArgument = command.Argument("ORG/PROJECT/STACK", command.Text("STACK"))

// options returns the flags of every client command.
func (c *connection) options() []command.Option {
	return []command.Option{
		command.String(&c.url, "url", command.URL, "URL of the service; also CMWA_CLOUD_URL"),
		command.String(&c.tokenFile, "token-file", command.File,
			"file with the access token; otherwise the variable PULUMI_ACCESS_TOKEN contains the token"),
		command.String(&c.tokenFile, "access-token-file", command.File, "same as --token-file, for older scripts"),
	}
}

// form returns the form of a client command: its arguments, its flags, and those of
// every client command.
func (c *connection) form(arguments []command.Item, options ...command.Option) []command.Form {
	return []command.Form{append(arguments, command.AnyOf(append(options, c.options()...)...))}
}

// client makes calls for one user.
type client struct {
	url   string
	token secret.String
	http  *http.Client
}

// open returns a client. It makes no call.
func (c *connection) open() (*client, error) {
	address, err := url.Parse(c.url)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		return nil, cli.Usagef("--url must be a URL such as http://127.0.0.1:8585")
	}

	token := strings.TrimSpace(c.s.variable("PULUMI_ACCESS_TOKEN"))
	if c.tokenFile != "" {
		text, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the access token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token == "" {
		return nil, cli.Usagef("no access token: set PULUMI_ACCESS_TOKEN, or name its file with --token-file " +
			"(the service writes one to the file access-token of its data directory)")
	}

	// A redirect would send the token to another address.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	caller := &http.Client{Timeout: callTimeout, CheckRedirect: refuse}
	return &client{strings.TrimRight(c.url, "/"), secret.New(token), caller}, nil
}

// openStack returns a client, and the API path of the stack ORG/PROJECT/STACK.
func (c *connection) openStack(name string) (*client, string, error) {
	path, err := stackPath(name)
	if err != nil {
		return nil, "", err
	}
	opened, err := c.open()
	return opened, path, err
}

// statusError is a response with an error status.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	if e.code == http.StatusUnauthorized {
		return e.message + ": check PULUMI_ACCESS_TOKEN or --token-file " +
			"(the access token of the service is in the file access-token of its data directory)"
	}
	return e.message
}

// hasStatus reports whether an error is a response with this status.
func hasStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// withFlags returns an error of the service with the names of flags in place of the
// fields of its API.
func withFlags(err error, fields *strings.Replacer) error {
	var status *statusError
	if errors.As(err, &status) {
		return &statusError{status.code, fields.Replace(status.message)}
	}
	return err
}

// call makes one call. Body and answer may be nil.
func (c *client) call(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	request.Header.Set("Authorization", cloud.AuthScheme+" "+c.token.Reveal())
	request.Header.Set("Accept", cloud.AcceptV8)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Pulumi-Deployment-Initiator", "cmwa-cloud")

	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("cannot reach %s: %w: start it with cmwa-cloud serve, or set --url or CMWA_CLOUD_URL", c.url,
			secret.WithoutURL(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the response of the service: %w", err)
	}

	// Return an error for any status other than a success.
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
		message := strings.TrimPrefix(refusal.Message, http.StatusText(response.StatusCode)+": ")
		return &statusError{response.StatusCode, message}
	}

	if answer == nil || len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the response of %s is not one of the Pulumi Cloud API: check --url or CMWA_CLOUD_URL", c.url)
	}
	return nil
}

// stackPath returns the API path of a stack with the name ORG/PROJECT/STACK.
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
