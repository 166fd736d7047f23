package server

import (
	"net"
	"strings"
	"sync"
	"time"
)

// agentView is an agent of a pool; lastSeen is in Unix seconds.
type agentView struct {
	Hostname string `json:"hostname"`
	IP       string `json:"ip"`
	PID      string `json:"pid"`
	Platform string `json:"platform"`
	Version  string `json:"version"`
	Status   string `json:"status"`
	LastSeen int64  `json:"lastSeen"`
}

// agent is what a request tells of the agent that sent it.
type agent struct{ hostname, ip, pid, version, platform string }

// agentMemory is how long an agent shows in its pool after it was last seen
// (Pulumi's documentation speaks of one to two hours).
const agentMemory = time.Hour

// maxAgent limits each text that an agent tells of itself, in bytes.
const maxAgent = 200

// describe reads a User-Agent of the form "name/version (os/arch; host=…;
// pid=…)". What is not there stays empty.
func describe(userAgent, remote string) agent {
	cut := func(text string) string {
		text = strings.ToValidUTF8(strings.TrimSpace(text), "")
		if len(text) > maxAgent {
			text = strings.ToValidUTF8(text[:maxAgent], "")
		}
		return text
	}
	var a agent
	if host, _, err := net.SplitHostPort(remote); err == nil {
		a.ip = host
	}
	product, comment, _ := strings.Cut(userAgent, "(")
	if _, version, found := strings.Cut(product, "/"); found {
		a.version, _, _ = strings.Cut(version, " ")
		a.version = cut(a.version)
	}
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

// presence keeps writes of "was seen" rare: an agent polls far more often than
// anybody looks.
type presence struct {
	mu      sync.Mutex
	written map[seenKey]time.Time
}

type seenKey struct {
	pool  string
	agent agent
}

// seenEvery is how exactly the database knows when an agent was seen.
const seenEvery = 30 * time.Second

func newPresence() *presence { return &presence{written: map[seenKey]time.Time{}} }

// due tells whether the database should hear of an agent again, and takes note
// that it does. Agents that were not seen for long are forgotten.
func (p *presence) due(k seenKey, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.written[k]) < seenEvery {
		return false
	}
	for other, last := range p.written {
		if now.Sub(last) > agentMemory {
			delete(p.written, other)
		}
	}
	p.written[k] = now
	return true
}

// saw notes that an agent of a pool has called.
func (s *Server) saw(c *call) error {
	a := describe(c.UserAgent(), c.RemoteAddr)
	if !s.agents.due(seenKey{c.who.subject, a}, c.now) {
		return nil
	}
	return s.store.write(c.Context(), func(t *tx) error {
		if _, err := t.exec(`UPDATE pools SET seen = ? WHERE id = ?`, stamp(c.now), c.who.subject); err != nil {
			return err
		}
		if _, err := t.exec(`DELETE FROM agents WHERE seen < ?`, stamp(c.now.Add(-agentMemory))); err != nil {
			return err
		}
		_, err := t.exec(`INSERT OR REPLACE INTO agents (pool, hostname, ip, pid, version, platform, seen) SELECT id, ?, ?, ?, ?, ?, ? FROM pools WHERE id = ?`,
			a.hostname, a.ip, a.pid, a.version, a.platform, stamp(c.now), c.who.subject)
		return err
	})
}

// agentsOf lists the agents that were seen of late.
func agentsOf(t *tx, pool string, now time.Time) ([]agentView, error) {
	return rows(t, func(scan func(...any) error) (a agentView, err error) {
		var seen int64
		err = scan(&a.Hostname, &a.IP, &a.PID, &a.Platform, &a.Version, &seen)
		a.LastSeen, a.Status = seconds(seen), status(seen, now)
		return a, err
	}, `SELECT hostname, ip, pid, platform, version, seen FROM agents WHERE pool = ? AND seen >= ? ORDER BY seen DESC, hostname, pid`,
		pool, stamp(now.Add(-agentMemory)))
}
