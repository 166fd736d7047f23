// Tests build this file into the agent with go build -overlay, so that they can
// see its goroutines. The agent that is released does not have it.

package main

import (
	"net"
	"os"
	"runtime/pprof"
)

// init answers each connection to the socket in CMWA_TEST_PROFILE with the stacks
// of all goroutines.
func init() {
	path := os.Getenv("CMWA_TEST_PROFILE")
	if path == "" {
		return
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = pprof.Lookup("goroutine").WriteTo(conn, 2)
			_ = conn.Close()
		}
	}()
}
