package docker

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// selfCheck makes the checks, and returns the results by name. A check whose need has
// failed is missing.
func selfCheck(t *testing.T, place runtime.Place, service string, set ...string) map[string]runtime.CheckResult {
	t.Helper()
	results := map[string]runtime.CheckResult{}
	options := Options{Environ: environ(set...), Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory}
	for _, c := range SelfChecks(options, runtime.Tuning{Place: place}, service) {
		if need := results[c.Needs]; c.Needs == "" || need.Level == runtime.CheckOK {
			results[c.Name] = c.Run(t.Context())
		}
	}
	return results
}

// wantResult checks the level of a result, and a part of its text.
func wantResult(t *testing.T, results map[string]runtime.CheckResult, name string, level runtime.CheckLevel, part string) {
	t.Helper()
	if got := results[name]; got.Level != level || !strings.Contains(got.Message+"; "+got.Cure, part) {
		t.Errorf("%s is %+v, want %s with %q; all: %+v", name, got, level, part, results)
	}
}

func TestSelfChecks(t *testing.T) {
	e := open(t)
	good := runtime.Place{WorkingDirectory: standin(t), OverrideImage: base}
	const service = "https://service.example"

	t.Run("an engine and settings that work, and nothing is left", func(t *testing.T) {
		volumes := func() int {
			all, err := e.engine.VolumeList(t.Context(), client.VolumeListOptions{Filters: client.Filters{}.Add("label", labelOwner)})
			if err != nil {
				t.Fatal(err)
			}
			return len(all.Items)
		}
		before := volumes()
		place := good
		place.SharedVolumeDirectory = t.TempDir()
		results := selfCheck(t, place, service)
		for name, got := range results {
			if got.Level != runtime.CheckOK {
				t.Errorf("%s is %+v", name, got)
			}
		}
		wantResult(t, results, needsEngine, runtime.CheckOK, "has version ")
		if entries, _ := filepath.Glob(filepath.Join(place.SharedVolumeDirectory, "*")); len(entries) > 0 || volumes() != before || len(results) != 7 {
			t.Errorf("there is %v, and %d results", entries, len(results))
		}
	})
	t.Run("no engine", func(t *testing.T) {
		results := selfCheck(t, good, service, "DOCKER_HOST=unix:///nowhere.sock")
		wantResult(t, results, needsEngine, runtime.CheckFailed, "start it")
		if len(results) != 4 {
			t.Errorf("checks that need the engine were made: %+v", results)
		}
	})
	t.Run("an engine on another machine may not have the shared directory", func(t *testing.T) {
		place := good
		place.SharedVolumeDirectory = t.TempDir()
		wantResult(t, selfCheck(t, place, service, "DOCKER_HOST=tcp://127.0.0.1:1"), "docker-shared-directory", runtime.CheckWarning, "the same folder there")
	})
	t.Run("settings that fail each job", func(t *testing.T) {
		place := runtime.Place{
			WorkingDirectory: t.TempDir(), SharedVolumeDirectory: "/nowhere/at/all", OverrideImage: "cmwa-test/none:1",
			Docker: runtime.Docker{Network: "cmwa-none", User: "99999999999"},
		}
		results := selfCheck(t, place, "http://localhost:8585")
		wantResult(t, results, "docker-runner", runtime.CheckFailed, "set working_directory")
		wantResult(t, results, "docker-shared-directory", runtime.CheckFailed, "there is no directory")
		wantResult(t, results, "docker-image", runtime.CheckFailed, "load the image there")
		wantResult(t, results, "docker-network", runtime.CheckFailed, "has no network cmwa-none")
		wantResult(t, results, "docker-user", runtime.CheckFailed, "up to 2147483647")
		wantResult(t, results, "docker-service", runtime.CheckFailed, "the container itself")
	})
	t.Run("a socket that may not be used", func(t *testing.T) {
		if err := unreachable("unix:///var/run/docker.sock", fmt.Errorf("dial unix: connect: permission denied")); !strings.Contains(err.Error(), "group docker") {
			t.Errorf("%v", err)
		}
	})
}

func TestSelfCheckImage(t *testing.T) {
	const list = "GET /images/json"
	for name, c := range map[string]struct {
		images string
		place  runtime.Place
		level  runtime.CheckLevel
	}{
		"pulled for each job":     {`[]`, runtime.Place{PullImage: true}, runtime.CheckOK},
		"not pulled and there":    {`[{"Id": "sha256:1"}]`, runtime.Place{}, runtime.CheckOK},
		"not pulled and missing":  {`[]`, runtime.Place{}, runtime.CheckWarning},
		"an answer of no meaning": {`{`, runtime.Place{}, runtime.CheckFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			d.override[list] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.images) }
			e, err := d.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := e.selfCheckImage(t.Context(), c.place); got.Level != c.level {
				t.Errorf("%+v, want %s", got, c.level)
			}
		})
	}
}

func TestCheckService(t *testing.T) {
	const hosts = "127.0.0.1 localhost\n# 10.0.0.9 commented.internal\n10.0.0.8 other cmwa.internal # ours\n"
	for name, c := range map[string]struct {
		service string
		place   runtime.Docker
		level   runtime.CheckLevel
		part    string
	}{
		"a public name":                        {"https://api.pulumi.com", runtime.Docker{}, runtime.CheckOK, "api.pulumi.com"},
		"an address of this machine":           {"http://172.17.0.1:8585", runtime.Docker{}, runtime.CheckOK, ""},
		"localhost":                            {"http://localhost:8585", runtime.Docker{}, runtime.CheckFailed, "docker.network to host"},
		"localhost in the host's network":      {"http://localhost:8585", runtime.Docker{Network: "host"}, runtime.CheckOK, "engine's machine"},
		"localhost of a container":             {"http://localhost:8585", runtime.Docker{Network: "container:vpn"}, runtime.CheckOK, "container:vpn"},
		"no network":                           {"https://api.pulumi.com", runtime.Docker{Network: "none"}, runtime.CheckFailed, "change docker.network"},
		"a name that this machine alone knows": {"https://CMWA.internal", runtime.Docker{}, runtime.CheckWarning, "/etc/hosts"},
		"a name in a comment":                  {"https://commented.internal", runtime.Docker{}, runtime.CheckOK, ""},
		"a name that containers are given": {
			"https://cmwa.internal", runtime.Docker{ExtraHosts: []string{"cmwa.internal:10.0.0.8"}}, runtime.CheckOK, "10.0.0.8",
		},
		"a name of Docker Desktop": {"http://host.docker.internal:8585", runtime.Docker{}, runtime.CheckWarning, "host-gateway"},
		"no URL":                   {"http://%", runtime.Docker{}, runtime.CheckSkipped, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkService(c.service, c.place, strings.NewReader(hosts))
			if got.Level != c.level || !strings.Contains(got.Message+"; "+got.Cure, c.part) {
				t.Errorf("%+v, want %s with %q", got, c.level, c.part)
			}
		})
	}
}
