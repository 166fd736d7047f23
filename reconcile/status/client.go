package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	fetchTimeout = 5 * time.Second // for one request and its response
	maxDocument  = 8 << 20         // size of a response in bytes: about ten thousand jobs
	maxHeader    = 64 << 10        // size of the header of a response in bytes
)

// ErrNoAgent is the error of [Fetch] for a URL at which no server responds.
var ErrNoAgent = errors.New("no response from an agent")

// Fetch requests the Document at a URL, without a proxy if local is true. The text of an error
// is for people, and quotes nothing of the response. If the request gets no HTTP response, the
// error wraps [ErrNoAgent].
func Fetch(ctx context.Context, address string, local bool) (Document, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()

	// Send the request, and follow no redirect.
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader}
	if !local {
		transport.Proxy = http.ProxyFromEnvironment
	}
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Document{}, fmt.Errorf("%q is not a URL", address)
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Document{}, fmt.Errorf("%w at %s: %s", ErrNoAgent, address, explain(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Document{}, fmt.Errorf("%s responded with status code %d: not a cmwa agent",
			address, response.StatusCode)
	}

	content, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	switch {
	case err != nil:
		return Document{}, fmt.Errorf("the response of %s is incomplete: %s", address, explain(err))
	case len(content) > maxDocument:
		return Document{}, fmt.Errorf("the response of %s is larger than %d MiB: not a cmwa agent",
			address, maxDocument>>20)
	}
	return Decode(content, address)
}

// Decode returns the Document in the content of a response. From is who responded, for errors.
func Decode(content []byte, from string) (Document, error) {
	var version struct{ Version int }
	if json.Unmarshal(content, &version) != nil || version.Version <= 0 {
		return Document{}, fmt.Errorf("the response of %s is not that of a cmwa agent", from)
	}
	if version.Version != Version {
		return Document{}, fmt.Errorf("%s has a status of version %d, and this program reads version %d: "+
			"use the program of the agent's release", from, version.Version, Version)
	}
	var d Document
	if json.Unmarshal(content, &d) != nil {
		return Document{}, fmt.Errorf("the response of %s is not that of a cmwa agent", from)
	}
	return d, nil
}

// explain returns why a request failed, without quoting the error.
func explain(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, new(*net.DNSError)):
		return "unknown host"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no response within %s", fetchTimeout)
	default:
		return "connection failed"
	}
}
