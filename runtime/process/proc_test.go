//go:build linux || darwin

package process

import (
	"testing"
	"time"
)

func TestLeaderOwns(t *testing.T) {
	ours := leader{PID: 40, Began: time.Hour, Stamp: "then"}
	self := proc{pid: 40, session: 40, began: time.Hour, stamp: "then"}
	dead, other := self, self
	dead.ended = true
	other.stamp = "later"
	runner := proc{pid: 41, session: 40, began: time.Hour + 10*time.Millisecond}
	late := proc{pid: 42, session: 40, began: time.Hour + time.Minute}
	for _, c := range []struct {
		what  string
		l     leader
		p     proc
		now   proc
		there bool
		want  bool
	}{
		{"the supervisor itself", ours, self, self, true, true},
		{"a late process while the supervisor runs", ours, late, self, true, true},
		{"a late process while the supervisor is not yet reaped", ours, late, dead, true, true},
		{"another session", ours, proc{pid: 43, session: 39}, self, true, false},
		{"a session whose leader has the same id", ours, late, other, true, false},
		{"the runner, when the supervisor has gone", ours, runner, proc{}, false, true},
		{"a late process, when the supervisor has gone", ours, late, proc{}, false, false},
		{
			"an older process, when the supervisor has gone",
			ours, proc{pid: 44, session: 40, began: time.Minute}, proc{}, false, false,
		},
		{
			"a kernel thread, without a file of the supervisor",
			leader{}, proc{pid: 2, session: 0}, proc{}, false, false,
		},
	} {
		if got := c.l.owns(c.p, c.now, c.there); got != c.want {
			t.Errorf("%s: owns returns %v, want %v", c.what, got, c.want)
		}
	}
}
