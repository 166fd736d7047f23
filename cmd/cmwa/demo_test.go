package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// TestDemo runs the program of make demo with each target, one after the other, because the
// program builds into bin. It checks that the demo succeeds, shows what the user's pulumi prints,
// and leaves only caches.
func TestDemo(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"docker", "process"} {
		t.Run(target, func(t *testing.T) { runDemo(t, target) })
	}
	t.Run("what KEEP=1 prints", tryDemo)
	t.Run("kubernetes", func(t *testing.T) {
		kubetest.Admin(t)
		out := runDemo(t, "kubernetes")
		namespace := regexp.MustCompile(`namespace (\S+)`).FindStringSubmatch(out)
		if namespace == nil {
			t.Fatalf("the demo does not name its namespace:\n%s", out)
		}
		left := must(t, kubectlVariable, "get", "namespace", namespace[1], "--ignore-not-found", "--output", "name")
		if left != "" {
			t.Errorf("the demo leaves %s", left)
		}
	})
}

// runDemo runs the demo with a deploy_target, and returns the output of the demo.
func runDemo(t *testing.T, target string) string {
	t.Helper()
	directory := t.TempDir()
	volumes := func() []string {
		out, err := exec.Command("docker", "volume", "ls", "--quiet", "--filter", "name=cmwa-demo").CombinedOutput()
		if err != nil {
			t.Fatalf("docker volume ls: %v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
	before := volumes()
	cmd := exec.Command("../../examples/demo/run")
	cmd.Env = append(os.Environ(), "TARGET="+target, "TMPDIR="+directory,
		"PULUMI_ACCESS_TOKEN=of-an-account", "PULUMI_BACKEND_URL=https://account.invalid") // the demo uses neither
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the demo fails: %v\n%s", err, out)
	}
	for _, want := range []string{
		"Logged in to http://", "Created stack 'local'", "Stack demo-local created", "Current stack outputs",
		"Hello, cmwa!",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(directory, "cmwa*")); len(left) > 0 {
		t.Errorf("the demo leaves %v", left)
	}
	for _, volume := range volumes() {
		if !slices.Contains(before, volume) {
			t.Errorf("the demo leaves the volume %s", volume)
		}
	}
	return string(out)
}

// tryDemo opens the web page that the demo names, and runs the commands that it prints for a user, in their order.
func tryDemo(t *testing.T) {
	cmd := exec.Command("../../examples/demo/run")
	cmd.Env = append(os.Environ(), "TARGET=process", "KEEP=1", "TMPDIR="+t.TempDir())
	output, err := cmd.StdoutPipe()
	noError(t, err)
	noError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, output)
		_ = cmd.Wait()
	}()
	var shown strings.Builder
	lines := bufio.NewScanner(output)
	for !strings.HasSuffix(lines.Text(), "/deploy destroy") {
		if !lines.Scan() {
			t.Fatalf("the demo has ended:\n%s", shown.String())
		}
		shown.WriteString(lines.Text() + "\n")
	}

	page := regexp.MustCompile(`The web page is (\S+)`).FindStringSubmatch(shown.String())
	if page == nil {
		t.Fatalf("the demo names no web page:\n%s", shown.String())
	}
	response, err := http.Get(page[1])
	noError(t, err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the web page %s returns %s", page[1], response.Status)
	}

	var export, printed string
	for _, line := range regexp.MustCompile(`(?m)^      (.*)$`).FindAllStringSubmatch(shown.String(), -1) {
		command := line[1]
		switch {
		case strings.HasPrefix(command, "export "):
			export = command + "\n"
			continue
		case strings.Contains(command, "tail "), strings.Contains(command, " --watch"): // run until Ctrl-C
			command = "timeout --foreground 10 " + strings.TrimSuffix(command, "&") + "|| [ $? = 124 ]"
		case strings.Contains(command, "plan "):
			command += " || [ $? = 2 ]" // there are changes
		}
		out, err := exec.Command("bash", "-c", export+command).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line[1], err, out)
		}
		printed += string(out)
	}
	for _, want := range []string{
		"max_concurrent_workflows 1 -> 4", "polling_interval +1s -> 5s", "Hello, you!", "Stack demo-local deleted",
	} {
		if !regexp.MustCompile(want).MatchString(printed) {
			t.Errorf("the commands do not print %q:\n%s", want, printed)
		}
	}
}
