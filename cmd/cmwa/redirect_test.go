package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

// TestRunRedirect checks that the agent does not follow a redirect of service_url, and names
// the URL to set. Some proxies redirect http to https. Polls are GET requests and would pass
// such a proxy, but reports would not. An agent that followed the redirect would claim jobs
// and lose them.
func TestRunRedirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	w.queue("waiting", oneStep("true"))
	proxy := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		http.Redirect(answer, r, w.url+r.URL.Path, http.StatusMovedPermanently)
	}))
	t.Cleanup(proxy.Close)

	agent := w.agent("service_url: " + proxy.URL)
	agent.waitForMatch(regexp.MustCompile(regexp.QuoteMeta("service_url answers with a redirect to "+
		w.url+"/api/deployments/poll: set it to "+w.url) + `[^/]`))
	w.wantStatus("waiting", "not-started")
}
