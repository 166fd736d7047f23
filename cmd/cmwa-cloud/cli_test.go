package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests of this file run the real pulumi CLI with this service as its backend.

// pulumiCLI is a user's pulumi CLI: an own home directory, the program of a project, and a login.
type pulumiCLI struct {
	t       testing.TB
	service *testService
	url     string
	home    string
	project string // directory
	env     []string
}

// modes are the protocols by which a CLI writes the state of a stack.
var modes = map[string]string{"journal": "PULUMI_DISABLE_JOURNALING=false", "plain": "PULUMI_DISABLE_JOURNALING=true"}

// newCLI returns a CLI that uses a service by one of its URLs.
func newCLI(t testing.TB, service *testService, url string, env ...string) *pulumiCLI {
	t.Helper()
	if _, err := exec.LookPath("pulumi"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("pulumi is not on the PATH: run eval \"$(testdata/toolchain/environment)\"")
		}
		t.Skip("pulumi is not on the PATH")
	}
	c := &pulumiCLI{t: t, service: service, url: url, home: t.TempDir(), project: t.TempDir(), env: env}
	return c
}

// file is where the program writes a file.
func (c *pulumiCLI) file() string { return filepath.Join(c.project, "written") }

// program writes the program of the project: a secret, a file with content, and more resources in YAML. The file
// depends on the secret, because pulumi registers independent resources in any order.
func (c *pulumiCLI) program(content string, more ...string) {
	c.t.Helper()
	text := fmt.Sprintf(`name: shop
runtime: yaml
config:
  greeting: {type: string, default: hello}
  password: {type: string, secret: true}
resources:
  secret: {type: cmwatest:Secret, properties: {prefix: %q}}
  file: {type: cmwatest:File, properties: {path: %q, content: %q}, options: {dependsOn: ["${secret}"]}}
%s
outputs:
  value: ${secret.value}
  size: ${file.size}
  greeting: ${greeting}
  password: ${password}
`, "prefix-", c.file(), content, strings.Join(more, "\n"))
	if err := os.WriteFile(filepath.Join(c.project, "Pulumi.yaml"), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// template returns a directory from which pulumi new makes the project.
func (c *pulumiCLI) template() string {
	c.t.Helper()
	directory := c.t.TempDir()
	text := "name: ${PROJECT}\nruntime: yaml\ntemplate: {description: For tests.}\n"
	if err := os.WriteFile(filepath.Join(directory, "Pulumi.yaml"), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return directory
}

// command returns a command of pulumi that has not started.
func (c *pulumiCLI) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), "pulumi", append(args, "--non-interactive")...)
	cmd.Dir = c.project
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.home, "PULUMI_HOME=" + filepath.Join(c.home, "pulumi"),
		"PULUMI_BACKEND_URL=" + c.url, "PULUMI_ACCESS_TOKEN=" + c.service.env["PULUMI_ACCESS_TOKEN"],
		"PULUMI_SKIP_UPDATE_CHECK=true", "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true", "NO_COLOR=1",
	}, c.env...)
	return cmd
}

