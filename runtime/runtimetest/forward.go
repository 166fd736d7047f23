package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"

	"github.com/cmwa-project/cmwa/runtime"
)

// answer is a response of the service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask forwards a call to the service. The end of the client's connection does not cancel
// the forwarded call: without the proxy, the service would not notice this end either.
func (p *Proxy) ask(r *http.Request, body []byte) (answer, error) {
	target, err := url.Parse(p.o.Target)
	if err != nil {
		return answer{}, err
	}
	request := r.Clone(context.WithoutCancel(r.Context()))
	request.URL.Scheme, request.URL.Host, request.Host, request.RequestURI = target.Scheme, target.Host, target.Host, ""
	request.Body, request.ContentLength = http.NoBody, 0
	if len(body) > 0 {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	request.Header.Del("Accept-Encoding") // no compression: faults cut the body at a number of bytes
	request.Header.Del("Connection")      // belongs to the client's connection
	request.TransferEncoding, request.Trailer = nil, nil
	transport := p.forward
	if r.URL.Path == pollPath { // a transport repeats a GET if a reused connection breaks
		transport = p.polls
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxProxied))
	if err != nil {
		return answer{}, err
	}
	header := response.Header.Clone()
	for _, hop := range []string{"Connection", "Content-Length", "Transfer-Encoding", "Keep-Alive"} {
		header.Del(hop)
	}
	return answer{response.StatusCode, header, text}, nil
}

// write sends the response to the client. It applies a fault that changes the body.
func (a answer) write(w http.ResponseWriter, r *http.Request, conn *faultConn, fault Fault) {
	maps.Copy(w.Header(), a.header)
	text, half := a.body, len(a.body)/2
	if fault.Kind == Truncated && half > 0 {
		text = text[:half]
	}
	if len(text) > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	}
	w.WriteHeader(a.status)
	switch {
	case fault.Kind == Cut && half > 0 && conn.state.Load() != connKept:
		_, _ = w.Write(text[:half])
		_ = http.NewResponseController(w).Flush()
		conn.reset()
		panic(http.ErrAbortHandler)
	case fault.Kind == SlowBody && len(text) > 0:
		const pieces = 4
		for i := range pieces {
			_, _ = w.Write(text[i*len(text)/pieces : (i+1)*len(text)/pieces])
			_ = http.NewResponseController(w).Flush()
			if !runtime.Sleep(r.Context(), nil, fault.Delay/pieces) {
				return
			}
		}
	default:
		_, _ = w.Write(text)
	}
}
