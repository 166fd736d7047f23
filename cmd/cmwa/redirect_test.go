package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

// A proxy that redirects http to https passes polls, which are GETs, but not reports. An
// agent that followed the redirect claimed jobs and lost each of them.
func TestRunRedirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	w.queue("waiting", order{Steps: []step{{Name: "a", Run: "true"}}})
	proxy := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		http.Redirect(answer, r, w.url+r.URL.Path, http.StatusMovedPermanently)
	}))
	t.Cleanup(proxy.Close)

	agent := w.agent("service_url: " + proxy.URL)
	agent.waitForMatch(regexp.MustCompile(`service_url answers with a redirect to ` + regexp.QuoteMeta(w.url+
		"/api/deployments/poll") +
		`: set it to ` + regexp.QuoteMeta(w.url) + `[^/]`))
	if status, _ := w.status("waiting"); status != "not-started" {
		t.Errorf("the job behind the redirect is %s", status)
	}
}
