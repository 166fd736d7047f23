package docker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// selfCheck runs the checks, and returns the results by name. A check that depends on a
// failed check has no result.
func selfCheck(t *testing.T, spec runtime.InstanceSpec, service string, set ...string) map[string]selfcheck.Result {
	t.Helper()
	results := map[string]selfcheck.Result{}
	options := Options{Environ: environ(set...), Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory}
	for _, c := range SelfChecks(options, runtime.Tuning{Instance: spec}, service) {
		if need := results[c.Needs]; c.Needs == "" || need.Level == selfcheck.LevelOK {
			results[c.Name] = c.Run(t.Context())
		}
	}
	return results
}

// wantResult checks the level of a result, and a part of its text.
func wantResult(
	t *testing.T, results map[string]selfcheck.Result, name string, level selfcheck.Level, part string,
) {
	t.Helper()
	if got := results[name]; got.Level != level || !strings.Contains(got.Message+"; "+got.Hint, part) {
		t.Errorf("the result of %s is %+v, want %s with %q; all results: %+v", name, got, level, part, results)
	}
}

func TestSelfChecks(t *testing.T) {
	e := newExecutor(t)
	good := runtime.InstanceSpec{WorkingDirectory: standin(t), OverrideImage: testImage}
	const service = "https://service.example"

	t.Run("checks of a working engine pass and leave nothing", func(t *testing.T) {
		volumes := func() int {
			all, err := e.engine.VolumeList(t.Context(),
				client.VolumeListOptions{Filters: client.Filters{}.Add("label", labelOwner)})
			if err != nil {
				t.Fatal(err)
			}
			return len(all.Items)
		}
		before := volumes()
		spec := good
		spec.SharedVolumeDirectory = t.TempDir()
		results := selfCheck(t, spec, service)
		for name, got := range results {
			if got.Level != selfcheck.LevelOK {
				t.Errorf("the result of %s is %+v, want OK", name, got)
			}
		}
		wantResult(t, results, needsEngine, selfcheck.LevelOK, "has version ")
		if entries, _ := filepath.Glob(filepath.Join(spec.SharedVolumeDirectory, "*")); len(entries) > 0 ||
			volumes() != before || len(results) != 8 {
			t.Errorf("%v or a volume is left, or there are %d results instead of 8", entries, len(results))
		}
	})
	t.Run("without an engine three checks are made", func(t *testing.T) {
		results := selfCheck(t, good, service, "DOCKER_HOST=unix:///nowhere.sock")
		wantResult(t, results, needsEngine, selfcheck.LevelFailed, "start it")
		if len(results) != 3 {
			t.Errorf("want 3 results, got %+v", results)
		}
	})
	t.Run("settings that fail each job are found", func(t *testing.T) {
		spec := runtime.InstanceSpec{
			WorkingDirectory: t.TempDir(), SharedVolumeDirectory: "/nowhere/at/all", OverrideImage: "cmwa-test/none:1",
			Docker: runtime.Docker{Network: "cmwa-none", User: "99999999999"},
		}
		results := selfCheck(t, spec, "http://localhost:8585")
		wantResult(t, results, "docker-runner", selfcheck.LevelFailed, "set working_directory")
		wantResult(t, results, "docker-shared-directory", selfcheck.LevelFailed, "there is no directory")
		wantResult(t, results, "docker-image", selfcheck.LevelFailed, "load the image there")
		wantResult(t, results, "docker-network", selfcheck.LevelFailed, "has no network cmwa-none")
		wantResult(t, results, "docker-user", selfcheck.LevelFailed, "up to 2147483647")
		wantResult(t, results, "docker-service", selfcheck.LevelFailed, "the container itself")
	})
	t.Run("permission denied names the group docker", func(t *testing.T) {
		err := unreachable("unix:///var/run/docker.sock", errors.New("dial unix: connect: permission denied"))
		if !strings.Contains(err.Error(), "group docker") {
			t.Errorf("the error is %v, want the group docker in it", err)
		}
	})
}

