package docker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// sweep calls Sweep with the stand-in for the runner as the only runner in use. It returns
// the removed leftovers.
func sweep(t *testing.T, e *Executor, shared string) []string {
	t.Helper()
	removed, err := e.Sweep(t.Context(),
		[]runtime.InstanceSpec{{WorkingDirectory: standin(t), SharedVolumeDirectory: shared}})
	if err != nil {
		t.Fatal(err)
	}
	return removed
}

// newExecutorAs creates an executor of an agent with a new id.
func newExecutorAs(t *testing.T) *Executor {
	t.Helper()
	e := newExecutor(t)
	e.agent = rand.Text()
	return e
}

// earlierRun returns the owner text of an earlier process of the executor's agent.
func earlierRun(e *Executor) string { return e.agent + "/earlier-run" }

func TestSweepDirectories(t *testing.T) {
	e, shared := newExecutorAs(t), t.TempDir()
	old := time.Now().Add(-2 * oldDirectory)
	directory := func(name, owner string, made time.Time) string {
		path := filepath.Join(shared, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if owner != "" {
			if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(owner), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(path, made, made); err != nil {
			t.Fatal(err)
		}
		return path
	}
	job := newJob(t, e, `{"until": "term"}`)
	job.Tuning.Instance.SharedVolumeDirectory = shared
	id, _ := start(t, e, job)
	running, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(shared, strings.TrimPrefix(running.Container.Name, "/"))
	if err := os.WriteFile(filepath.Join(busy, ownerFile), []byte(earlierRun(e)), 0o644); err != nil { // adopted job
		t.Fatal(err)
	}
	want := map[string]bool{ // whether the directory is kept
		busy: true,
		directory(namePrefix+"crashed", earlierRun(e), time.Now()):                       false,
		directory(namePrefix+"being-started", e.owner(), time.Now()):                     true,
		directory(namePrefix+"of-another-agent", "another/run", time.Now()):              true,
		directory(namePrefix+"of-another-agent-long-ago", "another/run", old):            false,
		directory(namePrefix+"of-an-earlier-release", "", time.Now().Add(-72*time.Hour)): true,
		directory(namePrefix+"of-an-earlier-release-long-ago", "", old):                  false,
		directory("of-another-program", earlierRun(e), old):                              true,
	}
	removed := sweep(t, e, shared)
	for path, stays := range want {
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s: Stat returns %v, want the directory to be kept: %v", path, err, stays)
		}
		if listed := slices.Contains(removed, "directory "+path); listed == stays {
			t.Errorf("%s is listed as removed: %v, want %v", path, listed, !stays)
		}
	}
	if again := sweep(t, e, shared); len(again) > 0 {
		t.Errorf("a second sweep removed %q", again)
	}
	if gone := sweep(t, e, filepath.Join(shared, "none")); len(gone) > 0 {
		t.Errorf("a sweep of a missing directory removed %q", gone)
	}
}

func TestSweepLoader(t *testing.T) {
	e := newExecutorAs(t)
	runner, err := e.programs.find(standin(t), e.architecture)
	if err != nil {
		t.Fatal(err)
	}
	stray := program{path: runner.path, digest: strings.ToLower(rand.Text())}
	loader := func(owner string) string {
		made, err := e.engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name: loaderName(stray),
			Config: &container.Config{Image: testImage,
				Labels: map[string]string{labelRunner: stray.digest, labelOwner: owner}},
			HostConfig: &container.HostConfig{Mounts: []mount.Mount{e.volumeMount(stray, false)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = e.removeContainer(ctx, loaderName(stray))
		_, _ = e.engine.VolumeRemove(ctx, volumeName(stray), client.VolumeRemoveOptions{})
	})
	there := func(id string) bool {
		_, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		return err == nil
	}
	running := loader("another/run")
	if removed := sweep(t, e, ""); !there(running) {
		t.Errorf("the loader of a running agent was removed; removed: %q", removed)
	}
	if err := e.removeContainer(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	crashed := loader(earlierRun(e))
	if removed := sweep(t, e, ""); there(crashed) || !slices.Contains(removed, "container "+loaderName(stray)) {
		t.Errorf("the loader of an earlier run was not removed; removed: %q", removed)
	}
}

// Sweep measures ages with the engine's clock, also if that clock differs by an hour.
func TestSweepClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			d := newFakeEngine(t)
			d.ahead = ahead
			d.override["GET /containers/json"] = func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Query().Get("filters"), labelAgent) {
					fmt.Fprint(w, "[]")
					return
				}
				var list []map[string]any
				for id, age := range map[string]time.Duration{"young": time.Minute, "old": 2 * oldLoader} {
					list = append(list, map[string]any{
						"Id": id, "Names": []string{"/cmwa-runner-" + id +
							loaderSuffix}, "State": "created", "Created": d.now().Add(-age).Unix(),
						"Labels": map[string]string{labelRunner: "x", labelOwner: "another/run"},
					})
				}
				list = append(list,
					map[string]any{"Id": "running", "Names": []string{"/cmwa-runner-x" + loaderSuffix},
						"State": "running", "Created": 1},
					map[string]any{"Id": "other", "Names": []string{"/of-a-person"}, "State": "created", "Created": 1})
				_ = json.NewEncoder(w).Encode(list)
			}
			d.override["GET /volumes"] = func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, `{"Volumes":[{"Name":"cmwa-runner-old","CreatedAt":%q},`+
					`{"Name":"cmwa-runner-young","CreatedAt":%q}]}`,
					d.now().Add(-idleVolume-time.Minute).Format(time.RFC3339),
					d.now().Add(-idleVolume+time.Minute).Format(time.RFC3339))
			}
			e := d.executor(t)
			removed, err := e.Sweep(t.Context(), nil)
			if want := []string{"container cmwa-runner-old" + loaderSuffix, "volume cmwa-runner-old"}; err != nil ||
				!slices.Equal(removed, want) {
				t.Errorf("removed %q, %v, want %q", removed, err, want)
			}
			if n := d.count("DELETE "); n != 2 {
				t.Errorf("the engine got the calls %q, want two deletions", d.calls)
			}
		})
	}
	t.Run("engine does not report its time", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["GET /info"] = fail(500, "no time")
		d.override["GET /containers/json"] = func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `[{"Id":"old","Names":["/cmwa-runner-old%s"],"State":"created","Created":1}]`, loaderSuffix)
		}
		d.override["GET /volumes"] = func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"Volumes":[{"Name":"cmwa-runner-old","CreatedAt":"2001-01-01T00:00:00Z"}]}`)
		}
		e := d.executor(t)
		if removed, err := e.Sweep(t.Context(), nil); err != nil || len(removed) > 0 {
			t.Errorf("removed %q, %v, want nothing to be removed because no age is known", removed, err)
		}
	})
}

func TestSweepEnded(t *testing.T) {
	for _, ahead := range []time.Duration{-30 * 24 * time.Hour, 0, 30 * 24 * time.Hour} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			d := newFakeEngine(t)
			d.ahead = ahead
			ages := map[string]time.Duration{"1": oldEnded + time.Hour, "2": oldEnded - time.Hour,
				"3": oldEnded + time.Hour}
			agents := map[string]string{"1": "another", "2": "another", "3": "own"}
			id := func(digit string) string { return strings.Repeat(digit, 64) }
			d.override["GET /containers/json"] = func(w http.ResponseWriter, r *http.Request) {
				list := []map[string]any{}
				if filters := r.URL.Query().Get("filters"); strings.Contains(filters, labelAgent) {
					if !strings.Contains(filters, "exited") || strings.Contains(filters, "running") {
						t.Errorf("Sweep lists containers with %s, want only containers that do not run", filters)
					}
					for digit, agent := range agents {
						list = append(list, map[string]any{
							"Id": id(digit), "State": "exited", "Created": d.now().Add(-2 * oldEnded).Unix(),
							"Labels": map[string]string{labelAgent: agent},
						})
					}
				}
				_ = json.NewEncoder(w).Encode(list)
			}
			for digit, age := range ages {
				d.override["GET "+id(digit)+"/json"] = func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintf(w, `{"Id":%q,"State":{"Status":"exited","FinishedAt":%q},`+
						`"Config":{"Labels":{"cmwa.job":"job-%s"}}}`,
						id(digit), d.now().Add(-age).Format(time.RFC3339Nano), digit)
				}
			}
			e := d.executor(t)
			e.agent = "own"
			removed, err := e.Sweep(t.Context(), nil)
			if err != nil || len(removed) != 1 || !strings.HasSuffix(removed[0], "job-1") || d.count("DELETE ") != 1 {
				t.Errorf("removed %q, %v, want the container of job-1; the engine got the calls %q", removed, err,
					d.calls)
			}
		})
	}
}

// Start waits while another agent fills the volume, also if the engine's clock differs by
// an hour.
func TestFillWaits(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			d := newFakeEngine(t)
			d.ahead = ahead
			var mu sync.Mutex
			checks := 0
			d.override["HEAD /archive"] = func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if checks++; checks <= 5 {
					fail(404, "")(w, r)
					return
				}
				w.Header().Set("X-Docker-Container-Path-Stat", "e30=") // the other agent has filled it
			}
			d.override["POST /create"] = func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Query().Get("name"), loaderSuffix) {
					fail(409, "Conflict. The container name is already in use")(w, r)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprintf(w, `{"Id":%q}`, containerID)
			}
			d.override["GET "+loaderSuffix+"/json"] = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"Id":"busy","Created":%q}`, d.now().Add(-time.Second).Format(time.RFC3339Nano))
			}
			e := d.executor(t)
			job := fakeJob(t, `{}`)
			if _, err := e.Start(t.Context(), job, newSetup(job, &setupLog{})); err != nil {
				t.Fatal(err)
			}
			if n := d.count("DELETE "); n != 0 {
				t.Errorf("the engine got the calls %q, want nothing to be removed", d.calls)
			}
		})
	}
}
