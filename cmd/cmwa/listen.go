package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen opens the listener of the HTTP server on an address of this machine, or on all
// its addresses if address is empty. For port 0 there is no server, and listen returns
// nil, nil.
//
// The listener in use, which may be nil, stays open. If only the address changes,
// such as from *:8080 to 127.0.0.1:8080, the kernel refuses the new listener while
// the old one is open, unless both sockets have SO_REUSEPORT. They have this option only
// during the call, so that at all other times no other program can open the port.
func listen(ctx context.Context, address string, port int, inUse net.Listener) (net.Listener, error) {
	if port == 0 {
		return nil, nil
	}

	var config net.ListenConfig
	if old, ok := inUse.(*net.TCPListener); ok && old.Addr().(*net.TCPAddr).Port == port {
		if err := sharePort(old, true); err != nil {
			return nil, fmt.Errorf("share the HTTP server's port: %w", err)
		}
		defer func() { _ = sharePort(old, false) }()
		config.Control = func(_, _ string, socket syscall.RawConn) error { return shareSocket(socket, true) }
	}

	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case err != nil && (address == "" || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES)):
		return nil, fmt.Errorf("open the health port: %w: set http_server_port to a free port, or to 0 for none", err)
	case err != nil:
		const hint = "set http_server_address to an address of this machine, or remove it"
		return nil, fmt.Errorf("open the health port: %w: "+hint, err)
	}
	if config.Control != nil {
		if err := sharePort(listener.(*net.TCPListener), false); err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("keep the HTTP server's port: %w", err)
		}
	}
	return listener, nil
}

// sharePort allows or forbids another socket of this user on the listener's port.
func sharePort(listener *net.TCPListener, shared bool) error {
	socket, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	return shareSocket(socket, shared)
}

func shareSocket(socket syscall.RawConn, shared bool) error {
	value := 0
	if shared {
		value = 1
	}
	var failed error
	err := socket.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value)
	})
	return errors.Join(err, failed)
}
