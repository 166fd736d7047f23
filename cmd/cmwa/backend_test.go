package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// remote runs a command of the user's pulumi CLI with the service as its backend, and returns its output.
func (w *world) remote(directory string, args ...string) (string, error) {
	w.t.Helper()
	home := filepath.Join(w.directory, "user-home")
	cmd := exec.CommandContext(w.t.Context(), "pulumi", append(args, "--non-interactive", "--color=never")...)
	cmd.Dir = directory
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "PULUMI_HOME=" + filepath.Join(home, ".pulumi"),
		"PULUMI_BACKEND_URL=" + w.url, "PULUMI_ACCESS_TOKEN=" + w.user,
		"PULUMI_SKIP_UPDATE_CHECK=true", "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mustRemote is like remote for a command that must succeed.
func (w *world) mustRemote(directory string, args ...string) string {
	w.t.Helper()
	out, err := w.remote(directory, args...)
	if err != nil {
		w.t.Fatalf("pulumi %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TestRunStateInService deploys with the service as the backend of the user and of the jobs: the user's CLI starts the
// deployments and shows their events, and the jobs need no backend and no token of their own.
func TestRunStateInService(t *testing.T) {
	t.Parallel()
	atLocalTargets(t, func(t *testing.T, w *world) {
		source, state := filepath.Join(w.directory, "source"), filepath.Join(w.directory, "state")
		noError(t, os.Mkdir(state, 0o755))
		commitProgram(t, source, "infra", state, "the world")
		if w.target == "docker" {
			w.agent(`docker: {volumes: ["` + source + ":" + source + `:ro", "` + state + ":" + state + `"]}`)
		} else {
			w.agent()
		}
		program := filepath.Join(source, "infra")
		run := func(operation string, more ...string) (string, error) {
			return w.remote(program, append([]string{
				"deployment", "run", operation, "file://" + source, "--git-branch", "main", "--git-repo-dir", "infra",
				"--executor-image", "cmwa/job:local", "--stack", "organization/tests/dev", "--agent-pool-id", w.poolID,
				"--suppress-stream-logs=false",
			}, more...)...)
		}
		w.mustRemote(program, "stack", "init", "organization/tests/dev")
		out, err := run("preview")
		if err != nil || !strings.Contains(out, "3 to create") {
			t.Fatalf("the preview: %v\n%s", err, out)
		}
		if out, err = run("update"); err != nil || !strings.Contains(out, "3 created") {
			t.Fatalf("the update: %v\n%s", err, out)
		}
		if regexp.MustCompile(`never-to-be-shown-[0-9a-f]{6}`).MatchString(out) {
			t.Errorf("the events show the secret output:\n%s", out)
		}
		wantContent(t, filepath.Join(state, "written-by-pulumi"), "for the world")
		value := w.mustRemote(program, "stack", "output", "secret", "--show-secrets", "--stack",
			"organization/tests/dev")
		if !strings.HasPrefix(value, "never-to-be-shown-") {
			t.Errorf("the output of the stack is %q", value)
		}

		// The user goes on with the same state.
		w.mustRemote(program, "preview", "--expect-no-changes", "--stack", "organization/tests/dev")
		var history []struct{ Kind, Result string }
		text := w.mustRemote(program, "stack", "history", "--json", "--stack", "organization/tests/dev")
		if err := json.Unmarshal([]byte(text), &history); err != nil || len(history) != 1 ||
			history[0].Result != "succeeded" {
			t.Errorf("the history is %v: %s", err, text)
		}
		if out, err := run("destroy"); err != nil || !strings.Contains(out, "3 deleted") {
			t.Errorf("the destroy: %v\n%s", err, out)
		}
		w.mustRemote(program, "stack", "rm", "--yes", "--stack", "organization/tests/dev")
	})
}

// TestRunCancelFreesLock cancels the deployment of an update that takes long. The user's next update finds the stack
// unlocked, with the resources that exist.
func TestRunCancelFreesLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	source, state := filepath.Join(w.directory, "source"), filepath.Join(w.directory, "state")
	noError(t, os.Mkdir(state, 0o755))
	commitProgram(t, source, "infra", state, "the world")
	program := filepath.Join(source, "infra")
	text, err := os.ReadFile(filepath.Join(program, "Pulumi.yaml"))
	w.must(err)
	slow := strings.Replace(string(text), "outputs:", "  slow:\n    type: cmwatest:Delay\n"+
		"    properties: {create: 10m}\n    options: {dependsOn: [\"${file}\", \"${secret}\"]}\noutputs:", 1)
	noError(t, os.WriteFile(filepath.Join(program, "Pulumi.yaml"), []byte(slow), 0o644))
	noError(t, exec.Command("git", "-C", source, "-c", "user.name=t", "-c", "user.email=t@example.com",
		"commit", "--quiet", "--all", "--message", "slow").Run())
	w.agent()
	w.mustRemote(program, "stack", "init", "organization/tests/dev")
	w.queue("dev", order{Request: map[string]any{
		"operation": "update",
		"sourceContext": map[string]any{"git": map[string]any{
			"repoUrl": "file://" + source, "branch": "refs/heads/main", "repoDir": "infra",
		}},
	}})
	w.eventually("the update creates the slow resource", func() bool {
		return strings.Contains(w.log("dev"), "cmwatest:index:Delay slow creating")
	})
	w.call(http.MethodPost, w.path("dev")+"/cancel", nil, nil)
	noError(t, os.WriteFile(filepath.Join(program, "Pulumi.yaml"), text, 0o644))
	w.eventually("the stack is unlocked", func() bool {
		_, err := w.remote(program, "up", "--yes", "--skip-preview", "--stack", "organization/tests/dev")
		return err == nil
	})
	wantContent(t, filepath.Join(state, "written-by-pulumi"), "for the world")
}
