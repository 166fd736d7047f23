package docker

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const registryPassword = "pass-of-the-registry"

// pullJob returns a job that pulls the image of the test registry.
func pullJob(t *testing.T, e *Executor, r *imageServer) *runtime.Job {
	t.Helper()
	job := newJob(t, e, `{}`)
	job.Definition.Image.Reference = r.image()
	job.Tuning.Instance.PullImage = true
	return job
}

func TestPull(t *testing.T) {
	t.Run("image is pulled for each job, and the progress is logged", func(t *testing.T) {
		e, r := newExecutor(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, newExecutor(t).architecture)
		service := &setupLog{}
		logged := ""
		r.onPull = func() { logged = service.log() }
		for _, part := range []string{"Downloaded newer image", "Image is up to date"} {
			job := pullJob(t, e, r)
			id, err := e.Start(t.Context(), job, newSetup(job, service))
			if err != nil {
				t.Fatal(err)
			}
			if exit := wait(t, e, id); exit.Code != 0 {
				t.Errorf("the runner ended with %+v", exit)
			}
			for _, part := range []string{"Pulling the image " + r.image(), "latest: Pulling from story",
				"Digest: sha256:", part} {
				if !strings.Contains(service.log(), part) {
					t.Errorf("the log does not have %q:\n%s", part, service.log())
				}
			}
		}
		if !strings.Contains(logged, "Pulling the image") {
			t.Errorf("when the image was requested, the log was %q", logged)
		}
		if !strings.Contains(service.log(), ": Pull complete") {
			t.Errorf("the log does not report the layer:\n%s", service.log())
		}
		if r.pulls.Load() < 2 {
			t.Errorf("the image was requested %d times, want once for each job", r.pulls.Load())
		}
	})

	t.Run("error of a pull suggests the image that the engine has", func(t *testing.T) {
		e, r := newExecutor(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, "amd64")
		if _, err := e.engine.ImageTag(t.Context(),
			client.ImageTagOptions{Source: testImage, Target: r.host + "/only-here:latest"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = e.engine.ImageRemove(context.Background(), r.host+"/only-here:latest", client.ImageRemoveOptions{})
		})
		job := pullJob(t, e, r)
		job.Definition.Image.Reference = r.host + "/only-here:latest"
		_, _, err := tryStart(t, e, job)
		if !errors.Is(err, runtime.ErrJobFault) || !strings.Contains(err.Error(), "pull_image to false") {
			t.Errorf("Start returned %v, want a job fault with pull_image", err)
		}
		job.Definition.Image.Reference = r.host + "/nowhere:latest"
		_, _, err = tryStart(t, e, job)
		if !errors.Is(err, runtime.ErrJobFault) || strings.Contains(err.Error(), "pull_image") {
			t.Errorf("Start returned %v, want a job fault without pull_image", err)
		}
	})

	t.Run("pull without progress fails", func(t *testing.T) {
		e, r := newExecutor(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, "amd64")
		r.hold = make(chan struct{})
		defer close(r.hold)
		e.pullTimeout = 300 * time.Millisecond
		begin := time.Now()
		_, log, err := tryStart(t, e, pullJob(t, e, r))
		if err == nil || errors.Is(err, runtime.ErrJobFault) ||
			!strings.Contains(err.Error(), "no progress for 300ms") {
			t.Errorf("Start returned %v, want an error after 300ms without progress\n%s", err, log)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the failure took %v, want at most 10s", took)
		}
	})

	t.Run("image for another machine needs a runner and emulation", func(t *testing.T) {
		other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[newExecutor(t).architecture]
		r := newImageServer(t, other)
		e := newExecutor(t, "DOCKER_CONFIG="+t.TempDir())

		job := pullJob(t, e, r)
		_, _, err := tryStart(t, e, job)
		if !errors.Is(err, runtime.ErrJobFault) || !strings.Contains(err.Error(), "workflow-runner-linux-"+other) {
			t.Errorf("without a runner for the image Start returned %v", err)
		}

		working := t.TempDir()
		cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o",
			filepath.Join(working, "workflow-runner-linux-"+other), "./testdata/standin")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+other)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		job.Tuning.Instance.WorkingDirectory = working
		id, log, err := tryStart(t, e, job)
		if !strings.Contains(log, "needs emulation") {
			t.Errorf("the log does not report the emulation:\n%s", log)
		}
		if err == nil { // the host of the engine has emulation
			if exit := wait(t, e, id); exit.Code != 0 {
				t.Errorf("the runner ended with %+v", exit)
			}
			return
		}
		if !errors.Is(err, runtime.ErrJobFault) || !strings.Contains(err.Error(), "another kind of machine") {
			t.Errorf("without emulation Start returned %v", err)
		}
		if names := leftovers(t, job); len(names) > 0 {
			t.Errorf("the containers %q remain after the job", names)
		}
	})
}

