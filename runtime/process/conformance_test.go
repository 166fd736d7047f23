//go:build linux || darwin

package process_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExecutorConformance(t *testing.T) {
	directory, runner := t.TempDir(), runtimetest.Runner(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return newExecutor(t, directory) },
		Job: func(t *testing.T, job *runtime.Job, work runtimetest.Work) {
			job.Tuning.Instance.WorkingDirectory = runner
			if work == runtimetest.Misconfigured {
				job.Tuning.Instance.WorkingDirectory = t.TempDir()
			}
		},
		Host:      "127.0.0.1",
		Leftovers: func(t *testing.T, job *runtime.Job) []string { return leftovers(t, directory, job) },
		Exposed:   func(t *testing.T, job *runtime.Job, id string) string { return exposed(t, directory, job, id) },
	})
}

// newExecutor creates an executor whose agent has a secret in its environment.
func newExecutor(t *testing.T, directory string) *process.Executor {
	t.Helper()
	e, err := process.New(process.Options{
		Directory: directory,
		Environ:   append(os.Environ(), "PULUMI_AGENT_TOKEN="+agentToken),
	})
	noError(t, err)
	return e
}

const agentToken = "pul-of-the-agent"

// leftovers returns the directories of a job, and the processes whose environment names one of
// these directories or a directory that no longer exists: the removal of such a directory has left the
// process. Unlike the executor, it does not search by session.
func leftovers(t *testing.T, directory string, job *runtime.Job) []string {
	t.Helper()
	var all []string
	homes := directories(t, directory, job)
	for _, home := range homes {
		all = append(all, "directory "+home)
	}
	for _, p := range processes(t) {
		_, home, ok := strings.Cut(p, "CMWA_JOB_DIRECTORY="+directory+string(filepath.Separator))
		if !ok {
			continue
		}
		home, _, _ = strings.Cut(home, " ")
		home = filepath.Join(directory, home)
		if _, err := os.Stat(home); err != nil || slices.Contains(homes, home) {
			all = append(all, fmt.Sprintf("process %.300s", p))
		}
	}
	return all
}

// directories returns the directories whose labels name the job, or cannot be read.
func directories(t *testing.T, directory string, job *runtime.Job) []string {
	t.Helper()
	entries, err := os.ReadDir(directory)
	noError(t, err)
	var all []string
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		text, err := os.ReadFile(filepath.Join(path, "job.json"))
		if err != nil || strings.Contains(string(text), job.ID) {
			all = append(all, path)
		}
	}
	return all
}

// processes returns all processes of this user, each as one line with its command line
// and its environment.
func processes(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "axeww", "-o", "pid=,command=").Output()
	if err != nil {
		t.Fatalf("list processes (ps is in the package procps): %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// exposed returns what other users of the machine could read of a running job: its
// processes, and the files in its directory.
func exposed(t *testing.T, directory string, job *runtime.Job, id string) string {
	t.Helper()
	home := filepath.Join(directory, id)
	var text strings.Builder
	own := 0
	for _, p := range processes(t) {
		if strings.Contains(p, home) {
			own++
			fmt.Fprintln(&text, p)
		}
	}
	if own < 2 {
		t.Errorf("%d processes belong to the job, want at least the runner and its supervisor", own)
	}
	err := filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s: %s\n", path, content)
		return err
	})
	noError(t, err)
	if strings.Contains(text.String(), agentToken) {
		t.Error("the token of the agent is visible in the job")
	}
	return text.String()
}
