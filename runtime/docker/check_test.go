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

// swarmWorker answers that the engine is a worker of a swarm.
func swarmWorker(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `{"Swarm":{"LocalNodeState":"active","ControlAvailable":false}}`)
}

func TestCheck(t *testing.T) {
	locked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(locked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := working(t, map[string][]byte{"workflow-runner-linux-arm64": binaryFor(elf.EM_AARCH64, false)})
	for _, c := range []struct {
		name   string
		engine func(*daemon)
		edit   func(*runtime.Place)
		says   string // empty is no problem
	}{
		{"settings that work", nil, func(*runtime.Place) {}, ""},
		{"no runner", nil, func(p *runtime.Place) { p.WorkingDirectory = t.TempDir() }, "set working_directory"},
		{"runner for images of another machine", nil, func(p *runtime.Place) { p.WorkingDirectory = foreign }, ""},
		{"no engine", func(d *daemon) {
			d.override["HEAD /_ping"] = fail(503, "starting")
			d.override["GET /_ping"] = d.override["HEAD /_ping"]
		}, func(*runtime.Place) {}, "cannot use the Docker engine"},
		{"engine with other containers", func(d *daemon) { d.os = "windows" }, func(*runtime.Place) {}, "Linux containers"},
		{"no network", func(d *daemon) { d.override["GET /networks/web"] = fail(404, "network web not found") },
			func(p *runtime.Place) { p.Docker.Network = "web" }, "has no network web: create it, or change docker.network"},
		{"network", nil, func(p *runtime.Place) { p.Docker.Network = "web" }, ""},
		{"network that may not be asked for", func(d *daemon) { d.override["GET /networks/web"] = fail(403, "not granted") },
			func(p *runtime.Place) { p.Docker.Network = "web" }, ""},
		{"network of a swarm that this worker does not know yet", func(d *daemon) {
			d.override["GET /networks/web"], d.override["GET /info"] = fail(404, "network web not found"), swarmWorker
		}, func(p *runtime.Place) { p.Docker.Network = "web" }, ""},
		{"networks that each engine has", func(d *daemon) { d.override["GET /networks/host"] = fail(404, "network host not found") },
			func(p *runtime.Place) { p.Docker.Network = "host" }, ""},
		{"no container to share the network of", func(d *daemon) { d.override["GET /containers/vpn/json"] = fail(404, "No such container: vpn") },
			func(p *runtime.Place) { p.Docker.Network = "container:vpn" }, "has no container vpn"},
		{"container that does not run", func(d *daemon) {
			d.override["GET /containers/vpn/json"] = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"Id":"vpn","State":{"Status":"exited","Running":false}}`)
			}
		}, func(p *runtime.Place) { p.Docker.Network = "container:vpn" }, "start it"},
		{"volumes that are not there yet", nil, func(p *runtime.Place) { p.Docker.Volumes = []string{"new:/a", "/not/there:/b"} }, ""},
		{"no shared directory", nil, func(p *runtime.Place) { p.SharedVolumeDirectory = "/nowhere/at/all" }, "shared_volume_directory: there is no directory"},
		{"file as shared directory", nil, func(p *runtime.Place) { p.SharedVolumeDirectory = locked }, "shared_volume_directory"},
		{"shared directory", nil, func(p *runtime.Place) { p.SharedVolumeDirectory = t.TempDir() }, ""},
		{"user out of range", nil, func(p *runtime.Place) { p.Docker.User = "0:99999999999" }, "docker.user: 99999999999"},
		{"users", nil, func(p *runtime.Place) { p.Docker.User = "2147483647:staff" }, ""},
		{"no image in place of every job's", func(d *daemon) { d.override["GET /images/ours/json"] = fail(404, "No such image: ours") },
			func(p *runtime.Place) { p.OverrideImage = "ours" }, "pull_image"},
		{"image in place of every job's that is pulled", func(d *daemon) { d.override["GET /images/ours/json"] = fail(404, "No such image: ours") },
			func(p *runtime.Place) { p.OverrideImage, p.PullImage = "ours", true }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t)
			e, err := d.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.engine != nil {
				c.engine(d)
			}
			place := runtime.Place{WorkingDirectory: amd64(t)}
			c.edit(&place)
			err = e.Check(t.Context(), runtime.Tuning{Place: place})
			switch {
			case c.says == "":
				if err != nil {
					t.Errorf("checking gives %v, want no problem", err)
				}
			case err == nil, errors.Is(err, runtime.ErrJob), !strings.Contains(err.Error(), c.says), strings.Contains(err.Error(), "\n"):
				t.Errorf("checking gives %v, want one line with %q", err, c.says)
			}
		})
	}
}

func TestCheckAsksLittle(t *testing.T) {
	d := newDaemon(t)
	e, err := d.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := d.count("")
	for range 10 {
		if err := e.Check(t.Context(), runtime.Tuning{Place: runtime.Place{WorkingDirectory: amd64(t)}}); err != nil {
			t.Fatal(err)
		}
	}
	if asked := d.count("") - before; asked != 10 {
		t.Errorf("10 checks made %d calls, want one each: %q", asked, d.calls)
	}
}

// An engine refuses exactly what the check reports, and starts what it does not.
func TestCheckAgreesWithTheEngine(t *testing.T) {
	e := open(t)
	for _, c := range []struct {
		name string
		edit func(*runtime.Place)
		ok   bool
	}{
		{"plain", func(*runtime.Place) {}, true},
		{"new volume", func(p *runtime.Place) { p.Docker.Volumes = []string{"cmwa-check-test:/data"} }, true},
		{"directory that is not there", func(p *runtime.Place) { p.Docker.Volumes = []string{filepath.Join(t.TempDir(), "none") + ":/data"} }, true},
		{"no network", func(p *runtime.Place) { p.Docker.Network = "cmwa-none" }, false},
		{"bridge", func(p *runtime.Place) { p.Docker.Network = "bridge" }, true},
		{"default", func(p *runtime.Place) { p.Docker.Network = "default" }, true},
		{"host", func(p *runtime.Place) { p.Docker.Network = "host" }, true},
		{"no container", func(p *runtime.Place) { p.Docker.Network = "container:cmwa-none" }, false},
		{"user out of range", func(p *runtime.Place) { p.Docker.User = "99999999999" }, false},
		{"largest user", func(p *runtime.Place) { p.Docker.User = "2147483647" }, true},
		{"user one more", func(p *runtime.Place) { p.Docker.User = "2147483648" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := newJob(t, e, `{}`)
			c.edit(&job.Tuning.Place)
			found := e.Check(t.Context(), job.Tuning)
			_, _, refusal := tryStart(t, e, job)
			if (found == nil) != c.ok || (refusal == nil) != c.ok {
				t.Errorf("checking gives %v and starting gives %v, want both to succeed: %v", found, refusal, c.ok)
			}
		})
	}
	_, _ = e.engine.VolumeRemove(t.Context(), "cmwa-check-test", client.VolumeRemoveOptions{Force: true})
}
