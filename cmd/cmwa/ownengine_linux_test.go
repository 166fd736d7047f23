package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownEngine is a Docker engine of one test. The test may kill its dockerd and containerd.
// Its containers use the network of the host, so the engine needs no firewall rules.
type ownEngine struct {
	w         *world
	directory string
	bridge    string // its name; with --bridge none, dockerd would remove docker0, which the shared engine needs
	options   []string
	daemon    *exec.Cmd
	log       *os.File
}

// newEngine starts an engine with the base image and these options of dockerd. From then
// on, the world uses this engine. The containers can reach the world's service on the
// loopback interface, because they use the network of the host.
func (w *world) newEngine(options ...string) *ownEngine {
	w.t.Helper()
	if _, err := exec.LookPath("dockerd"); err != nil || os.Getuid() != 0 {
		skipUnlessCI(w.t, "a Docker engine of the test needs root and the program dockerd")
	}
	directory, err := os.MkdirTemp("", "engine-") // short: the path of a socket has at most 107 bytes
	w.must(err)
	e := &ownEngine{w: w, directory: directory, options: options}
	e.bridge = "br" + strings.TrimPrefix(filepath.Base(directory), "engine-")
	if out, err := exec.Command("ip", "link", "add", e.bridge, "type", "bridge").CombinedOutput(); err != nil {
		w.t.Fatalf("create the bridge of the engine: %v: %s", err, out)
	}
	e.log, err = os.Create(filepath.Join(directory, "log"))
	w.must(err)
	w.target, w.docker = "docker", "unix://"+filepath.Join(directory, "socket")
	w.t.Cleanup(e.remove)
	e.start()
	save := exec.Command("docker", "save", baseImage)
	load := exec.Command("docker", "--host", w.docker, "load")
	load.Stdin, err = save.StdoutPipe()
	w.must(err)
	w.must(save.Start())
	if out, err := load.CombinedOutput(); err != nil {
		w.t.Fatalf("docker load: %v: %s", err, out)
	}
	w.must(save.Wait())
	return e
}

// data returns the directory of the images and containers.
func (e *ownEngine) data() string { return filepath.Join(e.directory, "data") }

// start starts dockerd and blocks until it answers requests.
func (e *ownEngine) start() {
	e.w.t.Helper()
	pidFile := filepath.Join(e.directory, "pid")
	_ = os.Remove(pidFile) // a killed daemon has left it
	e.daemon = exec.Command("dockerd", append([]string{
		"--host", e.w.docker, "--data-root", e.data(), "--exec-root", filepath.Join(e.directory, "run"),
		"--pidfile", pidFile, "--bridge", e.bridge, "--iptables=false", "--ip6tables=false", "--log-level", "warn",
	}, e.options...)...)
	e.daemon.Stdout, e.daemon.Stderr = e.log, e.log
	e.w.must(e.daemon.Start())
	e.w.eventually("the engine answers", func() bool {
		return exec.Command("docker", "--host", e.w.docker, "version").Run() == nil
	})
}

// restart ends dockerd with SIGKILL and starts it again. The kernel then also ends the containerd
// of this dockerd. The containers continue to run.
func (e *ownEngine) restart() {
	e.w.t.Helper()
	pid := e.containerd()
	e.w.must(e.daemon.Process.Kill())
	_ = e.daemon.Wait()
	e.w.eventually("containerd has ended", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(text, []byte(") Z "))
	})
	e.w.must(os.Remove(e.containerdFile())) // dockerd would take a zombie for a running containerd
	e.start()
}

// killContainerd ends the engine's containerd, which the daemon starts again.
func (e *ownEngine) killContainerd() {
	e.w.t.Helper()
	e.w.must(syscall.Kill(e.containerd(), syscall.SIGKILL))
}

// containerdFile returns the path of the file with the process id of the engine's
// containerd.
func (e *ownEngine) containerdFile() string {
	return filepath.Join(e.directory, "run", "containerd", "containerd.pid")
}

// containerd returns the process id of the engine's containerd.
func (e *ownEngine) containerd() int {
	e.w.t.Helper()
	text, err := os.ReadFile(e.containerdFile())
	e.w.must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	e.w.must(err)
	return pid
}

// remove removes the containers, ends dockerd, and removes the bridge and the directory of
// the engine.
func (e *ownEngine) remove() {
	if e.w.t.Failed() {
		text, _ := os.ReadFile(e.log.Name())
		e.w.t.Logf("-- output of the engine:\n%s", text)
	}
	for _, id := range strings.Fields(e.w.engine("ps", "--all", "--quiet")) {
		e.w.engine("rm", "--force", id)
	}
	_ = e.daemon.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(20*time.Second, func() { _ = e.daemon.Process.Kill() })
	_ = e.daemon.Wait()
	kill.Stop()
	_ = exec.Command("ip", "link", "delete", e.bridge).Run()
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range bytes.Lines(mounts) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && strings.HasPrefix(fields[1], e.directory+"/") {
			_ = unix.Unmount(fields[1], unix.MNT_DETACH)
		}
	}
	_ = e.log.Close()
	if err := os.RemoveAll(e.directory); err != nil {
		e.w.t.Errorf("remove the engine's directory: %v", err)
	}
}

// smallDisk mounts an empty file system at a directory, until the end of the test. The file
// system has this size in bytes.
func smallDisk(t testing.TB, directory string, size int) {
	t.Helper()
	noError(t, os.MkdirAll(directory, 0o755))
	err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size="+strconv.Itoa(size))
	switch err {
	case nil:
	case unix.EPERM, unix.EACCES:
		skipUnlessCI(t, "a small file system needs root, and the right to mount")
	default:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", directory, err)
		}
	})
}

// fill fills the file system of a directory, and returns a function that frees the space.
func fill(t testing.TB, directory string) (free func()) {
	t.Helper()
	path := filepath.Join(directory, "filler")
	file, err := os.Create(path)
	noError(t, err)
	defer file.Close()
	for block := make([]byte, 1<<16); len(block) > 0; {
		if _, err := file.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	return func() {
		t.Helper()
		noError(t, os.Remove(path))
	}
}
