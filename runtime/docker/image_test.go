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

// pulling makes a job that pulls the registry's image.
func pulling(t *testing.T, e *Executor, r *imageServer) *runtime.Job {
	t.Helper()
	job := newJob(t, e, `{}`)
	job.Definition.Image.Reference = r.image()
	job.Tuning.Place.PullImage = true
	return job
}

func TestAnImageIsPulledForEachJobAndTheLogTellsIt(t *testing.T) {
	e, r := open(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, open(t).architecture)
	service := &teller{}
	heard := ""
	r.onManifest = func() { heard = service.log() }
	for _, part := range []string{"Downloaded newer image", "Image is up to date"} {
		job := pulling(t, e, r)
		id, err := e.Start(t.Context(), job, newSetup(job, service))
		if err != nil {
			t.Fatal(err)
		}
		if exit := wait(t, e, id); exit.Code != 0 {
			t.Errorf("the runner ended with %+v", exit)
		}
		for _, part := range []string{"Pulling the image " + r.image(), "latest: Pulling from story", "Digest: sha256:", part} {
			if !strings.Contains(service.log(), part) {
				t.Errorf("the log does not have %q:\n%s", part, service.log())
			}
		}
	}
	if !strings.Contains(heard, "Pulling the image") {
		t.Errorf("when the registry was asked, the service had only heard %q", heard)
	}
	if !strings.Contains(service.log(), ": Pull complete") {
		t.Errorf("the log does not tell of the layer:\n%s", service.log())
	}
	if r.pulls.Load() < 2 {
		t.Errorf("the registry was asked %d times, want once for each job", r.pulls.Load())
	}
}

func TestAnImageThatOnlyTheEngineHasIsNotPulledAndTheFailureSaysHowToUseIt(t *testing.T) {
	e, r := open(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, "amd64")
	if _, err := e.engine.ImageTag(t.Context(), client.ImageTagOptions{Source: base, Target: r.host + "/only-here:latest"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = e.engine.ImageRemove(context.Background(), r.host+"/only-here:latest", client.ImageRemoveOptions{})
	})
	job := pulling(t, e, r)
	job.Definition.Image.Reference = r.host + "/only-here:latest"
	_, _, err := tryStart(t, e, job)
	if !errors.Is(err, runtime.ErrJob) || !strings.Contains(err.Error(), "pull_image to false") {
		t.Errorf("starting gives %v", err)
	}
	job.Definition.Image.Reference = r.host + "/nowhere:latest"
	_, _, err = tryStart(t, e, job)
	if !errors.Is(err, runtime.ErrJob) || strings.Contains(err.Error(), "pull_image") {
		t.Errorf("starting gives %v", err)
	}
}

