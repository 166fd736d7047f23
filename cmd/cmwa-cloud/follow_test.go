package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// TestFollowRetries checks that a failed call does not end a command that follows a deployment, also
// when the call is the last one, and that no line is printed twice.
func TestFollowRetries(t *testing.T) {
	calls := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what, answer := "status", `{"id":"d","version":1,"status":"succeeded"}`
		if strings.HasSuffix(r.URL.Path, "/logs") {
			what, answer = "logs", `{"lines":[{"header":"a step"},{"line":"one line"}]}`
		}
		if calls[what]++; calls[what] == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer service.Close()
	c := &client{url: service.URL, token: secret.New("pul-secret"), http: service.Client()}
	var out bytes.Buffer
	if err := c.follow(t.Context(), "/api/stacks/o/p/s/deployments/d", stdio{nil, &out, &out}); err != nil {
		t.Error(err)
	}
	if want := "== a step\none line\n== the deployment succeeded\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if calls["logs"] != 2 || calls["status"] != 2 {
		t.Errorf("calls: %v, want 2 of the log and 2 of the status", calls)
	}
}

// TestFollowActivityOnce checks that no line is printed twice while an activity whose job has
// ended is not completed yet, and that the log of the next lease is printed from its start.
func TestFollowActivityOnce(t *testing.T) {
	reads := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second := reads >= 4
		if strings.HasSuffix(r.URL.Path, "/logs") {
			line := "first"
			if second {
				line = "second"
			}
			fmt.Fprintf(w, `{"lines":[{"line":%q}]}`, line)
			return
		}
		reads++
		status, leases := "Executing", `{"agent":"a"}`
		if second {
			leases += `,{"agent":"b"}`
		}
		if reads > 6 {
			status = "Completed"
		}
		fmt.Fprintf(w, `{"status":%q,"kind":"insights_scan","leases":[%s]}`, status, leases)
	}))
	defer service.Close()
	c := &client{url: service.URL, token: secret.New("pul-secret"), http: service.Client()}
	var out bytes.Buffer
	if err := c.followActivity(t.Context(), "/activity", stdio{nil, &out, &out}); err != nil {
		t.Error(err)
	}
	const want = "== lease 1, of agent a\nfirst\n== lease 2, of agent b\nsecond\n== Completed\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
