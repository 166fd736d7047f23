package docker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestStart(t *testing.T) {
	t.Run("job runs from start to removal", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"code":10}`)
		id, log := start(t, e, job)
		if exit := wait(t, e, id); exit != (runtime.Exit{Code: runtime.CodeFailed}) {
			t.Errorf("the runner ended with %+v, want code %d", exit, runtime.CodeFailed)
		}
		want := []runtime.Progress{
			{Step: 0, Lines: strings.Count(log, "\n"), Status: runtime.Succeeded},
			{Step: 1, Lines: len(job.Definition.Raw), Status: runtime.Running},
		}
		if got := readProgress(t, e, id, -1); !slices.Equal(got, want) {
			t.Errorf("the progress is %v, want %v", got, want)
		}
		for _, part := range []string{"Preparing", testImage, "pull_image is false", "Container created: " + id[:12],
			"Starting"} {
			if !strings.Contains(log, part) {
				t.Errorf("the log of the set-up does not have %q:\n%s", part, log)
			}
		}
		if err := e.Remove(t.Context(), id, time.Second); err != nil {
			t.Error(err)
		}
		if names := leftovers(t, job); len(names) > 0 {
			t.Errorf("the containers %q are left", names)
		}
	})

	t.Run("container has no secret", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "term", "script": "a-secret-in-a-step"}`)
		job.Definition.Image.Username, job.Definition.Image.Password = "someone", job.OIDC
		id, log := start(t, e, job)
		readProgress(t, e, id, 2)
		shown, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(shown.Raw, []byte(job.ID)) {
			t.Error("the inspection does not contain the id of the job")
		}
		for _, hidden := range []string{job.Token.Reveal(), job.OIDC.Reveal(), "a-secret-in-a-step"} {
			if bytes.Contains(shown.Raw, []byte(hidden)) || strings.Contains(log, hidden) {
				t.Errorf("the inspection or the log contains %q", hidden)
			}
		}
	})

	t.Run("failed start has the hint and leaves nothing", func(t *testing.T) {
		e := newExecutor(t)
		for _, c := range []struct {
			name     string
			change   func(*runtime.Job)
			jobFault bool // whether the job causes the error
			want     []string
		}{
			{"NoImage", func(j *runtime.Job) { j.Definition.Image.Reference = "" }, true, []string{"names no image"}},
			{"NotAName", func(j *runtime.Job) { j.Definition.Image.Reference = "../../version" }, true,
				[]string{"not the name of an image"}},
			{"MissingAndNotPulled", func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/missing" }, true,
				[]string{"cmwa-test/missing", "pull_image"}},
			{"OtherSystem", func(j *runtime.Job) { j.Definition.OS = "windows" }, true, []string{"windows"}},
			{"OtherMachine", func(j *runtime.Job) { j.Definition.Architecture = "s390x" }, true,
				[]string{"s390x", testImage}},
			{"MissingOverrideImage",
				func(j *runtime.Job) { j.Tuning.Instance.OverrideImage = "cmwa-test/missing" }, false,
				[]string{"cmwa-test/missing", "pull_image"}},
			{"NoRunner", func(j *runtime.Job) { j.Tuning.Instance.WorkingDirectory = t.TempDir() }, false,
				[]string{"working_directory"}},
			{"NoNetwork", func(j *runtime.Job) { j.Tuning.Instance.Docker.Network = "cmwa-none" }, false,
				[]string{"docker.network"}},
			{"BadVolume", func(j *runtime.Job) { j.Tuning.Instance.Docker.Volumes = []string{"a:b:c:d:e"} }, false,
				[]string{"docker.volumes"}},
			{"BadHost", func(j *runtime.Job) { j.Tuning.Instance.Docker.ExtraHosts = []string{"no-address"} }, false,
				[]string{"docker.extra_hosts"}},
			{"NoSharedDirectory", func(j *runtime.Job) { j.Tuning.Instance.SharedVolumeDirectory = "/nowhere/at/all" },
				false, []string{"shared_volume_directory"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				job := newJob(t, e, `{}`)
				c.change(job)
				_, log, err := tryStart(t, e, job)
				if err == nil || errors.Is(err, runtime.ErrJobFault) != c.jobFault {
					t.Errorf("Start returned %v, want an error that is a job fault: %v", err, c.jobFault)
				}
				last := log[strings.LastIndex(strings.TrimSpace(log), "\n")+1:]
				for _, part := range c.want {
					if !strings.Contains(last, part) {
						t.Errorf("the last line of the log does not have %q:\n%s", part, log)
					}
				}
				if names := leftovers(t, job); len(names) > 0 {
					t.Errorf("the containers %q are left", names)
				}
			})
		}
	})

	t.Run("instance settings apply to the container", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "term"}`)
		data := t.TempDir()
		job.Definition.Image.Reference = "replaced/by:another"
		job.Tuning.Instance.OverrideImage = testImage
		job.Tuning.Instance.Docker = runtime.Docker{Network: "none", Volumes: []string{data + ":/data:ro"},
			ExtraHosts: []string{"service.test:192.0.2.1"}}
		id, _ := start(t, e, job)
		got, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := got.Container
		if c.Config.Image != testImage || c.HostConfig.NetworkMode != "none" ||
			!slices.Equal(c.HostConfig.ExtraHosts, job.Tuning.Instance.Docker.ExtraHosts) {
			t.Errorf("the container has image %s, network %s, hosts %v", c.Config.Image, c.HostConfig.NetworkMode,
				c.HostConfig.ExtraHosts)
		}
		mounts := map[string]bool{}
		for _, m := range c.Mounts {
			mounts[m.Destination] = m.RW
		}
		if rw, ok := mounts["/data"]; !ok || rw {
			t.Errorf("the mounts are %v, want /data read-only", mounts)
		}
		if rw, ok := mounts[runnerDirectory]; !ok || rw {
			t.Errorf("the mounts are %v, want the runner read-only", mounts)
		}
	})
}

func TestRemove(t *testing.T) {
	t.Run("runner gets the grace period", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "term", "code": 10}`)
		id, _ := start(t, e, job)
		readProgress(t, e, id, 2)
		exits := make(chan runtime.Exit, 1)
		go func() {
			exit, err := e.Wait(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			exits <- exit
		}()
		begin := time.Now()
		if err := e.Remove(t.Context(), id, 30*time.Second); err != nil {
			t.Error(err)
		}
		if exit := <-exits; exit.Code != runtime.CodeFailed {
			t.Errorf("the runner ended with %+v, want the code after SIGTERM: %d", exit, runtime.CodeFailed)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("Remove took %v, want at most 20s", took)
		}
	})

	t.Run("directory of the job is removed with its container", func(t *testing.T) {
		for _, end := range []string{"removed by the agent", "removed by the next agent", "removed by another client"} {
			t.Run(end, func(t *testing.T) {
				e, shared := newExecutor(t), t.TempDir()
				job := newJob(t, e, `{"until": "term"}`)
				job.Tuning.Instance.SharedVolumeDirectory = shared
				id, _ := start(t, e, job)
				readProgress(t, e, id, 2)
				entries, err := os.ReadDir(shared)
				if err != nil || len(entries) != 1 ||
					!strings.HasPrefix(entries[0].Name(), "pulumi-workflow-"+job.ID[:12]) {
					t.Errorf("the shared directory has %v (%v), want the job's directory", entries, err)
				}
				last := e
				switch end {
				case "removed by the next agent":
					last = newExecutor(t)
				case "removed by another client":
					if _, err := e.engine.ContainerRemove(t.Context(), id,
						client.ContainerRemoveOptions{Force: true}); err != nil {
						t.Fatal(err)
					}
				}
				if err := last.Remove(t.Context(), id, 0); err != nil {
					t.Error(err)
				}
				if entries, err := os.ReadDir(shared); err != nil || len(entries) != 0 {
					t.Errorf("the shared directory still has %v (%v)", entries, err)
				}
			})
		}
	})
}

