package runner

import "testing"

func TestKillCount(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
		ok   bool
	}{
		{"low 0\nhigh 0\nmax 5\noom 2\noom_kill 3\noom_group_kill 1\n", 3, true},
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7, true},
		{"oom_kill_disable 0\nunder_oom 0\n", 0, false}, // before Linux 4.13
		{"oom_kill many", 0, false},
		{"", 0, false},
	} {
		if got, ok := killCount(c.text); got != c.want || ok != c.ok {
			t.Errorf("%q: got %d (%v), want %d (%v)", c.text, got, ok, c.want, c.ok)
		}
	}
}
