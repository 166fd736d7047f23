package status

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/report"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares a text with the content of a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; run with -update if the new text is right:\n%s", path, diff)
	}
}

// fixedDocument returns a Document that sets nearly every field.
func fixedDocument() Document {
	now := time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	return Document{
		Version: Version, Now: now, Healthy: true, MaxJobs: 20,
		NotReady: []reconcile.Unready{
			{Reason: "generation 3 of the configuration is not fully in force yet"},
			{Pool: "prod", Reason: "no poll has succeeded since 2026-11-21T12:30:00Z"},
		},

		Agent: Agent{Version: "v1.2.3", PID: 4711, StartedAt: ago(3*time.Hour + 12*time.Minute),
			Warnings: []string{"no control socket: the agent has no state directory"}},
		Config: Config{
			Path: "/etc/cmwa/pulumi-workflow-agent.yaml", Digest: strings.Repeat("0123456789abcdef", 4), Desired: 3,
			Applied:    2,
			AcceptedAt: ago(20 * time.Second), AppliedAt: ago(time.Hour), Watch: "events",
			Frozen: []string{"/run/secrets/token"}, Restart: []string{"state_directory"},
			Rejection: &Rejection{At: ago(5 * time.Second), Problems: []report.Problem{{
				Severity: "error", File: "/etc/cmwa/pulumi-workflow-agent.yaml", Line: 12, Column: 19,
				Path:    "pools.prod.http_server_port",
				Message: "must be a whole number from 0 to 65535, and so on until the line is full", Hint: "remove it",
			}}},
			Warnings: []report.Problem{{Severity: "warning", File: "agent.yaml", Line: 3, Column: 1,
				Path: "poling_interval", Message: "unknown key", Hint: "did you mean \"polling_interval\"?"}},
		},
		Reload: &Reload{
			At: ago(20 * time.Second), Changes: []Change{
				{"", "log_level", "info", "debug", "live"}, {"", "debug_pod", "", "true", "restart"},
				{"prod", "token", "[secret]", "[secret]", "live"}, {"prod", "polling_interval", "1m", "30s", "live"},
				{"prod", "pull_image", "true", "false", "next job"},
				{"test", "polling_interval", "1m", "30s", "live"},
			},
			Started: []string{"new"}, Drained: []string{"old"}, Replaced: []string{},
		},
		Pools: []Pool{
			{Name: "prod", Key: "prod-1", Phase: "backoff", Until: now.Add(30 * time.Second),
				Reason: "the service asks for it", Problem: "the service rejected the token", Stuck: true,
				ProgressAt: ago(time.Hour), BreakerOpen: true, TokenExpiry: now.Add(time.Hour), Target: "docker",
				Service: "https://api.pulumi.com", MaxJobs: 5,
				Jobs: []Job{
					{Job: "job", Activity: "0b7c9d3e-0000-4000-8000-000000000000", Kind: "insights_scan",
						Phase: "running", Since: ago(90 * time.Second)},
					{Job: "job-2", Deployment: "0c8e361b-0000-4000-8000-000000000000", Kind: "deployment",
						Organization: "acme", Project: "web", Stack: "prod", Operation: "update", Version: "12",
						URL:   "https://app.pulumi.com/acme/web/prod/deployments/12",
						Phase: "running", Since: ago(250 * time.Second)},
				}},
			{Name: "a-pool-with-a-name-that-is-much-too-long-for-a-table", Key: "a-2", Phase: PhaseMissing,
				Problem: "the Docker engine cannot be reached at unix:///var/run/docker.sock: permission denied: " +
					"put the user into the group",
				Target: "kubernetes", Service: "https://pulumi.example.com/with/a/path/that/is/long", MaxJobs: 100},
		},
	}
}

func TestWriteText(t *testing.T) {
	var out bytes.Buffer
	if err := WriteText(&out, fixedDocument(), false); err != nil {
		t.Fatal(err)
	}
	golden(t, "document.txt", out.String())
}

