package server

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFailedLogins sends an unknown token too often. Only further calls with unknown tokens, from the same address, are
// refused with 429, and never those of agents and runners.
func TestFailedLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		p := w.pool("p")
		const unknown = "cmwa-user-0"
		from := func(address string) int {
			r := httptest.NewRequest("GET", "/api/user", nil)
			r.RemoteAddr = address
			r.Header.Set("Authorization", "token "+unknown)
			rec := httptest.NewRecorder()
			w.handler.ServeHTTP(rec, r)
			return rec.Code
		}
		for range maxFailedLogins {
			w.want(401, unknown, "GET", "/api/user", nil, nil)
		}
		time.Sleep(40 * time.Second)
		got := w.want(429, unknown, "GET", "/api/user", nil, nil)
		if got.header.Get("Retry-After") != "20" || !strings.Contains(got.body, "in 20 seconds") ||
			strings.Contains(got.body, unknown) {
			t.Errorf("the refusal is %s with %v", got.body, got.header)
		}
		w.want(200, w.user, "GET", "/api/user", nil, nil)
		w.want(204, p.Token, "GET", "/api/deployments/poll", nil, nil)
		w.want(401, "", "GET", "/api/user", nil, nil)
		for path, method := range map[string]string{
			"/api/deployments/poll": "GET", "/api/workflow/jobs/1/heartbeat": "POST",
			"/api/background-activities/worker/lease/1/renew": "POST",
		} {
			w.want(401, unknown, method, path, nil, nil)
		}
		lost := w.send("", "POST", "/api/stacks/organization/project/s/update/1/renew_lease", "{}", "Authorization",
			updateScheme+" "+unknown)
		if lost.code != 403 {
			t.Errorf("the renewal of a lost lease: %d %s, want 403", lost.code, lost.body)
		}
		if got := from("192.0.2.2:1234"); got != 401 {
			t.Errorf("another address gets %d, want 401", got)
		}
		if got := from("192.0.2.1:4321"); got != 429 {
			t.Errorf("another port of the address gets %d, want 429", got)
		}
		if got := w.signIn(unknown).Code; got != 429 {
			t.Errorf("the sign-in of the web page gets %d, want 429", got)
		}
		time.Sleep(20 * time.Second)
		w.want(401, unknown, "GET", "/api/user", nil, nil)

		for i := range 2 * limitedAddresses {
			if err := w.server.logins.add(fmt.Sprint("address ", i), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.server.logins.byAddress.Len(); got != limitedAddresses {
			t.Errorf("%d addresses are in memory, want %d", got, limitedAddresses)
		}
	})
}
