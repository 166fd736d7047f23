package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// TestDefinitionTooLarge checks that a job fails if its definition is too large, and that its log
// has the reason. The proxy pads the definitions of one stack's jobs; the job of the other stack is
// not affected.
func TestDefinitionTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	service, err := url.Parse(w.url)
	w.must(err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(service) },
		ModifyResponse: func(answer *http.Response) error {
			path, isJob := strings.CutPrefix(answer.Request.URL.Path, "/api/workflow/jobs/")
			if answer.Request.Method != http.MethodGet || !isJob || strings.Contains(path, "/") {
				return nil
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil || !bytes.Contains(text, []byte("echo large")) {
				answer.Body = io.NopCloser(bytes.NewReader(text))
				return err
			}
			text = fmt.Appendf(nil, `{"padding":"%s",%s`, strings.Repeat("x", 8<<20), text[1:])
			answer.Body = io.NopCloser(bytes.NewReader(text))
			answer.Header.Set("Content-Length", strconv.Itoa(len(text)))
			return nil
		},
	})
	t.Cleanup(proxy.Close)

	w.queue("large", oneStep("echo large"))
	w.agent("service_url: " + proxy.URL)
	w.await("large", "failed")
	w.wantLog("large", "Error: fetch the job's definition: the definition of the job is larger than 8 MiB: "+
		"shorten the scripts and variables of its deployment settings")
	w.queue("small", oneStep("echo small"))
	w.await("small", "succeeded")
}
