package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestReloadPinnedServiceURL checks that an edit of service_url does not send the pool's token to
// another address if the agent was started with a pin, and that the agent works on as before.
func TestReloadPinnedServiceURL(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(other.Close)
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	good := []string{"token: " + p[0].token}

	agent := w.follow([]string{pinVariable + "=" + w.url + "/"}, good...)
	w.save(append(slices.Clone(good), "service_url: "+other.URL)...)
	agent.signal(syscall.SIGHUP)
	agent.waitForMatch(regexp.MustCompile(`configuration rejected.*agent\.yaml:2:14: service_url: must be ` +
		regexp.QuoteMeta(w.url)))
	w.waitPoll(v, p[0].token)
	w.runShort("next", p[0].id)
	if n := requests.Load(); n > 0 {
		t.Errorf("the other address got %d requests", n)
	}

	// With this file the agent does not start. The flag replaces the variable.
	env := []string{pinVariable + "=" + other.URL}
	second := w.start("second", append(env, w.ownState("second")...), "cmwa", "run", "--config", w.file(),
		"--service-url-pin", w.url)
	second.exit(2)
	second.wantPrinted(1, "agent.yaml:2:14: service_url: must be "+w.url+", because the agent was started")
}