// TestCheckShared checks agents in and outside a container. In a container,
// shared_volume_directory must be a mount of the same path.
func TestCheckShared(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	for name, c := range map[string]struct {
		mounts string // of the agent's container; empty: the agent is in no container
		level  selfcheck.Level
		part   string
		host   string // of the engine; empty is a socket
	}{
		"an agent outside a container": {"", selfcheck.LevelOK, shared, ""},
		"an engine on another machine": {
			"", selfcheck.LevelWarning, "may be on another machine", "tcp://10.0.0.1:2376"},
		"mounted under the same path": {
			fmt.Sprintf(`[{"Type": "bind", "Source": %[1]q, "Destination": %[1]q}]`, filepath.Dir(shared)),
			selfcheck.LevelOK, shared, "",
		},
		"mounted from another path": {
			fmt.Sprintf(`[{"Type": "bind", "Source": "/srv", "Destination": %q}]`, shared), selfcheck.LevelFailed,
			"--volume " + shared, "",
		},
		"mounted as a volume": {
			fmt.Sprintf(`[{"Type": "volume", "Source": %[1]q, "Destination": %[1]q}]`, shared), selfcheck.LevelFailed,
			"the same path", "",
		},
		"not mounted": {`[]`, selfcheck.LevelFailed, "into which " + shared + " is not mounted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFakeEngine(t)
			d.override["GET /containers/"+own+"/json"] = func(w http.ResponseWriter, r *http.Request) {
				if c.mounts == "" {
					fail(404, "No such container")(w, r)
					return
				}
				fmt.Fprintf(w, `{"Id": "own", "Mounts": %s}`, c.mounts)
			}
			e := d.executor(t)
			e.host = cmp.Or(c.host, e.host)
			got := e.checkShared(t.Context(), shared)
			if got.Level != c.level || !strings.Contains(got.Message+"; "+got.Hint, c.part) {
				t.Errorf("the result is %+v, want %s with %q", got, c.level, c.part)
			}
		})
	}
}

func TestSelfCheckImage(t *testing.T) {
	const list = "GET /images/json"
	for name, c := range map[string]struct {
		images   string
		settings runtime.InstanceSpec
		level    selfcheck.Level
	}{
		"pulled for each job":    {`[]`, runtime.InstanceSpec{PullImage: true}, selfcheck.LevelOK},
		"not pulled and present": {`[{"Id": "sha256:1"}]`, runtime.InstanceSpec{}, selfcheck.LevelOK},
		"not pulled and missing": {`[]`, runtime.InstanceSpec{}, selfcheck.LevelWarning},
		"an invalid response":    {`{`, runtime.InstanceSpec{}, selfcheck.LevelFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFakeEngine(t)
			d.override[list] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.images) }
			e := d.executor(t)
			if got := e.selfCheckImage(t.Context(), c.settings); got.Level != c.level {
				t.Errorf("the result is %+v, want %s", got, c.level)
			}
		})
	}
}

func TestSelfCheckLimits(t *testing.T) {
	const able = `"PidsLimit": true, "MemoryLimit": true, "Driver": "overlay2"`
	const snap = `"DockerRootDir": "/var/snap/docker/common"`
	limits := runtime.Docker{PidsLimit: 4096, Memory: 1 << 30}
	size := runtime.Docker{StorageLimit: 1 << 30}
	for name, c := range map[string]struct {
		engine   string
		settings runtime.Docker
		level    selfcheck.Level
		part     string
	}{
		"limits that the engine applies": {able, limits, selfcheck.LevelOK, ""},
		"a kernel without pids":          {`"MemoryLimit": true`, limits, selfcheck.LevelWarning, "docker.pids_limit"},
		"a kernel without memory":        {`"PidsLimit": true`, limits, selfcheck.LevelWarning, "docker.memory has no"},
		"no limits":                      {``, runtime.Docker{}, selfcheck.LevelOK, ""},
		"a snap":                         {snap, runtime.Docker{}, selfcheck.LevelWarning, "allow_new_privileges"},
		"a snap with new privileges":     {snap, runtime.Docker{AllowNewPrivileges: true}, selfcheck.LevelOK, ""},
		"a size on XFS": {able + `, "DriverStatus": [["Backing Filesystem", "xfs"]]`, size,
			selfcheck.LevelOK, ""},
		"a size on another file system": {able + `, "DriverStatus": [["Backing Filesystem", "extfs"]]`, size,
			selfcheck.LevelFailed, "on extfs, and cannot apply docker.storage_limit: remove"},
		"a size with the storage driver btrfs": {`"Driver": "btrfs"`, size, selfcheck.LevelOK, ""},
		"a size that containerd ignores": {
			`"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]`, size,
			selfcheck.LevelFailed, "ignores docker.storage_limit"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFakeEngine(t)
			d.override["GET /info"] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "{%s}", c.engine) }
			e := d.executor(t)
			got := e.selfCheckLimits(t.Context(), c.settings)
			if got.Level != c.level || !strings.Contains(got.Message+"; "+got.Hint, c.part) {
				t.Errorf("the result is %+v, want %s with %q", got, c.level, c.part)
			}
			tuning := runtime.Tuning{Instance: runtime.InstanceSpec{WorkingDirectory: standin(t), Docker: c.settings}}
			if err := e.Check(t.Context(), tuning); (err != nil) != (got.Level == selfcheck.LevelFailed) {
				t.Errorf("the check before a job returns %v, and the result is %+v", err, got)
			}
		})
	}
}

