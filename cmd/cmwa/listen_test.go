package main

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestListen(t *testing.T) {
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	open := func(t *testing.T, address string, number int, inUse net.Listener) net.Listener {
		t.Helper()
		l, err := listen(t.Context(), address, number, inUse)
		noError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	reaches := func(address string, number int) bool {
		c, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(number)))
		if err != nil {
			return false
		}
		return c.Close() == nil
	}

	for _, change := range [][2]string{
		{"", "127.0.0.1"}, {"127.0.0.1", ""}, {"0.0.0.0", "127.0.0.1"}, {"::", "127.0.0.1"},
		{"localhost", "127.0.0.1"},
	} {
		t.Run(fmt.Sprintf("opens %q and %q on one port, which no other listener gets", change[1],
			change[0]), func(t *testing.T) {
			number := freePort(t)
			old := open(t, change[0], number, nil)
			opened := open(t, change[1], number, old)
			noError(t, old.Close())
			if port(opened) != number || !reaches("127.0.0.1", number) {
				t.Errorf("%v is not reached on port %d", opened.Addr(), number)
			}
			for _, address := range []string{"", "127.0.0.1"} {
				if other, err := listen(t.Context(), address, number, nil); err == nil {
					_ = other.Close()
					t.Errorf("another listener opens %q too", address)
				}
			}
		})
	}
	t.Run("failed listen keeps the listener in use and its port", func(t *testing.T) {
		number := freePort(t)
		old := open(t, "127.0.0.1", number, nil)
		_, err := listen(t.Context(), "192.0.2.1", number, old) // no address of this machine
		if err == nil || !strings.Contains(err.Error(), "set http_server_address to an address of this machine") {
			t.Errorf("%v", err)
		}
		if other, err := listen(t.Context(), "127.0.0.1", number, nil); err == nil {
			_ = other.Close()
			t.Error("the port is shared")
		}
		if !reaches("127.0.0.1", number) {
			t.Error("the listener in use was closed")
		}
	})
	t.Run("the error for a port in use names the hint", func(t *testing.T) {
		taken := open(t, "127.0.0.1", freePort(t), nil)
		if _, err := listen(t.Context(), "127.0.0.1", port(taken), nil); err == nil ||
			!strings.Contains(err.Error(), "set http_server_port to a free port") {
			t.Errorf("%v", err)
		}
	})
}

// otherAddress is an address of this machine that differs from 127.0.0.1.
const otherAddress = "127.0.0.2"

func TestReloadHTTPServerAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	port := agentPort(freePort(t))
	content := func(address string) string {
		lines := []string{"token: " + p[0].token, port.setting(), "max_concurrent_workflows: 2"}
		if address != "" {
			lines = append(lines, "http_server_address: "+address)
		}
		return w.content(lines...)
	}
	health := func(address string) int { return probe(fmt.Sprintf("http://%s:%d/healthz", address, port)) }
	only := func(good, bad string) {
		t.Helper()
		w.eventually("only "+good+" answers", func() bool { return health(good) == http.StatusOK && health(bad) == 0 })
		proxied := []string{"HTTP_PROXY=http://127.0.0.1:1", "http_proxy="}
		if result := w.onceWith(proxied, "status", "--config", w.file()); result.code != cli.ExitOK {
			t.Errorf("status: %+v", result)
		}
		result := w.onceWith(proxied, "plan", "--live", "--config", w.file(), w.file())
		if result.code != cli.ExitOK || result.stdout != "no change\n" {
			t.Errorf("plan --live: %+v", result)
		}
	}

	agent := w.followText(nil, content(""))
	w.hold("held", p[0].id)
	if health("127.0.0.1") != http.StatusOK || health(otherAddress) != http.StatusOK {
		t.Error("without http_server_address, the agent does not answer on all addresses")
	}
	w.replace(w.file(), content("127.0.0.1"))
	only("127.0.0.1", otherAddress)
	w.replace(w.file(), content(otherAddress))
	only(otherAddress, "127.0.0.1")

	// An address that this machine does not have is not applied. The log names the hint.
	w.replace(w.file(), content("192.0.2.1"))
	agent.waitForMatch(regexp.MustCompile(`set http_server_address to an address of this machine`))
	if health(otherAddress) != http.StatusOK {
		t.Error("the address in use does not answer any more")
	}
	w.waitPoll(v, p[0].token)
	w.replace(w.file(), content(""))
	w.eventually("all addresses answer",
		func() bool { return health("127.0.0.1") == http.StatusOK && health(otherAddress) == http.StatusOK })
	w.release("held")
}

func TestRunHTTPServerAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port := agentPort(freePort(t))
	w.agentWith([]string{"PULUMI_AGENT_HTTP_SERVER_ADDRESS=" + otherAddress}, port.setting())
	w.eventually("the address answers",
		func() bool { return probe(fmt.Sprintf("http://%s:%d/healthz", otherAddress, port)) == http.StatusOK })
	if got := port.healthz(); got != 0 {
		t.Errorf("another address answers %d", got)
	}
}
