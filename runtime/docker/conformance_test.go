package docker

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestTheDockerExecutorKeepsTheContract(t *testing.T) {
	runner := runtimetest.Runner(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return open(t) },
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			job.Tuning.Place.WorkingDirectory = runner
			job.Definition.Image.Reference = base
			switch work {
			case runtimetest.Hopeless:
				job.Definition.Image.Reference = "cmwa-test/missing"
			case runtimetest.Misset:
				job.Tuning.Place.Docker.Network = "cmwa-none"
			}
		},
		Own:     true,
		Host:    reachable(t),
		Left:    func(t *testing.T, job *runtime.Job) []string { return left(t, job) },
		Exposed: exposed,
	})
}

// reachable is an address of this machine that containers reach, too.
func reachable(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../testdata/toolchain/address").Output()
	if err != nil {
		t.Fatalf("find an address that containers reach: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// exposed is what whoever may ask the engine can read of a running job: all
// that the engine knows of it, its processes, and the files of its environment
// that no step has written.
func exposed(t *testing.T, _ *runtime.Job, id string) string {
	t.Helper()
	engine, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown, err := engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	top, err := engine.ContainerTop(ctx, id, client.ContainerTopOptions{Arguments: []string{"axeww"}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(shown.Raw)
	for _, process := range top.Processes {
		text += "\n" + strings.Join(process, " ")
	}
	return text
}
