package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
)

// partsWith returns the parts of a program with this configuration.
func partsWith(content string) Parts {
	return Parts{
		Find: func() (schema.Source, error) {
			return schema.Source{Path: "agent.yaml", Content: []byte(content)}, nil
		},
		Environ: func(string) (string, bool) { return "", false },
		OwnPod: func(time.Duration, []string) (selfcheck.Check, bool) {
			run := func(context.Context) selfcheck.Result { return selfcheck.Passed("good") }
			return selfcheck.Check{Name: "of-pod", Run: run}, true
		},
		Pool: func(spec runtime.PoolSpec) []selfcheck.Check {
			return []selfcheck.Check{{Name: "of-" + spec.Identity.Target}}
		},
	}
}

// TestOwnPod checks that the Pod is searched for mounts of files that exist, and not for one of
// the template that is used only if it exists.
func TestOwnPod(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const content = "token: pul-a\ndeploy_target: kubernetes\n"
	c, problems := schema.Load(schema.Source{Path: config, Content: []byte(content)})
	if c == nil {
		t.Fatal(problems)
	}
	if !slices.Contains(c.Paths(), schema.DefaultPodTemplateFile) {
		t.Fatalf("the configuration has the files %q, so this test proves nothing", c.Paths())
	}
	var got []string
	ownPod(c, Parts{OwnPod: func(_ time.Duration, files []string) (selfcheck.Check, bool) {
		got = files
		return selfcheck.Check{}, true
	}})
	if !slices.Equal(got, []string{config}) {
		t.Errorf("the check gets the files %q, want only %s", got, config)
	}
}

// wantResult checks the level of a result, and a substring of its texts.
func wantResult(t *testing.T, got selfcheck.Result, level selfcheck.Level, part string) {
	t.Helper()
	if got.Level != level || !strings.Contains(got.Message+"; "+got.Hint, part) {
		t.Errorf("%+v, want %s with %q", got, level, part)
	}
}

func TestChecks(t *testing.T) {
	t.Run("each pool has the checks of its target, sorted by name", func(t *testing.T) {
		checks := Checks(t.Context(), partsWith("syslog: true\npools:\n"+
			"- {name: b, token: pul-1, deploy_target: docker}\n- {name: a, token: pul-2, deploy_target: process}\n"))
		want := "configuration, configuration-mounts, state-directory, free-disk, http-server, syslog, " +
			"of-process of pool a, of-docker of pool b"
		if got := names(checks); got != want {
			t.Errorf("the checks are %s, want %s", got, want)
		}
	})
	t.Run("agent in a cluster checks its Pod and may need no id", func(t *testing.T) {
		const unusable = "token: pul-1\nstate_directory: /proc/cmwa\ndeploy_target: kubernetes\n"
		for content, level := range map[string]selfcheck.Level{
			unusable: selfcheck.LevelOK,
			unusable + "pools: [{name: a}, {name: b, token: pul-2, deploy_target: process}]\n": selfcheck.LevelWarning,
		} {
			checks := Checks(t.Context(), partsWith(content))
			want := "configuration, configuration-mounts, state-directory, free-disk, http-server, of-pod"
			if got := names(checks[:6]); got != want {
				t.Errorf("the checks are %s, want %s", got, want)
			}
			wantResult(t, checks[2].Run(t.Context()), level, "")
		}
	})
	t.Run("agent with jobs in another cluster does not check its Pod", func(t *testing.T) {
		checks := Checks(t.Context(),
			partsWith("token: pul-1\ndeploy_target: kubernetes\nkubernetes: {context: other}\n"))
		if got := names(checks); strings.Contains(got, "of-pod,") {
			t.Errorf("the checks are %s, want none of the agent's Pod", got)
		}
	})
	for name, c := range map[string]struct {
		content string
		level   selfcheck.Level
		part    string
	}{
		"valid": {"token: pul-1\n", selfcheck.LevelOK, "agent.yaml is valid"},
		"with warnings": {"token: pul-1\nfoo_bar_baz: 1\n", selfcheck.LevelWarning,
			"with warnings: 1; run cmwa vet 'agent.yaml' for the warnings"},
		"not valid": {"token: pul-1\npoling_interval: 3s\nsyslog: 7\n", selfcheck.LevelFailed,
			"(and 1 more); run cmwa vet 'agent.yaml' for all problems"},
	} {
		t.Run("configuration is "+name, func(t *testing.T) {
			checks := Checks(t.Context(), partsWith(c.content))
			wantResult(t, checks[0].Run(t.Context()), c.level, c.part)
			if c.level == selfcheck.LevelFailed && len(checks) != 1 {
				t.Errorf("the checks are %s, want only that of the configuration", names(checks))
			}
		})
	}
	t.Run("configuration cannot be read", func(t *testing.T) {
		parts := partsWith("")
		parts.Find = func() (schema.Source, error) { return schema.Source{}, errors.New("no such file: name another") }
		checks := Checks(t.Context(), parts)
		wantResult(t, checks[0].Run(t.Context()), selfcheck.LevelFailed, "name another")
	})
}

