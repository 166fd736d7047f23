//go:build linux || darwin

package process_test

import (
	"fmt"
	"io/fs"
	"log/slog"
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

func TestTheProcessExecutorKeepsTheContract(t *testing.T) {
	folder, runner := t.TempDir(), runtimetest.Runner(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return open(t, folder) },
		Job: func(t *testing.T, job *runtime.Job, work runtimetest.Work) {
			job.Tuning.Place.WorkingDirectory = runner
			if work == runtimetest.Misset {
				job.Tuning.Place.WorkingDirectory = t.TempDir()
			}
		},
		Host:    "127.0.0.1",
		Left:    func(t *testing.T, job *runtime.Job) []string { return left(t, folder, job) },
		Exposed: func(t *testing.T, job *runtime.Job, id string) string { return exposed(t, folder, job, id) },
	})
}

// open makes an executor whose agent has a secret in its environment.
func open(t *testing.T, folder string) *process.Executor {
	t.Helper()
	e, err := process.New(process.Options{
		Folder:  folder,
		Environ: append(os.Environ(), "PULUMI_AGENT_TOKEN="+agentToken),
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const agentToken = "pul-of-the-agent"

// left names the folders of a job, and the processes that were started in one.
// It looks for them in its own way: by their environment, as a person would. A
// process of a folder that has gone can only be what a removal has left.
func left(t *testing.T, folder string, job *runtime.Job) []string {
	t.Helper()
	var all []string
	homes := folders(t, folder, job)
	for _, home := range homes {
		all = append(all, "folder "+home)
	}
	for _, p := range processes(t) {
		_, home, ok := strings.Cut(p, "CMWA_JOB_FOLDER="+folder+string(filepath.Separator))
		if !ok {
			continue
		}
		home, _, _ = strings.Cut(home, " ")
		home = filepath.Join(folder, home)
		if _, err := os.Stat(home); err != nil || slices.Contains(homes, home) {
			all = append(all, fmt.Sprintf("process %.300s", p))
		}
	}
	return all
}

// folders are those whose labels name the job.
func folders(t *testing.T, folder string, job *runtime.Job) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		if text, err := os.ReadFile(filepath.Join(path, "job.json")); err != nil || strings.Contains(string(text), job.ID) {
			all = append(all, path)
		}
	}
	return all
}

// processes are all processes of this user, each with its command line and its
// environment in one line.
func processes(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "axeww", "-o", "pid=,command=").Output()
	if err != nil {
		t.Fatalf("list processes (ps is in the package procps): %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// exposed is what can be read of a running job: its processes, and the files in
// its folder.
func exposed(t *testing.T, folder string, job *runtime.Job, id string) string {
	t.Helper()
	home := filepath.Join(folder, id)
	var text strings.Builder
	own := 0
	for _, p := range processes(t) {
		if strings.Contains(p, home) {
			own++
			fmt.Fprintln(&text, p)
		}
	}
	if own < 2 {
		t.Errorf("%d processes belong to the job, want the runner and its supervisor at least", own)
	}
	err := filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s: %s\n", path, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), agentToken) {
		t.Error("the agent's own token can be seen in the job")
	}
	return text.String()
}
