package watch

import (
	"strings"
	"testing"
)

func TestFrozen(t *testing.T) {
	table := `21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 8:1 /srv/agent.yaml /etc/cmwa/agent.yaml ro - ext4 /dev/sda1 rw
31 21 8:1 /var/lib/kubelet/pods/1/volumes/kubernetes.io~configmap/config /config ro - ext4 /dev/sda1 rw
32 21 8:1 /var/lib/kubelet/pods/1/volume-subpaths/config/agent/0 /sub ro - ext4 /dev/sda1 rw
33 21 8:1 /x /with\040space/agent.yaml ro - ext4 /dev/sda1 rw
34
`
	for path, want := range map[string]bool{
		"/etc/cmwa/agent.yaml":              true,
		"/etc/cmwa/other.yaml":              false,
		"/etc/cmwa/agent.yaml.d/other.yaml": false,
		"/config/..2026_11_21/agent.yaml":   false,
		"/sub/agent.yaml":                   true,
		"/subway/agent.yaml":                false,
		"/with space/agent.yaml":            true,
		"/home/agent.yaml":                  false,
	} {
		if got := frozen(strings.NewReader(table), path); got != want {
			t.Errorf("%s is frozen: %t, want %t", path, got, want)
		}
	}
	if Frozen("/proc/version") || Frozen("/not/there") {
		t.Error("a file that is not a mount is frozen")
	}
	if !Frozen("/proc") { // a mount on every Linux system
		t.Error("a mount is not frozen")
	}
}
