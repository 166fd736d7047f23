package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// Limits of the program as make build builds it, and of its resident memory while it has no calls (VmRSS, proc(5)).
const (
	programLimit = 30 << 20 // bytes
	memoryLimit  = 40       // MB
)

// TestServeFootprint measures the program and an idle service.
func TestServeFootprint(t *testing.T) {
	program := filepath.Join(t.TempDir(), "cmwa-cloud")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}

	p := &testService{t: t, directory: filepath.Join(t.TempDir(), "data"), env: map[string]string{}}
	out := newOutput()
	cmd := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--data", p.directory)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the service ended with %v:\n%s", err, out)
		}
	}()
	p.env["CMWA_CLOUD_URL"] = out.find(t, `http://[0-9.]+:[0-9]+`)
	p.run(cli.ExitOK, "pool", "list", "--token-file", filepath.Join(p.directory, "access-token"))

	resident := residentMB(t, cmd.Process.Pid)
	t.Logf("the program has %d MB, the idle service %.1f MB", info.Size()>>20, resident)
	if info.Size() > programLimit || resident > memoryLimit {
		t.Errorf("the limits are %d and %d MB", programLimit>>20, memoryLimit)
	}
}
