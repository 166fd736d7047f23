package main

import (
	"io"
	"net"
	"testing"

	"github.com/cmwa-project/cmwa/reconcile"
)

// watched is a shell whose log's sink counts how often it is closed.
func watched(t *testing.T, spec reconcile.ProcessSpec) (p *shell, closed *int) {
	t.Helper()
	log := newSwitch(io.Discard)
	p, err := newShell(t.Context(), log, spec)
	if err != nil {
		t.Fatal(err)
	}
	closed = new(int)
	counting := *log.current.Load()
	counting.close = func() { *closed++ }
	log.current.Store(&counting)
	return p, closed
}

func TestAHealthPortThatIsTakenLeavesTheLogsSinkOpen(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	to := spec
	to.HTTPPort = taken.Addr().(*net.TCPAddr).Port
	for range 3 { // it is tried again and again
		if _, err := p.prepare(t.Context(), spec, to); err == nil {
			t.Fatal("a taken port is opened")
		}
	}
	if *closed > 0 {
		t.Errorf("the sink in use was closed %d times", *closed)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	commit, err := p.prepare(t.Context(), spec, to)
	if err != nil {
		t.Fatal(err)
	}
	if commit(); *closed > 0 {
		t.Errorf("a sink that stays in use was closed %d times", *closed)
	}
	if p.close(); *closed != 1 {
		t.Errorf("at the end the sink was closed %d times", *closed)
	}
}

func TestALogSinkThatCannotBeOpenedLeavesTheNewPortFree(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	to := spec
	to.LogLevel, to.HTTPPort = "loud", freePort(t)
	if _, err := p.prepare(t.Context(), spec, to); err == nil {
		t.Fatal("a log of no known level is opened")
	}
	free, err := listen(to.HTTPPort)
	if err != nil {
		t.Fatal("the port is still open: ", err)
	}
	_ = free.Close()
	if *closed > 0 {
		t.Errorf("the sink in use was closed %d times", *closed)
	}
}
