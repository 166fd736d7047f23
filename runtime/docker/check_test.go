package docker

import (
	"debug/elf"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// swarmWorker responds that the engine is a worker of a swarm.
func swarmWorker(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `{"Swarm":{"LocalNodeState":"active","ControlAvailable":false}}`)
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := workingDirectory(t, map[string][]byte{"workflow-runner-linux-arm64": binaryFor(elf.EM_AARCH64, false)})
	for _, c := range []struct {
		name   string
		engine func(*fakeEngine)
		edit   func(*runtime.InstanceSpec)
		want   string // empty for no problem
	}{
		{"settings that work", nil, func(*runtime.InstanceSpec) {}, ""},
		{"no runner", nil, func(p *runtime.InstanceSpec) { p.WorkingDirectory = t.TempDir() }, "set working_directory"},
		{"runner for another architecture only", nil, func(p *runtime.InstanceSpec) { p.WorkingDirectory = foreign },
			""},
		{"no engine", func(d *fakeEngine) {
			d.override["HEAD /_ping"] = fail(503, "starting")
			d.override["GET /_ping"] = d.override["HEAD /_ping"]
		}, func(*runtime.InstanceSpec) {}, "cannot use the Docker engine"},
		{"engine with Windows containers", func(d *fakeEngine) { d.os = "windows" }, func(*runtime.InstanceSpec) {},
			"Linux containers"},
		{"missing network", func(d *fakeEngine) {
			d.override["GET /networks/web"] = fail(404, "network web not found")
		}, func(p *runtime.InstanceSpec) { p.Docker.Network = "web" },
			"has no network web: create it, or change docker.network"},
		{"existing network", nil, func(p *runtime.InstanceSpec) { p.Docker.Network = "web" }, ""},
		{"network whose inspection is not permitted",
			func(d *fakeEngine) { d.override["GET /networks/web"] = fail(403, "not granted") },
			func(p *runtime.InstanceSpec) { p.Docker.Network = "web" }, ""},
		{"network of a swarm that the worker does not know yet", func(d *fakeEngine) {
			d.override["GET /networks/web"], d.override["GET /info"] = fail(404, "network web not found"), swarmWorker
		}, func(p *runtime.InstanceSpec) { p.Docker.Network = "web" }, ""},
		{"network that each engine has",
			func(d *fakeEngine) { d.override["GET /networks/host"] = fail(404, "network host not found") },
			func(p *runtime.InstanceSpec) { p.Docker.Network = "host" }, ""},
		{"missing container whose network is shared",
			func(d *fakeEngine) { d.override["GET /containers/vpn/json"] = fail(404, "No such container: vpn") },
			func(p *runtime.InstanceSpec) { p.Docker.Network = "container:vpn" }, "has no container vpn"},
		{"container that does not run", func(d *fakeEngine) {
			d.override["GET /containers/vpn/json"] = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"Id":"vpn","State":{"Status":"exited","Running":false}}`)
			}
		}, func(p *runtime.InstanceSpec) { p.Docker.Network = "container:vpn" }, "start it"},
		{"volumes that do not exist yet", nil,
			func(p *runtime.InstanceSpec) { p.Docker.Volumes = []string{"new:/a", "/not/there:/b"} }, ""},
		{"no shared directory", nil, func(p *runtime.InstanceSpec) { p.SharedVolumeDirectory = "/nowhere/at/all" },
			"shared_volume_directory: there is no directory"},
		{"file as shared directory", nil, func(p *runtime.InstanceSpec) { p.SharedVolumeDirectory = file },
			"shared_volume_directory"},
		{"shared directory", nil, func(p *runtime.InstanceSpec) { p.SharedVolumeDirectory = t.TempDir() }, ""},
		{"user out of range", nil, func(p *runtime.InstanceSpec) { p.Docker.User = "0:99999999999" },
			"docker.user: 99999999999"},
		{"user in range", nil, func(p *runtime.InstanceSpec) { p.Docker.User = "2147483647:staff" }, ""},
		{"missing override image without pull_image",
			func(d *fakeEngine) { d.override["GET /images/ours/json"] = fail(404, "No such image: ours") },
			func(p *runtime.InstanceSpec) { p.OverrideImage = "ours" }, "pull_image"},
		{"missing override image with pull_image",
			func(d *fakeEngine) { d.override["GET /images/ours/json"] = fail(404, "No such image: ours") },
			func(p *runtime.InstanceSpec) { p.OverrideImage, p.PullImage = "ours", true }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newFakeEngine(t)
			e := d.executor(t)
			if c.engine != nil {
				c.engine(d)
			}
			spec := runtime.InstanceSpec{WorkingDirectory: amd64(t)}
			c.edit(&spec)
			err := e.Check(t.Context(), runtime.Tuning{Instance: spec})
			switch {
			case c.want == "":
				if err != nil {
					t.Errorf("Check returned %v, want no problem", err)
				}
			case err == nil, errors.Is(err, runtime.ErrJobFault), !strings.Contains(err.Error(), c.want),
				strings.Contains(err.Error(), "\n"):
				t.Errorf("Check returned %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestCheckCalls(t *testing.T) {
	d := newFakeEngine(t)
	e := d.executor(t)
	before := d.count("")
	for range 10 {
		if err := e.Check(t.Context(),
			runtime.Tuning{Instance: runtime.InstanceSpec{WorkingDirectory: amd64(t)}}); err != nil {
			t.Fatal(err)
		}
	}
	if calls := d.count("") - before; calls != 10 {
		t.Errorf("10 checks made %d calls, want one for each check: %q", calls, d.calls)
	}
}

// TestCheckEngine checks that the engine rejects exactly the settings that Check rejects.
func TestCheckEngine(t *testing.T) {
	e := newExecutor(t)
	for _, c := range []struct {
		name string
		edit func(*runtime.InstanceSpec)
		ok   bool
	}{
		{"default settings", func(*runtime.InstanceSpec) {}, true},
		{"new volume", func(p *runtime.InstanceSpec) { p.Docker.Volumes = []string{"cmwa-check-test:/data"} }, true},
		{"missing directory", func(p *runtime.InstanceSpec) {
			p.Docker.Volumes = []string{filepath.Join(t.TempDir(), "none") + ":/data"}
		}, true},
		{"missing network", func(p *runtime.InstanceSpec) { p.Docker.Network = "cmwa-none" }, false},
		{"bridge", func(p *runtime.InstanceSpec) { p.Docker.Network = "bridge" }, true},
		{"default", func(p *runtime.InstanceSpec) { p.Docker.Network = "default" }, true},
		{"host", func(p *runtime.InstanceSpec) { p.Docker.Network = "host" }, true},
		{"missing container", func(p *runtime.InstanceSpec) { p.Docker.Network = "container:cmwa-none" }, false},
		{"user out of range", func(p *runtime.InstanceSpec) { p.Docker.User = "99999999999" }, false},
		{"largest user", func(p *runtime.InstanceSpec) { p.Docker.User = "2147483647" }, true},
		{"user above the largest", func(p *runtime.InstanceSpec) { p.Docker.User = "2147483648" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := newJob(t, e, `{}`)
			c.edit(&job.Tuning.Instance)
			found := e.Check(t.Context(), job.Tuning)
			_, _, refusal := tryStart(t, e, job)
			if (found == nil) != c.ok || (refusal == nil) != c.ok {
				t.Errorf("Check returned %v and Start returned %v, want both to succeed: %v", found, refusal, c.ok)
			}
		})
	}
	_, _ = e.engine.VolumeRemove(t.Context(), "cmwa-check-test", client.VolumeRemoveOptions{Force: true})
}
