package control

import "testing"

func TestMayControl(t *testing.T) {
	const all, some = "         0          0 4294967295\n", "         0     100000      65536\n"
	for _, c := range []struct {
		user, own         int
		overflow, mapping string
		want              bool
	}{
		{1000, 1000, "65534\n", all, true},
		{1000, 1000, "65534\n", some, true},
		{0, 1000, "65534\n", some, true},
		{1001, 1000, "65534\n", all, false},
		{65534, 1000, "65534\n", all, false},
		{65534, 65534, "65534\n", all, true},
		{65534, 65534, "65534\n", some, false},
		{65534, 65534, "65534\n", all + some, false},
		{65534, 65534, "", "", false},
		{65534, 65534, "1234\n", some, true},
		{1234, 1234, "1234\n", some, false},
	} {
		if got := mayControl(c.user, c.own, c.overflow, c.mapping); got != c.want {
			t.Errorf("user %d, agent of user %d, overflow %q, mapping %q: got %t, want %t", c.user, c.own, c.overflow,
				c.mapping, got, c.want)
		}
	}
}
