package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pulumiProgram is a Pulumi program with two resources of a test provider. One of its
// outputs is a secret.
const pulumiProgram = `name: tests
runtime: yaml
resources:
  file:
    type: cmwatest:File
    properties: { path: %PLACE%/written-by-pulumi, content: "for %{GREETED}" }
  secret:
    type: cmwatest:Secret
    properties: { prefix: never-to-be-shown- }
outputs:
  size: ${file.size}
  secret: ${secret.value}
`

// commitProgram commits pulumiProgram to a git repository, which it creates if it does not exist. The program
// is in a directory of the repository, and writes its file to the directory state.
func commitProgram(t *testing.T, repository, directory, state, greeted string) {
	t.Helper()
	text := strings.NewReplacer("%PLACE%", state, "%{GREETED}", greeted).Replace(pulumiProgram)
	noError(t, os.MkdirAll(filepath.Join(repository, directory), 0o755))
	noError(t, os.WriteFile(filepath.Join(repository, directory, "Pulumi.yaml"), []byte(text), 0o644))
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"}, {"add", "."},
		{"commit", "--quiet", "--message", "For " + greeted},
	} {
		cmd := exec.Command("git", append([]string{
			"-C", repository, "-c", "user.name=test", "-c", "user.email=test@example.com",
		}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
}

// TestRunPulumiUp deploys a program from a git repository with the real pulumi, changes
// it, deploys it again, and destroys it.
func TestRunPulumiUp(t *testing.T) {
	t.Parallel()
	atLocalTargets(t, func(t *testing.T, w *world) {
		source, state := filepath.Join(w.directory, "source"), filepath.Join(w.directory, "state")
		noError(t, os.Mkdir(state, 0o755))
		commitProgram(t, source, "infra", state, "the world")
		home := readHome(t)
		if w.target == "docker" {
			w.agent(`docker: {volumes: ["` + source + ":" + source + `:ro", "` + state + ":" + state + `"]}`)
		} else {
			w.agent()
		}
		deploy := func(operation, want string) {
			t.Helper()
			w.queue("dev", order{
				Image: "cmwa/job:local",
				Env: map[string]any{
					"PULUMI_BACKEND_URL":       "file://" + state,
					"PULUMI_CONFIG_PASSPHRASE": map[string]string{"secret": "the passphrase of this test"},
				},
				Request: map[string]any{
					"operation": operation,
					"sourceContext": map[string]any{"git": map[string]any{
						"repoUrl": "file://" + source, "branch": "refs/heads/main", "repoDir": "infra",
					}},
				},
			})
			if status := w.await("dev", "succeeded", "failed"); status != "succeeded" {
				t.Fatalf("%s has %s:\n%s", operation, status, w.log("dev"))
			}
			w.wantLog("dev", want)
			if log := w.log("dev"); regexp.MustCompile(`never-to-be-shown-[0-9a-f]{6}`).MatchString(log) {
				t.Errorf("the log shows the secret output:\n%s", log)
			}
		}
		written := filepath.Join(state, "written-by-pulumi")
		deploy("preview", "+ 3 to create")
		deploy("update", "+ 3 created")
		wantContent(t, written, "for the world")
		commitProgram(t, source, "infra", state, "everyone")
		deploy("update", "~ 1 updated")
		wantContent(t, written, "for everyone")
		deploy("refresh", "")
		deploy("destroy", "")
		if _, err := os.Stat(written); !os.IsNotExist(err) {
			t.Errorf("the file still exists after pulumi destroy: %v", err)
		}
		if now := readHome(t); now != home {
			t.Errorf("the job has written to this user's own ~/.pulumi: it was\n%s\nand is\n%s", home, now)
		}
	})
}

// readHome returns the modification times of this user's ~/.pulumi, and of the file
// credentials.json and the directory workspaces in it. They would change if a job used the
// directory.
func readHome(t *testing.T) string {
	t.Helper()
	user, err := user.Current()
	noError(t, err)
	var b strings.Builder
	for _, name := range []string{"", "credentials.json", "workspaces"} {
		info, err := os.Stat(filepath.Join(user.HomeDir, ".pulumi", name))
		if err != nil {
			fmt.Fprintf(&b, "%s: not there\n", name)
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", name, info.ModTime())
	}
	return b.String()
}