func TestLogin(t *testing.T) {
	t.Run("login of the job, the configuration or a helper is used", func(t *testing.T) {
		pair := base64.StdEncoding.EncodeToString([]byte("someone:" + registryPassword))
		for _, c := range []struct {
			name   string
			config string // $HOST is the registry
			helper string // a shell script
			inJob  bool   // the job has the login
		}{
			{name: "Job", config: `{"auths":{"$HOST":{"auth":"d3Jvbmc6d3Jvbmc="}}}`, inJob: true},
			{name: "Configuration", config: `{"auths":{"$HOST":{"auth":"` + pair + `"}}}`},
			{name: "ConfigurationWithURL",
				config: `{"auths":{"https://$HOST/v2/":{"username":"someone","password":"` + registryPassword + `"}}}`},
			{name: "Helper", config: `{"credHelpers":{"$HOST":"story"}}`,
				helper: `read server; test "$1 $server" = "get $HOST" && echo '{"Username":"someone","Secret":"` +
					registryPassword + `"}'`},
			{name: "Store", config: `{"credsStore":"story"}`,
				helper: `read server; echo '{"ServerURL":"x","Username":"someone","Secret":"` + registryPassword +
					`"}'`},
			{name: "StoreWithoutLogin", config: `{"credsStore":"story","auths":{"$HOST":{"auth":"` + pair + `"}}}`,
				helper: `echo credentials not found in native keychain; exit 1`},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := newImageServer(t, newExecutor(t).architecture)
				r.user, r.password = "someone", registryPassword
				e := newExecutor(t, "DOCKER_CONFIG="+dockerConfigDirectory(t, c.config, c.helper, r.host))
				job := pullJob(t, e, r)
				if c.inJob {
					job.Definition.Image.Username = "someone"
					job.Definition.Image.Password = secret.New(registryPassword)
				}
				_, log := start(t, e, job)
				if strings.Contains(log, registryPassword) || strings.Contains(log, pair) {
					t.Errorf("the log shows the password:\n%s", log)
				}
			})
		}
	})

	t.Run("failed login is logged without the password", func(t *testing.T) {
		for _, c := range []struct{ name, config, helper, want string }{
			{"WrongPassword", `{"auths":{"$HOST":{"username":"someone","password":"wrong-` + registryPassword + `"}}}`,
				"", "auth"},
			{"BrokenConfiguration", `{"auths":{"$HOST":{"password":"` + registryPassword + `"`, "",
				"config.json is not valid JSON"},
			{"BrokenLogin", `{"auths":{"$HOST":{"auth":"` + registryPassword + `!"}}}`, "", "docker login"},
			{"NoHelper", `{"credsStore":"nowhere"}`, "", "docker-credential-nowhere, which is not on PATH"},
			{"FailingHelper", `{"credsStore":"story"}`,
				`echo ` + registryPassword + `; echo ` + registryPassword + ` >&2; exit 3`, "exit status 3"},
			{"HelperWithLongOutput", `{"credsStore":"story"}`, `head -c 3000000 /dev/zero`, "docker-credential-story"},
			{"HelperByPath", `{"credsStore":"../../` + registryPassword + `"}`, ``, "by a path"},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := newImageServer(t, "amd64")
				r.user, r.password = "someone", registryPassword
				e := newExecutor(t, "DOCKER_CONFIG="+dockerConfigDirectory(t, c.config, c.helper, r.host))
				_, log, err := tryStart(t, e, pullJob(t, e, r))
				if !errors.Is(err, runtime.ErrJobFault) {
					t.Errorf("Start returned %v, want %v", err, runtime.ErrJobFault)
				}
				if !strings.Contains(log, c.want) {
					t.Errorf("the log does not have %q:\n%s", c.want, log)
				}
				if strings.Contains(log, registryPassword) {
					t.Errorf("the log shows the password:\n%s", log)
				}
			})
		}
	})
}

// dockerConfigDirectory returns a directory with a Docker configuration. If helper is not empty, the
// directory also has the credential helper "story" with this script, and is added to PATH.
func dockerConfigDirectory(t *testing.T, config, helper, host string) string {
	t.Helper()
	directory := t.TempDir()
	text := strings.ReplaceAll(config, "$HOST", host)
	if err := os.WriteFile(filepath.Join(directory, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if helper != "" {
		script := "#!/bin/sh\n" + strings.ReplaceAll(helper, "$HOST", host) + "\n"
		if err := os.WriteFile(filepath.Join(directory, "docker-credential-story"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", directory+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	return directory
}
