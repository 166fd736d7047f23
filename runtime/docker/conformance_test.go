package docker

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestExecutorConformance(t *testing.T) {
	runner := runtimetest.Runner(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return newExecutor(t) },
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			job.Tuning.Instance.WorkingDirectory = runner
			job.Tuning.Instance.Docker.Network = hostNetwork
			job.Definition.Image.Reference = testImage
			switch work {
			case runtimetest.BadJob:
				job.Definition.Image.Reference = "cmwa-test/missing"
			case runtimetest.Misconfigured:
				job.Tuning.Instance.Docker.Network = "cmwa-none"
			}
		},
		BadJobs:   true,
		Host:      hostAddress(t),
		Leftovers: func(t *testing.T, job *runtime.Job) []string { return leftovers(t, job) },
		Exposed:   exposed,
	})
}

// hostAddress returns an address of this machine that containers can reach.
func hostAddress(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../testdata/toolchain/address").Output()
	if err != nil {
		t.Fatalf("find an address that containers reach: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// exposed returns the data about a running job that every client of the engine can read:
// the inspection of the container and its processes.
func exposed(t *testing.T, _ *runtime.Job, id string) string {
	t.Helper()
	engine, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	shown, err := engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	top, err := engine.ContainerTop(t.Context(), id, client.ContainerTopOptions{Arguments: []string{"axeww"}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(shown.Raw)
	for _, process := range top.Processes {
		text += "\n" + strings.Join(process, " ")
	}
	return text
}
