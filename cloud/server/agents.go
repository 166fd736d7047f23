package server

import (
	"cmp"
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

// agentRetention is how long a pool lists an agent after its last call (one to two
// hours in Pulumi's documentation).
const agentRetention = time.Hour

// maxAgent limits each property of an agent, in bytes.
const maxAgent = 200

// parseUserAgent reads a User-Agent of the form "name/version (os/arch; host=…;
// pid=…)". Missing parts stay empty.
func parseUserAgent(userAgent, remote string) store.Agent {
	cut := func(text string) string { return printable.Shorten(printable.OneLine(text), maxAgent) }
	var a store.Agent
	if host, _, err := net.SplitHostPort(remote); err == nil {
		a.IP = host
	}

	// The version follows the slash.
	product, comment, _ := strings.Cut(userAgent, "(")
	if _, version, found := strings.Cut(product, "/"); found {
		a.Version, _, _ = strings.Cut(version, " ")
		a.Version = cut(a.Version)
	}

	// The comment has the platform, and properties with a name.
	comment, _, _ = strings.Cut(comment, ")")
	for item := range strings.SplitSeq(comment, ";") {
		key, value, assigned := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case assigned && key == "host":
			a.Hostname = cut(value)
		case assigned && key == "pid":
			a.PID = cut(value)
		case !assigned && a.Platform == "":
			a.Platform = cut(item)
		}
	}
	return a
}

// agentName returns the agent for people, such as "host (pid 42)". An agent without a host has the name of its address.
func agentName(a store.Agent) string {
	name := cmp.Or(a.Hostname, a.IP)
	if a.PID != "" {
		name += " (pid " + a.PID + ")"
	}
	return name
}

// callTimes limits how often the time of an agent's last call is written to the database,
// because agents poll often.
type callTimes struct {
	mu      sync.Mutex
	written map[seenKey]time.Time
}

type seenKey struct {
	pool  string
	agent store.Agent
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
		return t.RecordAgent(pool, a, c.now, c.now.Add(-agentRetention))
	})
}

// listAgents returns the agents of a pool with a recent call, the latest first.
func listAgents(t *store.Tx, pool string, now time.Time) ([]agentView, error) {
	seen, err := t.Agents(pool, now.Add(-agentRetention))
	all := make([]agentView, 0, len(seen))
	for _, a := range seen {
		all = append(all, agentView{
			Hostname: a.Hostname, IP: a.IP, PID: a.PID, Platform: a.Platform, Version: a.Version,
			Status: agentStatus(a.Seen, now), LastSeen: seconds(a.Seen),
		})
	}
	return all, err
}
