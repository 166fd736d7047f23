package server

import (
	"strings"
	"testing"
)

func TestDeletePool(t *testing.T) {
	t.Run("a pool with a running job is deleted only with force=true", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		got := w.want(400, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
		if want := "the pool has running jobs (1)"; !strings.Contains(got.body, want) {
			t.Errorf("got %s, want %s", got.body, want)
		}
		w.want(204, p.Token, "GET", "/api/deployments/poll", nil, nil)
		w.want(204, w.user, "DELETE", pools+"/"+p.ID+"?force=true", nil, nil)
		w.want(401, p.Token, "GET", "/api/deployments/poll", nil, nil)
		c.status(0, running)
		w.shows(at, id, running, running, notStarted)
	})
	t.Run("a pool whose jobs have ended is deleted without its agent", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		w.deploy(at, steps(1))
		c := w.mustClaim(p)
		c.status(0, running)
		c.status(0, failed)
		got := w.want(400, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
		if want := "used the pool less than 3m0s ago: stop the agent"; !strings.Contains(got.body, want) {
			t.Errorf("got %s, want %s", got.body, want)
		}
		w.write(`UPDATE agents SET seen = 0`) // long ago
		w.want(204, w.user, "DELETE", pools+"/"+p.ID, nil, nil)
	})
}

func TestCreatePoolToken(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	path := pools + "/" + p.ID + "/tokens"
	polls := func(token string) int { return w.ask(token, "GET", "/api/deployments/poll", nil).code }
	var second, third pool
	w.want(200, w.user, "POST", path, object{}, &second)
	if old, added := polls(p.Token), polls(second.Token); old != 204 || added != 204 {
		t.Errorf("the old token gets %d and the new one %d, want 204 for both", old, added)
	}
	w.want(200, w.user, "POST", path, object{"revokeOthers": true}, &third)
	if first, old, added := polls(p.Token), polls(second.Token), polls(third.Token); first != 401 || old != 401 ||
		added != 204 {
		t.Errorf("after a revocation the tokens get %d, %d and %d, want 401, 401 and 204", first, old, added)
	}
	w.want(404, w.user, "POST", pools+"/none/tokens", object{}, nil)
	w.want(403, third.Token, "POST", path, object{}, nil)
}
