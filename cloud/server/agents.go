package server

import (
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/schema/printable"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// agentView is an agent of a pool. LastSeen is the time of its last call, in Unix seconds.
type agentView struct {
	Hostname string `json:"hostname"`
	IP       string `json:"ip"`
	PID      string `json:"pid"`
	Platform string `json:"platform"`
	Version  string `json:"version"`
	Status   string `json:"status"`
	LastSeen int64  `json:"lastSeen"`
}

// agent identifies the sender of a request. Fields that the request does not state are
// empty.
type agent struct{ hostname, ip, pid, version, platform string }

// agentRetention is how long a pool lists an agent after its last call (one to two
// hours in Pulumi's documentation).
const agentRetention = time.Hour

// maxAgent limits each property of an agent, in bytes.
const maxAgent = 200

// parseUserAgent reads a User-Agent of the form "name/version (os/arch; host=…;
// pid=…)". Missing parts stay empty.
func parseUserAgent(userAgent, remote string) agent {
	cut := func(text string) string { return printable.Shorten(printable.OneLine(text), maxAgent) }
	var a agent
	if host, _, err := net.SplitHostPort(remote); err == nil {
		a.ip = host
	}

	// The version follows the slash.
	product, comment, _ := strings.Cut(userAgent, "(")
	if _, version, found := strings.Cut(product, "/"); found {
		a.version, _, _ = strings.Cut(version, " ")
		a.version = cut(a.version)
	}

	// The comment has the platform, and properties with a name.
	comment, _, _ = strings.Cut(comment, ")")
	for item := range strings.SplitSeq(comment, ";") {
		key, value, assigned := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case assigned && key == "host":
			a.hostname = cut(value)
		case assigned && key == "pid":
			a.pid = cut(value)
		case !assigned && a.platform == "":
			a.platform = cut(item)
		}
	}
	return a
}

// callTimes limits how often the time of an agent's last call is written to the database,
// because agents poll often.
type callTimes struct {
	mu      sync.Mutex
	written map[seenKey]time.Time
}

type seenKey struct {
	pool  string
	agent agent
}

// seenInterval is the shortest time between two writes for one agent.
const seenInterval = 30 * time.Second

func newCallTimes() *callTimes { return &callTimes{written: map[seenKey]time.Time{}} }

// recordIfDue reports whether a call of an agent must be written to the database. If so, it
// records the time of the call and removes agents without a recent call.
func (t *callTimes) recordIfDue(k seenKey, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.written[k]) < seenInterval {
		return false
	}
	for other, last := range t.written {
		if now.Sub(last) > agentRetention {
			delete(t.written, other)
		}
	}
	t.written[k] = now
	return true
}

// recordAgent records a call of an agent of a pool.
func (s *Server) recordAgent(c *call) error {
	pool, a := c.caller.subject, parseUserAgent(c.UserAgent(), c.RemoteAddr)
	if !s.agents.recordIfDue(seenKey{pool, a}, c.now) {
		return nil
	}
	return s.db.Write(c.Context(), func(t *store.Tx) error {
		if _, err := t.Exec(`UPDATE pools SET seen = ? WHERE id = ?`, store.ToNanos(c.now), pool); err != nil {
			return err
		}
		if _, err := t.Exec(`DELETE FROM agents WHERE seen < ?`, store.ToNanos(c.now.Add(-agentRetention))); err != nil {
			return err
		}
		_, err := t.Exec(`INSERT OR REPLACE INTO agents (pool, hostname, ip, pid, version, platform, seen)
			SELECT id, ?, ?, ?, ?, ?, ? FROM pools WHERE id = ?`,
			a.hostname, a.ip, a.pid, a.version, a.platform, store.ToNanos(c.now), pool)
		return err
	})
}

// listAgents returns the agents of a pool with a recent call, the latest first.
func listAgents(t *store.Tx, pool string, now time.Time) ([]agentView, error) {
	return store.Rows(t, func(scan func(...any) error) (a agentView, err error) {
		var seen int64
		err = scan(&a.Hostname, &a.IP, &a.PID, &a.Platform, &a.Version, &seen)
		a.LastSeen, a.Status = seconds(seen), agentStatus(seen, now)
		return a, err
	}, `SELECT hostname, ip, pid, platform, version, seen FROM agents
		WHERE pool = ? AND seen >= ? ORDER BY seen DESC, hostname, pid`,
		pool, store.ToNanos(now.Add(-agentRetention)))
}