func TestWait(t *testing.T) {
	t.Run("killed runner has the reason killed", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "kill"}`)
		id, _ := start(t, e, job)
		readProgress(t, e, id, 2)
		if _, err := e.engine.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
		if exit := wait(t, e, id); exit.Code != 137 || exit.Reason != "killed" {
			t.Errorf("a killed runner ended with %+v, want code 137 and the reason killed", exit)
		}
	})

	t.Run("last message is the reason of an unexpected end", func(t *testing.T) {
		e := newExecutor(t)
		id, _ := start(t, e, newJob(t, e, `{"code": 3, "note": "some text\nthe last of it"}`))
		if exit := wait(t, e, id); exit.Code != 3 || exit.Reason != "the last of it" {
			t.Errorf("the runner ended with %+v, want its last message", exit)
		}
	})

	t.Run("output of a step is not the last message", func(t *testing.T) {
		e := newExecutor(t)
		output := strings.TrimSuffix(runtime.LocalLine(1, strings.Repeat("x", runtime.MaxLocalLine)), "\n")
		id, _ := start(t, e, newJob(t, e, `{"code": 3, "note": "the message\n`+output+`\n`+output+`\n`+output+`"}`))
		if exit := wait(t, e, id); exit.Code != 3 || exit.Reason != "the message" {
			t.Errorf("the runner ended with %+v, want its own last message", exit)
		}
	})
}

func TestList(t *testing.T) {
	t.Run("container that was never started counts as ended", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{}`)
		runner, err := e.programs.find(job.Tuning.Instance.WorkingDirectory, e.architecture)
		if err != nil {
			t.Fatal(err)
		}
		id, err := e.create(t.Context(),
			e.containerOptions(job, image{name: testImage}, newName(job.ID), "", e.volumeMount(runner, true)))
		if err != nil {
			t.Fatal(err)
		}
		found, err := e.List(t.Context(), job.Agent)
		if err != nil || len(found) != 1 || found[0].Running || time.Since(found[0].Ended) > time.Minute {
			t.Errorf("List returned %+v (%v), want one instance that has just ended", found, err)
		}
		if exit := wait(t, e, id); exit.Code != runtime.CodeUnknown {
			t.Errorf("the container ended with %+v, want no exit code", exit)
		}
	})
}