// pulumi runs a command that must succeed, and returns its output.
func (c *pulumiCLI) pulumi(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("pulumi %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command, and returns its output without the warnings on standard error if it succeeds.
func (c *pulumiCLI) try(args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := c.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// init makes a stack with the configuration that the program needs.
func (c *pulumiCLI) init(stack string) {
	c.t.Helper()
	c.pulumi("stack", "init", stack)
	c.pulumi("config", "set", "--secret", "password", "hunter2", "--stack", stack)
}

// up updates a stack.
func (c *pulumiCLI) up(stack string) {
	c.t.Helper()
	c.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
}

// output returns an output of the stack, decrypted.
func (c *pulumiCLI) output(stack, name string) string {
	c.t.Helper()
	return strings.TrimSpace(c.pulumi("stack", "output", name, "--show-secrets", "--stack", stack))
}

// resources returns the types of the resources in a stack's state.
func (c *pulumiCLI) resources(stack string) (types []string) {
	c.t.Helper()
	var state struct {
		Deployment struct {
			Resources []struct{ Type string }
		}
	}
	text := c.pulumi("stack", "export", "--stack", stack)
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		c.t.Fatalf("%v: %s", err, text)
	}
	for _, r := range state.Deployment.Resources {
		types = append(types, r.Type)
	}
	return types
}

// TestCLIDay is a day of a user: a new stack, secret configuration, updates, drift, history, a rename, and the end.
func TestCLIDay(t *testing.T) {
	for mode, setting := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			service := newService(t)
			c := newCLI(t, service, service.url, setting)
			c.env = append(c.env, "PULUMI_BACKEND_URL=", // the login chooses the service
				"PULUMI_CONSOLE_DOMAIN="+strings.TrimPrefix(service.url, "http://"))
			c.pulumi("login", service.url)
			if got := c.pulumi("whoami"); strings.TrimSpace(got) != "local" {
				t.Errorf("whoami printed %q", got)
			}
			c.pulumi("new", c.template(), "--yes", "--name", "shop", "--stack", "dev")
			c.program("first")
			c.pulumi("config", "set", "--secret", "password", "hunter2")
			c.pulumi("config", "set", "greeting", "good day")

			c.pulumi("preview", "--stack", "dev")
			if _, err := os.Stat(c.file()); err == nil {
				t.Error("a preview has created a resource")
			}
			page := service.url + "/organization/shop/dev/updates/1"
			if out := c.pulumi("up", "--yes", "--stack", "dev"); !strings.Contains(out, page) {
				t.Errorf("no link to %s in\n%s", page, out)
			}
			value := c.output("dev", "value")
			if !strings.HasPrefix(value, "prefix-") || c.output("dev", "password") != "hunter2" {
				t.Errorf("the outputs are %s and %s", value, c.output("dev", "password"))
			}
			if text := c.pulumi("stack", "export", "--stack", "dev"); strings.Contains(text, value) ||
				strings.Contains(text, "hunter2") {
				t.Error("the state contains a secret in plain text")
			}

			// Change, drift, refresh.
			c.program("second one")
			c.up("dev")
			if c.output("dev", "size") != "10" || c.output("dev", "value") != value {
				t.Errorf("after a change: size %s, value %s", c.output("dev", "size"), c.output("dev", "value"))
			}
			if err := os.WriteFile(c.file(), []byte("drifted"), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := c.try("refresh", "--preview-only", "--expect-no-changes", "--stack", "dev"); err == nil {
				t.Errorf("no drift is seen:\n%s", out)
			}
			c.pulumi("refresh", "--yes", "--skip-preview", "--stack", "dev")
			c.up("dev")

			// A file that exists becomes a resource. The program does not name it, so the next update would delete it.
			found := filepath.Join(c.project, "found")
			if err := os.WriteFile(found, []byte("found"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.pulumi("import", "cmwatest:index:File", "found", found, "--yes", "--protect=false", "--stack", "dev",
				"--generate-code=false")
			c.up("dev")
			if _, err := os.Stat(found); err == nil {
				t.Error("the imported file still exists")
			}

			// History, tags, lists.
			var history []struct {
				Kind            string
				Result          string
				Version         int
				ResourceChanges map[string]int
			}
			text := c.pulumi("stack", "history", "--json", "--stack", "dev")
			if err := json.Unmarshal([]byte(text), &history); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			var kinds []string
			for i, h := range history {
				kinds = append(kinds, h.Kind)
				if h.Result != "succeeded" || h.Version != len(history)-i || len(h.ResourceChanges) == 0 {
					t.Errorf("update %d of the history is %+v", i, h)
				}
			}
			if got := strings.Join(kinds, " "); got != "update update update refresh update update" {
				t.Errorf("the history shows %s", got)
			}
			c.pulumi("stack", "tag", "set", "team", "shop", "--stack", "dev")
			if got := c.pulumi("stack", "ls", "--tag", "team=shop", "--json"); !strings.Contains(got, `"dev"`) ||
				!strings.Contains(got, `"resourceCount": 4`) {
				t.Errorf("stack ls shows %s", got)
			}

			// A rename changes no resource.
			c.pulumi("stack", "rename", "prod", "--stack", "dev")
			if out, err := c.try("preview", "--expect-no-changes", "--stack", "prod"); err != nil {
				t.Errorf("after a rename: %v\n%s", err, out)
			}
			c.up("prod")
			if got := c.output("prod", "value"); got != value {
				t.Errorf("after a rename the secret is %s, want %s", got, value)
			}

			// The end.
			if out, err := c.try("stack", "rm", "--yes", "--stack", "prod"); err == nil ||
				!strings.Contains(out, "still has resources") {
				t.Errorf("a stack with resources is removed: %v\n%s", err, out)
			}
			c.pulumi("destroy", "--yes", "--skip-preview", "--stack", "prod")
			c.pulumi("stack", "rm", "--yes", "--stack", "prod")
			if got := c.pulumi("stack", "ls", "--json"); strings.TrimSpace(got) != "[]" {
				t.Errorf("stacks are left: %s", got)
			}
		})
	}
}

// TestCLIModesAgree compares the states that the two protocols leave. Each resource depends on another one, so their
// order is always the same.
func TestCLIModesAgree(t *testing.T) {
	t.Parallel()
	states := map[string][]string{}
	for mode, setting := range modes {
		service := newService(t)
		c := newCLI(t, service, service.url, setting)
		c.program("x", `  gone: {type: cmwatest:Delay, properties: {trigger: a}, options: {dependsOn: ["${file}"]}}`)
		c.init("dev")
		c.up("dev")
		c.program("y", `  after: {type: cmwatest:Delay, properties: {trigger: b}, options: {dependsOn: ["${file}"]}}`)
		c.up("dev")
		c.pulumi("refresh", "--yes", "--skip-preview", "--stack", "dev")
		states[mode] = c.resources("dev")
	}
	got, want := fmt.Sprint(states["journal"]), fmt.Sprint(states["plain"])
	if got != want || len(states["plain"]) < 5 {
		t.Errorf("the journal leaves %s, and checkpoints leave %s", got, want)
	}
}

// manyResources returns 300 resources.
func manyResources() (all []string) {
	for i := range 300 {
		all = append(all, fmt.Sprintf("  d%d: {type: cmwatest:Delay, properties: {trigger: a}}", i))
	}
	return all
}

// slow is a resource whose creation takes much longer than a test.
const slow = `  slow: {type: cmwatest:Delay, properties: {create: 10m}, options: {dependsOn: ["${file}"]}}`

// startSlow starts an update that creates a slow resource, and returns when the update waits for it.
func (c *pulumiCLI) startSlow(stack string) (cmd *exec.Cmd, log *output) {
	c.t.Helper()
	c.program("x", slow)
	cmd, log = c.command("up", "--yes", "--skip-preview", "--stack", stack), newOutput()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	log.find(c.t, `cmwatest:[\w:]*Delay slow creating`)
	return cmd, log
}

// TestCLILock starts a second update of a stack, and ends the first one by cancel, by SIGTERM and by SIGKILL.
func TestCLILock(t *testing.T) {
	t.Parallel()
	service := newService(t)
	c := newCLI(t, service, service.url)
	c.program("x")
	c.init("dev")

	t.Run("a second update is refused, and previews are not", func(t *testing.T) {
		first, _ := c.startSlow("dev")
		c.program("y")
		if out, err := c.try("up", "--yes", "--skip-preview", "--stack", "dev"); err == nil ||
			!strings.Contains(out, "[409]") {
			t.Errorf("the second update: %v\n%s", err, out)
		}
		c.pulumi("preview", "--stack", "dev")
		if err := first.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := first.Wait(); err == nil {
			t.Error("the interrupted update succeeded")
		}
		c.up("dev") // the lock is free
	})
	t.Run("SIGTERM frees the lock at once", func(t *testing.T) {
		first, _ := c.startSlow("dev")
		if err := first.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := first.Wait(); err == nil {
			t.Error("the terminated update succeeded")
		}
		c.program("y")
		c.up("dev")
	})
	t.Run("pulumi cancel frees the lock", func(t *testing.T) {
		first, log := c.startSlow("dev")
		c.pulumi("cancel", "--yes", "--stack", "dev")
		c.program("y")
		c.up("dev")
		if err := first.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := first.Wait(); err == nil {
			t.Errorf("the cancelled update succeeded:\n%s", log)
		}
		if got := c.output("dev", "size"); got != "1" {
			t.Errorf("the state is that of the cancelled update: size %s", got)
		}
	})
}

// TestCLIKilled kills a CLI. When its lease has expired, the next update runs.
func TestCLIKilled(t *testing.T) {
	t.Parallel()
	service := newService(t)
	c := newCLI(t, service, service.url)
	c.program("x")
	c.init("dev")
	first, _ := c.startSlow("dev")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	c.program("y")
	if out, err := c.try("up", "--yes", "--skip-preview", "--stack", "dev"); err == nil ||
		!strings.Contains(out, "[409]") {
		t.Errorf("the lock of the killed update is free at once: %v\n%s", err, out)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(service.directory, "cloud.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `UPDATE updates SET expires = 1 WHERE status = 'running'`); err != nil {
		t.Fatal(err) // in place of five minutes
	}
	for limit := time.Now().Add(time.Minute); ; {
		out, err := c.try("up", "--yes", "--skip-preview", "--stack", "dev")
		if err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the lock of the killed update is not free: %v\n%s", err, out)
		}
	}
	text := c.pulumi("stack", "history", "--json", "--stack", "dev")
	if strings.Count(text, `"failed"`) != 1 {
		t.Errorf("the history does not show the killed update: %s", text)
	}
}

// TestCLITwoNames updates a stack by two names of the same service.
func TestCLITwoNames(t *testing.T) {
	t.Parallel()
	service := newService(t)
	one := newCLI(t, service, service.url)
	other := newCLI(t, service, strings.Replace(service.url, "127.0.0.1", "localhost", 1))
	other.project = one.project
	one.program("x")
	one.init("dev")
	one.up("dev")
	value := one.output("dev", "value")
	for i, c := range []*pulumiCLI{other, one, other} {
		c.program(strings.Repeat("x", i+2))
		c.up("dev")
		if got := c.output("dev", "value"); got != value || c.output("dev", "password") != "hunter2" {
			t.Errorf("update %d by %s: the secret is %s, want %s", i, c.url, got, value)
		}
	}
}

// TestCLIExportImport moves a state with secrets into another stack, and back to an earlier version.
func TestCLIExportImport(t *testing.T) {
	t.Parallel()
	service := newService(t)
	c := newCLI(t, service, service.url)
	c.program("x")
	c.init("dev")
	c.up("dev")
	value := c.output("dev", "value")
	c.program("four")
	c.up("dev")

	state := filepath.Join(t.TempDir(), "state.json")
	c.pulumi("stack", "export", "--version", "1", "--stack", "dev", "--file", state)
	c.pulumi("stack", "import", "--stack", "dev", "--file", state)
	if got := c.output("dev", "size"); got != "1" {
		t.Errorf("after the import of version 1 the size is %s", got)
	}
	c.init("copy")
	c.pulumi("stack", "import", "--stack", "copy", "--file", state, "--force")
	if got := c.output("copy", "value"); got != value {
		t.Errorf("the copied secret is %s, want %s", got, value)
	}
	if text := c.pulumi("stack", "history", "--json", "--stack", "dev"); !strings.Contains(text, `"kind": "import"`) {
		t.Errorf("the history does not show the import: %s", text)
	}
}

// TestCLIPoolsAndTokens manages pools and tokens by pulumi api, which reads the service's OpenAPI document.
func TestCLIPoolsAndTokens(t *testing.T) {
	t.Parallel()
	service := newService(t)
	c := newCLI(t, service, service.url)
	c.program("x")
	var made struct {
		ID    string
		Token string `json:"tokenValue"`
	}
	text := c.pulumi("api", "/api/orgs/organization/agent-pools", "--method", "POST",
		"--body", `{"name":"mine","description":"from the CLI"}`)
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" || made.Token == "" {
		t.Fatalf("the pool is %+v, %v: %s", made, err, text)
	}
	if text := c.pulumi("api", "/api/orgs/organization/agent-pools"); !strings.Contains(text, made.ID) {
		t.Errorf("the list of pools is %s", text)
	}
	text = c.pulumi("api", "/api/user/tokens", "--method", "POST", "--body", `{"description":"for CI"}`)
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.Token == "" {
		t.Fatalf("the token is %+v, %v", made, err)
	}
	text = c.pulumi("api", "/api/user/tokens")
	if !strings.Contains(text, "for CI") || strings.Contains(text, made.Token) {
		t.Errorf("the list of tokens is %s", text)
	}
}

// TestCLIManyResources counts the requests of an update of 300 resources by the journal.
func TestCLIManyResources(t *testing.T) {
	t.Parallel()
	service := newService(t)
	c := newCLI(t, service, service.url)
	c.program("x", manyResources()...)
	c.init("dev")
	c.up("dev")
	if got := len(c.resources("dev")); got != 304 {
		t.Errorf("the state has %d resources, want 304", got)
	}
	c.pulumi("destroy", "--yes", "--skip-preview", "--stack", "dev")
	if got := c.resources("dev"); len(got) != 0 {
		t.Errorf("resources are left: %v", got)
	}
}
