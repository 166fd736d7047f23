package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// lease leases one piece of work, and returns its job and its lease.
func (a agent) lease() (job claimed, id, token string) {
	a.p.t.Helper()
	var answer struct {
		claimed
		ID    string `json:"cmwaLeaseID"`
		Token string `json:"cmwaLeaseToken"`
	}
	if got := a.call(a.token, "POST", "/api/background-activities/worker/lease/acquire",
		`{"cmwaKinds":["insights_scan","policy_evaluation"]}`, &answer); got != http.StatusOK {
		a.p.t.Fatalf("acquire a lease: got status %d, want 200", got)
	}
	return answer.claimed, answer.ID, answer.Token
}

func TestActivity(t *testing.T) {
	p := newService(t)
	token, _ := p.run(cli.ExitOK, "pool", "create", "demo")
	a := agent{p, strings.TrimSpace(token)}
	p.env["KEY"] = "hunter2"

	// Complete an activity, while activity create --follow prints its log.
	out, ended := newOutput(), make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"activity", "create", "demo", "--kind", "insights_scan", "--run", "scan",
			"--run", "send", "--name", "nightly", "--env", "A=1", "--secret-env", "KEY", "--image", "img",
			"--retries", "0", "--timeout", "5m", "--retry-delay", "1s", "--follow"}, stdio{p.lookup, out, out})
	}()
	id := regexp.MustCompile(`[0-9a-f-]{36}`).FindString(out.find(t, `insights_scan is queued: [0-9a-f-]{36}`))
	job, _, _ := a.lease()
	env := a.runJob(job, "succeeded")
	if got := <-ended; got != cli.ExitOK || env["A"] != "1" || env["KEY"] != "hunter2" {
		t.Errorf("activity create --follow ended with %d; the job has %v:\n%s", got, env, out)
	}
	const log = "== Setup\nthis is Setup\n== Step 1\nthis is Step 1\n== Step 2\nthis is Step 2\n"
	if !strings.Contains(out.String(), log) || !strings.HasSuffix(out.String(), "== Completed\n") {
		t.Errorf("activity create --follow printed:\n%s", out)
	}
	if got, _ := p.run(cli.ExitOK, "activity", "logs", "demo", id); got != log {
		t.Errorf("the log is:\n%s", got)
	}
	got, _ := p.run(cli.ExitOK, "activity", "status", "demo", id)
	if !strings.HasPrefix(got, "Completed (insights_scan ") ||
		!regexp.MustCompile(`2 +Step 2 +succeeded`).MatchString(got) {
		t.Errorf("the status is:\n%s", got)
	}

	// Fail an activity, and cancel another one.
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(`{"kind":"policy_evaluation","steps":[{"run":"x"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(cli.ExitOK, "activity", "create", "demo", "--file", file)
	_, lease, leaseToken := a.lease()
	a.call(leaseToken, "POST", "/api/background-activities/worker/lease/"+lease+"/complete",
		`{"result":"failed","reason":"no access"}`, nil)
	list, _ := p.run(cli.ExitOK, "activity", "list", "demo")
	id = regexp.MustCompile(`(?m)^([0-9a-f-]{36})  policy_evaluation  Failed `).FindStringSubmatch(list)[1]
	_, stderr := p.run(cli.ExitFailure, "activity", "logs", "demo", id, "--follow")
	if !strings.Contains(stderr, "Failed") {
		t.Errorf("activity logs --follow of failed work printed %s", stderr)
	}
	made, _ := p.run(cli.ExitOK, "activity", "create", "demo", "--file", file)
	id = regexp.MustCompile(`[0-9a-f-]{36}`).FindString(made)
	p.run(cli.ExitOK, "activity", "cancel", "demo", id)
	_, stderr = p.run(cli.ExitFailure, "activity", "cancel", "demo", id)
	if !strings.Contains(stderr, "has already ended: Canceled") {
		t.Errorf("the second activity cancel printed %s", stderr)
	}

	// Make mistakes.
	create := []string{"activity", "create", "demo", "--kind", "insights_scan", "--run", "x"}
	for want, args := range map[string][]string{
		"needs --kind and --run":            {"activity", "create", "demo"},
		"--kind must be one of":             {"activity", "create", "demo", "--kind", "scan"},
		"--retries must be a number":        append(create, "--retries", "x"),
		"--timeout must be a duration":      append(create, "--timeout", "x"),
		"--retry-delay must be a duration":  append(create, "--retry-delay", "x"),
		"is not a JSON object":              {"activity", "create", "demo", "--file", "/dev/null"},
		"--lease-duration must be greater":  {"serve", "--data", t.TempDir(), "--lease-duration", "0s"},
		"--lease-duration must be a durati": {"serve", "--data", t.TempDir(), "--lease-duration", "x"},
	} {
		if _, stderr := p.run(cli.ExitUsage, args...); !strings.Contains(stderr, want) {
			t.Errorf("%v: got %q, want %q", args, stderr, want)
		}
	}
	for want, args := range map[string][]string{
		"--retries must be a number from 0 to": append(create, "--retries", "1000"),
		"there is no agent pool":               {"activity", "list", "none"},
		"the pool has no activity":             {"activity", "status", "demo", "none"},
	} {
		if _, stderr := p.run(cli.ExitFailure, args...); !strings.Contains(stderr, want) {
			t.Errorf("%v: got %q, want %q", args, stderr, want)
		}
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("the secret was printed")
	}
}