func TestFill(t *testing.T) {
	t.Run("pruned volume is filled again", func(t *testing.T) {
		e := newExecutor(t)
		first := newJob(t, e, `{}`)
		working, runner := unique(t, e)
		first.Tuning.Instance.WorkingDirectory = working
		for range 2 {
			id, _ := start(t, e, first)
			if exit := wait(t, e, id); exit.Code != 0 {
				t.Errorf("the runner ended with %+v", exit)
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := e.engine.VolumeRemove(t.Context(), volumeName(runner),
				client.VolumeRemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		id, _ := start(t, e, first)
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("several agents fill a volume at the same time", func(t *testing.T) {
		agents := []*Executor{newExecutor(t), newExecutor(t), newExecutor(t)}
		working, runner := unique(t, agents[0])
		var group errgroup.Group
		for _, e := range agents {
			job := newJob(t, e, `{}`)
			job.Tuning.Instance.WorkingDirectory = working
			group.Go(func() error {
				id, err := e.Start(t.Context(), job, newSetup(job, &setupLog{}))
				if err != nil {
					return err
				}
				exit, err := e.Wait(t.Context(), id)
				if err != nil || exit.Code != 0 {
					t.Errorf("a runner ended with %+v (%v)", exit, err)
				}
				return e.Remove(t.Context(), id, 0)
			})
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := agents[0].engine.ContainerInspect(t.Context(), loaderName(runner),
			client.ContainerInspectOptions{}); err == nil {
			t.Error("the loader container still exists")
		}
	})
}

// unique returns a working directory with a runner for whose digest there is no volume yet, and this
// runner. It removes the volume at the end of the test.
func unique(t *testing.T, e *Executor) (directory string, runner program) {
	t.Helper()
	directory = t.TempDir()
	entries, err := os.ReadDir(standin(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(standin(t), entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, t.Name()+time.Now().String()...)
		if err := os.WriteFile(filepath.Join(directory, entry.Name()), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runner, err = e.programs.find(directory, e.architecture)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := e.engine.VolumeRemove(context.Background(), volumeName(runner), client.VolumeRemoveOptions{})
		if err != nil {
			t.Errorf("remove the volume: %v", err)
		}
	})
	return directory, runner
}

func TestNew(t *testing.T) {
	t.Run("a RunnerDirectory is needed", func(t *testing.T) {
		e, err := New(t.Context(), Options{Environ: os.LookupEnv, Log: slog.New(slog.DiscardHandler)})
		if e != nil || err == nil || !strings.Contains(err.Error(), "RunnerDirectory") {
			t.Errorf("New returned %v, %v, want an error with RunnerDirectory", e, err)
		}
	})
}