func TestCheckMounts(t *testing.T) {
	c := &schema.Config{Path: "/etc/cmwa/agent.yaml", Files: []string{"/etc/cmwa/token", "/mnt/worker-pod.json"}}
	wantResult(t, checkMounts(c, func(string) bool { return false }), selfcheck.LevelOK, "can detect changes")
	got := checkMounts(c, func(path string) bool { return path != "/etc/cmwa/token" })
	wantResult(t, got, selfcheck.LevelWarning,
		"/etc/cmwa/agent.yaml, /mnt/worker-pod.json; mount the directory without subPath: /etc/cmwa, /mnt")
}

func TestCheckState(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string, owned bool) selfcheck.Result {
		environ := func(string) (string, bool) { return "", false }
		return checkState(&schema.Config{StateDirectory: filepath.Join(directory, name)}, environ, owned)
	}
	wantResult(t, check("", false), selfcheck.LevelOK, "supports locks")
	wantResult(t, check("new", false), selfcheck.LevelOK, "can be created in "+directory)
	wantResult(t, check("file", false), selfcheck.LevelWarning, "set state_directory")
	wantResult(t, check("file", true), selfcheck.LevelOK, "is not needed")
	if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
		t.Errorf("the directory contains %v (%v), want only the file", entries, err)
	}
}

func TestCheckServer(t *testing.T) {
	config := func(address string) *schema.Config {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		number, _ := strconv.Atoi(port)
		return &schema.Config{HTTPServerAddress: host, HTTPServerPort: number}
	}
	listen := func(t *testing.T, handler http.Handler) *schema.Config {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: handler}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		return config(listener.Addr().String())
	}
	used := listen(t, nil)
	t.Run("HTTP server is off", func(t *testing.T) {
		wantResult(t, checkServer(t.Context(), &schema.Config{}), selfcheck.LevelOK, "HTTP server is off")
	})
	t.Run("agent uses the port", func(t *testing.T) {
		agent := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(status.Document{Version: status.Version, Agent: status.Agent{Version: "v7"}})
		}))
		wantResult(t, checkServer(t.Context(), agent), selfcheck.LevelOK, "version v7")
		agent.Path = "/etc/other.yaml"
		wantResult(t, checkServer(t.Context(), agent), selfcheck.LevelFailed, "an agent with another configuration")
	})
	t.Run("another program uses the port", func(t *testing.T) {
		wantResult(t, checkServer(t.Context(), listen(t, http.NotFoundHandler())), selfcheck.LevelFailed, "free port")
	})
	t.Run("address of another machine", func(t *testing.T) {
		other := *used
		other.HTTPServerAddress = "192.0.2.1"
		wantResult(t, checkServer(t.Context(), &other), selfcheck.LevelFailed, "correct http_server_address")
	})
}

func TestCheckDisks(t *testing.T) {
	with := func(found map[string]space) selfcheck.Result {
		return checkDisks([]string{"/a", "/b"}, func(directory string) (space, error) {
			s, ok := found[directory]
			if !ok {
				return s, errors.New("not mounted")
			}
			return s, nil
		})
	}
	plenty := space{free: 1 << 20, files: true}
	wantResult(t, with(map[string]space{"/a": plenty, "/b": plenty}), selfcheck.LevelOK, "in /a, /b")
	wantResult(t, with(map[string]space{"/a": plenty, "/b": {499, true}}), selfcheck.LevelWarning,
		"warning below 500 MiB, failure below 10 MiB): /b has 499 MiB")
	wantResult(t, with(map[string]space{"/a": {9, true}, "/b": {499, true}}), selfcheck.LevelFailed, "/a has 9 MiB")
	wantResult(t, with(map[string]space{"/a": {1 << 20, false}, "/b": plenty}), selfcheck.LevelFailed,
		"/a has no free inodes")
	wantResult(t, with(map[string]space{"/a": plenty}), selfcheck.LevelSkipped, "/b: not mounted")
	wantResult(t, with(map[string]space{"/a": {9, true}}), selfcheck.LevelFailed, "/a has 9 MiB")
	if got, err := spaceOf(t.TempDir()); err != nil || got.free == 0 || !got.files {
		t.Errorf("got %+v, %v, want free space and files", got, err)
	}
	if _, err := spaceOf("/nowhere/at/all"); err == nil {
		t.Error("spaceOf returns no error for a missing directory")
	}
}

func TestDirectories(t *testing.T) {
	state := t.TempDir()
	c := &schema.Config{StateDirectory: filepath.Join(state, "not", "yet"), Pools: []schema.Pool{
		{DeployTarget: "docker", SharedVolumeDirectory: "/", WorkingDirectory: "/usr"},
		{DeployTarget: "kubernetes", SharedVolumeDirectory: "/mnt/work", WorkingDirectory: "/usr/local"},
	}}
	got := directories(c, func(string) (string, bool) { return "", false })
	if want := []string{state, "/", "/usr"}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the directories are %q, want %q", got, want)
	}
}
