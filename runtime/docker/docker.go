package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
)

// Limits of calls to the engine.
const (
	pingLimit  = 10 * time.Second // for the first sign of life
	shortLimit = 30 * time.Second // for questions, and for what an engine does at once
	longLimit  = 2 * time.Minute  // for what can be slow on a busy machine: create, start, remove, copy
)

// patience is how much longer than its caller's context a call may take that is
// not cancelled half-way.
const patience = 30 * time.Second

// patient returns a context for what changes the engine's state: it has a limit,
// and outlives ctx by no more than patience, so that an engine that hangs holds
// nobody who is asked to stop.
func patient(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	outlives, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-outlives.Done():
		}
	})
	return outlives, func() {
		stop()
		cancel()
	}
}

// oldestAPI is the oldest version of the engine's API that the client library
// speaks, that of Docker 19.03. Towards older ones it would go on in silence
// with a version that they do not know.
const oldestAPI = client.MinAPIVersion

// Options is what an [Executor] is made of.
type Options struct {
	// Environ looks up DOCKER_HOST, DOCKER_API_VERSION, DOCKER_CONFIG and HOME,
	// as the docker command does. Certificates (DOCKER_CERT_PATH,
	// DOCKER_TLS_VERIFY) and the PATH of credential helpers are those of the
	// process.
	Environ func(name string) (string, bool)
	Agent   string // id of the agent, for what it makes beside jobs
	Log     *slog.Logger

	RunnerDirectory string // where a job's container has the runner; must not be empty
}

// Executor runs jobs as containers of one engine. It keeps nothing that a
// restarted agent would miss, and no goroutine beyond a call but that of an
// open [Executor.Follow].
type Executor struct {
	engine       *client.Client
	agent        string // id of the agent
	host         string // of the engine, as people write it
	architecture string // of the engine's machine, as Go names it
	environ      func(name string) (string, bool)
	log          *slog.Logger
	directory    string // where a job's container has the runner
	programs     programs
	stall        time.Duration // without any news, after which a pull is given up

	mu      sync.Mutex
	folders map[string]string // folders of jobs by container, for containers that others remove
}

// New makes an executor, and asks the engine whether it is there and able. Its
// errors are one line that says what to do.
func New(ctx context.Context, options Options) (*Executor, error) {
	if options.RunnerDirectory == "" {
		return nil, errors.New("the options of the Docker executor have no RunnerDirectory")
	}
	host := client.DefaultDockerHost
	if set, _ := options.Environ(client.EnvOverrideHost); set != "" {
		host = set
	}
	if strings.HasPrefix(host, "ssh://") {
		return nil, fmt.Errorf("DOCKER_HOST is %s, and ssh is not supported: forward the engine's socket (ssh -L) and set DOCKER_HOST to the near end", host)
	}
	version, _ := options.Environ(client.EnvOverrideAPIVersion)
	// TLS comes first: it replaces the transport that the host is set in.
	engine, err := client.New(client.WithTLSClientConfigFromEnv(), client.WithHost(host), client.WithAPIVersion(version))
	if err != nil {
		return nil, fmt.Errorf("set up the connection to the Docker engine at %s: %w", host, err)
	}
	e := &Executor{
		engine: engine, agent: options.Agent, host: host, environ: options.Environ, log: options.Log,
		directory: options.RunnerDirectory, stall: pullStall, folders: map[string]string{},
	}
	if err := e.greet(ctx); err != nil {
		_ = engine.Close()
		return nil, err
	}
	e.log.Debug("the Docker engine answers", "agent", options.Agent, "host", host, "architecture", e.architecture, "api", engine.ClientVersion())
	return e, nil
}

// Close lets connections to the engine go that are not in use. An executor that is
// used all the same makes new ones.
func (e *Executor) Close() { _ = e.engine.Close() }

// greet sees to it that the engine is one that can run jobs.
func (e *Executor) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	if err := e.ping(ctx); err != nil {
		return err
	}
	about, err := e.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return unreachable(e.host, err)
	}
	e.architecture = architecture(about.Arch)
	return nil
}

// ping returns why the engine cannot run jobs, as far as one short request
// tells.
func (e *Executor) ping(ctx context.Context) error {
	ping, err := e.engine.Ping(ctx, client.PingOptions{})
	switch {
	case err != nil:
		return unreachable(e.host, err)
	case ping.APIVersion == "":
		return fmt.Errorf("what answers at %s is not a Docker engine, or none that tells its version: check DOCKER_HOST", e.host)
	case versions.LessThan(ping.APIVersion, oldestAPI):
		return fmt.Errorf("the Docker engine at %s speaks API %s, and %s is needed: upgrade it to Docker 19.03 or newer", e.host, ping.APIVersion, oldestAPI)
	case ping.OSType != "" && ping.OSType != "linux":
		return fmt.Errorf("the Docker engine at %s runs %s containers, and jobs need Linux: switch it to Linux containers, or set DOCKER_HOST to another", e.host, ping.OSType)
	}
	return nil
}

// architecture gives Go's name of an architecture that may be named as the
// kernel does.
func architecture(name string) string {
	switch name {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return name
}
