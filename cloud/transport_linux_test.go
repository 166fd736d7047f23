package cloud

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTransportSocket(t *testing.T) {
	t.Run("the socket of a connection has the limits for a silent peer", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		noError(t, err)
		defer listener.Close()
		conn, err := newTransport().DialContext(t.Context(), "tcp", listener.Addr().String())
		noError(t, err)
		defer conn.Close()
		socket, err := conn.(syscall.Conn).SyscallConn()
		noError(t, err)
		options := map[string]struct {
			option int
			unit   time.Duration
			want   time.Duration
		}{
			"TCP_KEEPIDLE":     {unix.TCP_KEEPIDLE, time.Second, pingIdle},
			"TCP_KEEPINTVL":    {unix.TCP_KEEPINTVL, time.Second, probeInterval},
			"TCP_USER_TIMEOUT": {unix.TCP_USER_TIMEOUT, time.Millisecond, unackedLimit},
		}
		err = socket.Control(func(descriptor uintptr) {
			for name, o := range options {
				value, err := unix.GetsockoptInt(int(descriptor), unix.IPPROTO_TCP, o.option)
				if got := time.Duration(value) * o.unit; err != nil || got != o.want {
					t.Errorf("%s is %s (%v), want %s", name, got, err, o.want)
				}
			}
			if count, err := unix.GetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_KEEPCNT); err != nil ||
				count != probeCount {
				t.Errorf("TCP_KEEPCNT is %d (%v), want %d", count, err, probeCount)
			}
		})
		if err != nil {
			t.Error(err)
		}
		if limit := pingIdle + probeCount*probeInterval; limit > unackedLimit || unackedLimit >= 30*time.Second {
			t.Errorf("an idle connection ends after %s and a busy one after %s, want less than the 30s between two "+
				"heartbeats", limit, unackedLimit)
		}
	})
}
