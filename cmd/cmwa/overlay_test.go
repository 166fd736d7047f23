package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile/status"
)

// TestReloadOverlaidKeys edits keys that variables override. The log of the reload, cmwa
// vet, cmwa plan and cmwa status must name these keys.
func TestReloadOverlaidKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	p := w.pools(2)
	port := agentPort(freePort(t))
	environ := []string{"PULUMI_AGENT_POLLING_INTERVAL=100ms", "PULUMI_AGENT_TOKEN=" + p[0].token}
	content := func(interval, token string) string {
		return w.content("polling_interval: "+interval, "token: "+token, port.setting())
	}
	const hidden = "polling_interval: is set by PULUMI_AGENT_POLLING_INTERVAL; the file's %s has no effect"
	warnings := func(agent *program, text string) int {
		return len(regexp.MustCompile(`(?m)^.* WRN .*`+regexp.QuoteMeta(text)+`.*$`).FindAllString(agent.output(), -1))
	}

	// At the start, the log does not name a key whose value equals that of its variable.
	agent := w.followText(environ, content("100ms", p[0].token))
	if n := warnings(agent, "has no effect"); n > 0 {
		t.Errorf("%d keys are reported as without effect:\n%s", n, agent.output())
	}

	// The log names each edit of an overridden key once. It does not show the value of a
	// secret.
	for i, text := range []string{
		content("9s", p[0].token), content("9s", p[0].token) + "# a comment\n", content("8s", p[0].token),
		content("8s", p[1].token), content("8s", p[1].token+"x"),
	} {
		w.replace(w.file(), text)
		agent.waitForMatch(regexp.MustCompile(fmt.Sprint("configuration reloaded.*generation=", i+2)))
	}
	for text, want := range map[string]int{
		fmt.Sprintf(hidden, "9s"): 1, fmt.Sprintf(hidden, "8s"): 1,
		"token: is set by PULUMI_AGENT_TOKEN; the file's value has no effect": 2,
	} {
		if n := warnings(agent, text); n != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", text, n, want, agent.output())
		}
	}
	if strings.Contains(agent.output(), p[1].token) {
		t.Error("the log shows a token")
	}

	// vet, plan and status run with the agent's variables, and name the same keys.
	text := fmt.Sprintf(hidden, "8s")
	secret := "token: is set by PULUMI_AGENT_TOKEN; the file's value has no effect"
	printed := w.onceWith(environ, "status", "--config", w.file())
	if flat := strings.Join(strings.Fields(printed.stdout), " "); !strings.Contains(flat, text) ||
		!strings.Contains(flat, secret) {
		t.Errorf("status: %+v", printed)
	}
	var document status.Document
	decode(t, []byte(w.onceWith(environ, "status", "--json", "--config", w.file()).stdout), &document)
	if len(document.Config.Warnings) != 2 {
		t.Errorf("status --json: %+v", document.Config.Warnings)
	}
	vet := w.onceWith(environ, "vet", w.file())
	if vet.code != cli.ExitOK || !strings.Contains(vet.stdout, text) || !strings.Contains(vet.stdout, secret) {
		t.Errorf("vet: %+v", vet)
	}
	edited := fileOf(t, "edited.yaml", content("7s", p[1].token))
	for name, args := range map[string][]string{
		"plan": {"plan", w.file(), edited}, "plan --live": {"plan", "--live", "--config", w.file(), edited},
	} {
		result := w.onceWith(environ, args...)
		if result.code != cli.ExitOK || result.stdout != "no change\n" ||
			!strings.Contains(result.stderr, fmt.Sprintf(hidden, "7s")) {
			t.Errorf("%s: %+v", name, result)
		}
	}
	if result := w.once("vet", w.file()); result.code != cli.ExitOK ||
		strings.Contains(result.stdout, "is set by") {
		t.Errorf("vet without the variables: %+v", result)
	}
}