func TestWriteTextColours(t *testing.T) {
	var out bytes.Buffer
	if err := WriteText(&out, fixedDocument(), true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[31mREJECTED\x1b[0m the present", "  \x1b[31mproblem:\x1b[0m the service",
		"\x1b[33mrestart needed:\x1b[0m state_directory"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	plain := regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(out.String(), "")
	golden(t, "document.txt", plain)
}

// TestWriteTextURL checks that a long URL can be copied, and that Redraw still fits the terminal.
func TestWriteTextURL(t *testing.T) {
	d := fixedDocument()
	url := "https://pulumi.example.com/" + strings.Repeat("acme/", 20) + "deployments/12"
	d.Pools[0].Jobs[1].URL = url
	var text, screen bytes.Buffer
	if err := errors.Join(WriteText(&text, d, false), Redraw(&screen, d, nil, 0, false)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "\n    "+url+"\n") {
		t.Errorf("the URL is not in one line:\n%s", text.String())
	}
	if first := "\n    " + url[:columns-4] + "\x1b[K\n" + url[columns-4:]; !strings.Contains(screen.String(), first) {
		t.Errorf("the URL is not in two lines of the terminal:\n%s", screen.String())
	}
}

func TestLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`([a-z]{1,100} ?)*`))
		draw := func(name string) string { return text.Draw(t, name) }
		d := fixedDocument()
		d.Agent.Version, d.Problem, d.Config.Path, d.Config.Digest, d.Config.Watch = draw("version"), draw("problem"),
			draw("path"), draw("digest"), draw("watch")
		d.Config.Frozen = []string{draw("frozen")}
		d.Config.Warnings[0].Message, d.Config.Warnings[0].Path = draw("warning"), draw("warned of")
		p := &d.Config.Rejection.Problems[0]
		p.File, p.Path, p.Message, p.Hint, d.Config.Rejection.Reason = draw("file"), draw("key"), draw("message"),
			draw("hint"), draw("reason")
		d.Reload.Changes[0].Key, d.Reload.Changes[0].To, d.Reload.Drained[0] = draw("changed"), draw("value"),
			draw("drained")
		q := &d.Pools[0]
		q.Name, q.Key, q.Phase, q.Reason, q.Problem, q.Target, q.Service = draw("pool"), draw("pool key"),
			draw("phase"), draw("why"), draw("trouble"), draw("target"), draw("service")
		q.Jobs[0].Activity, q.Jobs[0].Kind, q.Jobs[0].Phase = draw("activity"), draw("job kind"), draw("job phase")
		j := &q.Jobs[1]
		j.Deployment, j.Organization, j.Stack, j.Operation, j.Version, j.URL = draw("deployment"), draw("organization"),
			draw("stack"), draw("operation"), draw("operation's number"), draw("page")
		q.MaxJobs = rapid.Int().Draw(t, "max jobs")
		for _, format := range []times{relativeTo(d.Now), absoluteTimes()} {
			for _, l := range breakLines(lines(d, format)) {
				if len([]rune(l.text)) > columns || strings.ContainsFunc(l.text,
					func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("a line is too long, or contains a character that cannot be printed: %q", l.text)
				}
			}
		}
	})
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 12*time.Minute: "3h12m",
		50 * time.Hour: "2d", 1<<63 - 1: "106751d",
	} {
		if got := duration(d); got != want {
			t.Errorf("%s: %s, want %s", fmt.Sprint(d), got, want)
		}
	}
}

func TestTimes(t *testing.T) {
	d := fixedDocument()
	write := func(format times) (all string) {
		for _, l := range lines(d, format) {
			all += l.text + "\n"
		}
		return all
	}
	for text, wants := range map[string][]string{
		write(relativeTo(d.Now)): {"started 3h12m ago", "applying generation 3 for 20s", "present file, 5s ago",
			"reload   20s ago", "resumes in 30s", "0c8e361b…  running for 4m10s"},
		write(absoluteTimes()): {"started 2026-11-21T10:18:00Z", "applying generation 3 since 2026-11-21T13:29:40Z",
			"resumes 2026-11-21T13:30:30Z", "0c8e361b… running since\n    2026-11-21T13:25:50Z"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
	}
}

func TestRedraw(t *testing.T) {
	redraw := func(lost error, height int) string {
		t.Helper()
		var out bytes.Buffer
		if err := Redraw(&out, fixedDocument(), lost, height, false); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if text := redraw(nil, 0); !strings.HasPrefix(text, "\x1b[Hagent ") || !strings.HasSuffix(text, "\x1b[K\n\x1b[J") ||
		strings.Count(text, "\x1b[K\n") != strings.Count(text, "\n") {
		t.Errorf("the text is %q, want all lines between the control sequences", text)
	}
	lost := redraw(errors.New("no response"), 0)
	if !strings.HasPrefix(lost, "\x1b[Hlost     no response\x1b[K\nagent ") {
		t.Errorf("after a lost connection the text is %q", lost)
	}
	if text := redraw(nil, 5); strings.Count(text, "\n") != 4 ||
		!strings.Contains(text, "\n... and 34 more lines\x1b[K\n") {
		t.Errorf("on a terminal with 5 lines the text is %q", text)
	}
}