func TestALoginIsFoundWhereTheUserKeepsIt(t *testing.T) {
	pair := base64.StdEncoding.EncodeToString([]byte("someone:" + registryPassword))
	for _, c := range []struct {
		name   string
		config string // $HOST is the registry
		helper string // a shell script
		own    bool   // the job has the login
	}{
		{name: "JobsOwn", config: `{"auths":{"$HOST":{"auth":"d3Jvbmc6d3Jvbmc="}}}`, own: true},
		{name: "Configuration", config: `{"auths":{"$HOST":{"auth":"` + pair + `"}}}`},
		{name: "ConfigurationWithURL", config: `{"auths":{"https://$HOST/v2/":{"username":"someone","password":"` + registryPassword + `"}}}`},
		{name: "Helper", config: `{"credHelpers":{"$HOST":"story"}}`, helper: `read server; test "$1 $server" = "get $HOST" && echo '{"Username":"someone","Secret":"` + registryPassword + `"}'`},
		{name: "Store", config: `{"credsStore":"story"}`, helper: `read server; echo '{"ServerURL":"x","Username":"someone","Secret":"` + registryPassword + `"}'`},
		{name: "StoreThatHasNone", config: `{"credsStore":"story","auths":{"$HOST":{"auth":"` + pair + `"}}}`, helper: `echo credentials not found in native keychain; exit 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newImageServer(t, open(t).architecture)
			r.user, r.password = "someone", registryPassword
			e := open(t, "DOCKER_CONFIG="+configured(t, c.config, c.helper, r.host))
			job := pulling(t, e, r)
			if c.own {
				job.Definition.Image.Username, job.Definition.Image.Password = "someone", secret.New(registryPassword)
			}
			_, log := start(t, e, job)
			if strings.Contains(log, registryPassword) || strings.Contains(log, pair) {
				t.Errorf("the log shows the password:\n%s", log)
			}
		})
	}
}

func TestALoginThatFailsIsToldWithoutThePassword(t *testing.T) {
	for _, c := range []struct{ name, config, helper, says string }{
		{"WrongPassword", `{"auths":{"$HOST":{"username":"someone","password":"wrong-` + registryPassword + `"}}}`, "", "auth"},
		{"BrokenConfiguration", `{"auths":{"$HOST":{"password":"` + registryPassword + `"`, "", "config.json is not the JSON"},
		{"BrokenLogin", `{"auths":{"$HOST":{"auth":"` + registryPassword + `!"}}}`, "", "docker login"},
		{"NoHelper", `{"credsStore":"nowhere"}`, "", "docker-credential-nowhere, which is not on PATH"},
		{"FailingHelper", `{"credsStore":"story"}`, `echo ` + registryPassword + `; echo ` + registryPassword + ` >&2; exit 3`, "exit status 3"},
		{"TalkativeHelper", `{"credsStore":"story"}`, `head -c 3000000 /dev/zero`, "docker-credential-story"},
		{"HelperByPath", `{"credsStore":"../../` + registryPassword + `"}`, ``, "by a path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newImageServer(t, "amd64")
			r.user, r.password = "someone", registryPassword
			e := open(t, "DOCKER_CONFIG="+configured(t, c.config, c.helper, r.host))
			_, log, err := tryStart(t, e, pulling(t, e, r))
			if !errors.Is(err, runtime.ErrJob) {
				t.Errorf("starting gives %v, want %v", err, runtime.ErrJob)
			}
			if !strings.Contains(log, c.says) {
				t.Errorf("the log does not have %q:\n%s", c.says, log)
			}
			if strings.Contains(log, registryPassword) {
				t.Errorf("the log shows the password:\n%s", log)
			}
		})
	}
}

// configured makes a Docker configuration, and a credential helper "story" on
// PATH.
func configured(t *testing.T, config, helper, host string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(strings.ReplaceAll(config, "$HOST", host)), 0o600); err != nil {
		t.Fatal(err)
	}
	if helper != "" {
		script := "#!/bin/sh\n" + strings.ReplaceAll(helper, "$HOST", host) + "\n"
		if err := os.WriteFile(filepath.Join(folder, "docker-credential-story"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", folder+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	return folder
}

func TestAPullWithoutNewsIsGivenUp(t *testing.T) {
	e, r := open(t, "DOCKER_CONFIG="+t.TempDir()), newImageServer(t, "amd64")
	r.hold = make(chan struct{})
	defer close(r.hold)
	e.stall = 300 * time.Millisecond
	begin := time.Now()
	_, log, err := tryStart(t, e, pulling(t, e, r))
	if err == nil || errors.Is(err, runtime.ErrJob) || !strings.Contains(err.Error(), "nothing has happened for 300ms") {
		t.Errorf("starting gives %v\n%s", err, log)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("giving up took %v", took)
	}
}

func TestAnImageForAnotherMachineFailsWithTheReason(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[open(t).architecture]
	r := newImageServer(t, other)
	e := open(t, "DOCKER_CONFIG="+t.TempDir())

	job := pulling(t, e, r)
	_, _, err := tryStart(t, e, job)
	if !errors.Is(err, runtime.ErrJob) || !strings.Contains(err.Error(), "workflow-runner-linux-"+other) {
		t.Errorf("without a runner for it, starting gives %v", err)
	}

	working := t.TempDir()
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(working, "workflow-runner-linux-"+other), "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+other)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	job.Tuning.Place.WorkingDirectory = working
	id, log, err := tryStart(t, e, job)
	if !strings.Contains(log, "needs emulation") {
		t.Errorf("the log does not tell of the emulation:\n%s", log)
	}
	if err == nil { // the engine's machine has emulation
		if exit := wait(t, e, id); exit.Code != 0 {
			t.Errorf("the runner ended with %+v", exit)
		}
		return
	}
	if !errors.Is(err, runtime.ErrJob) || !strings.Contains(err.Error(), "another kind of machine") {
		t.Errorf("starting gives %v", err)
	}
	if names := left(t, job); len(names) > 0 {
		t.Errorf("%q is left", names)
	}
}