func TestCheckService(t *testing.T) {
	const hosts = "127.0.0.1 localhost\n# 10.0.0.9 commented.internal\n10.0.0.8 other cmwa.internal # ours\n"
	for name, c := range map[string]struct {
		service  string
		settings runtime.Docker
		level    selfcheck.Level
		part     string
	}{
		"a public name": {"https://api.pulumi.com", runtime.Docker{}, selfcheck.LevelOK,
			"api.pulumi.com"},
		"an address of this machine": {"http://172.17.0.1:8585", runtime.Docker{}, selfcheck.LevelOK, ""},
		"localhost": {"http://localhost:8585", runtime.Docker{}, selfcheck.LevelFailed,
			"docker.network to host"},
		"localhost in the host's network": {"http://localhost:8585", runtime.Docker{Network: "host"},
			selfcheck.LevelOK, "engine's machine"},
		"localhost in a container's network": {"http://localhost:8585", runtime.Docker{Network: "container:vpn"},
			selfcheck.LevelOK, "container:vpn"},
		"no network": {"https://api.pulumi.com", runtime.Docker{Network: "none"},
			selfcheck.LevelFailed, "change docker.network"},
		"a name in /etc/hosts of this machine": {"https://CMWA.internal", runtime.Docker{}, selfcheck.LevelWarning,
			"/etc/hosts"},
		"a name in a comment": {"https://commented.internal", runtime.Docker{}, selfcheck.LevelOK, ""},
		"a name in extra_hosts": {
			"https://cmwa.internal", runtime.Docker{ExtraHosts: []string{"cmwa.internal:10.0.0.8"}}, selfcheck.LevelOK,
			"10.0.0.8",
		},
		"a name in extra_hosts in lower case": {
			"https://CMWA.internal", runtime.Docker{ExtraHosts: []string{"cmwa.internal:10.0.0.8"}}, selfcheck.LevelOK,
			"10.0.0.8",
		},
		"a name below localhost in extra_hosts": {
			"http://cmwa.localhost:8585", runtime.Docker{ExtraHosts: []string{"cmwa.localhost:host-gateway"}},
			selfcheck.LevelOK, "host-gateway",
		},
		"a name with a loopback address in extra_hosts": {
			"https://cmwa.internal", runtime.Docker{ExtraHosts: []string{"cmwa.internal:127.0.0.1"}},
			selfcheck.LevelFailed, "the container itself",
		},
		"the unspecified address": {"http://0.0.0.0:8585", runtime.Docker{}, selfcheck.LevelFailed,
			"the container itself"},
		"a name of Docker Desktop": {"http://host.docker.internal:8585", runtime.Docker{}, selfcheck.LevelWarning,
			"host-gateway"},
		"an invalid URL": {"http://%", runtime.Docker{}, selfcheck.LevelSkipped, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkService(c.service, c.settings, strings.NewReader(hosts))
			if got.Level != c.level || !strings.Contains(got.Message+"; "+got.Hint, c.part) {
				t.Errorf("the result is %+v, want %s with %q", got, c.level, c.part)
			}
		})
	}
}
