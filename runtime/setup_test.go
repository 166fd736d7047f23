package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func newSetup(t *testing.T) (*runtime.Setup, *runtimetest.Cloud) {
	cloud := runtimetest.NewCloud()
	cloud.Queue("a")
	claim, err := cloud.Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return runtime.NewSetup(claim.Job, cloud, runtime.Handoff{Version: runtime.HandoffVersion,
		Token: claim.Job.Token.Reveal(), Redact: []string{"pass phrase"}}), cloud
}

func TestFlush(t *testing.T) {
	t.Run("lines are sent in order and the handoff continues them", func(t *testing.T) {
		setup, cloud := newSetup(t)
		setup.Log("one")
		setup.Log("two\nthree\n")
		if err := setup.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		setup.Log("four")
		text, err := setup.Handoff(t.Context(), "/root")
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if h.SetupLines != 4 || h.Root != "/root" {
			t.Errorf("the handoff has %d lines and the root %q, want 4 and /root", h.SetupLines, h.Root)
		}
		if status, log := cloud.Step("a", 0); status != runtime.Running || log != "one\ntwo\nthree\nfour\n" {
			t.Errorf("the service has the status %s and the log %q", status, log)
		}
	})

	t.Run("lines that were not sent are sent later", func(t *testing.T) {
		setup, cloud := newSetup(t)
		cloud.Fail(runtimetest.Report, 1, errors.New("connection reset"))
		setup.Log("one")
		if err := setup.Flush(t.Context()); err == nil {
			t.Fatal("Flush returned no error for a failed report")
		}
		if err := setup.Fail(t.Context(), errors.New("no such image")); err != nil {
			t.Fatal(err)
		}
		if status, log := cloud.Step("a", 0); status != runtime.Failed || log != "one\nError: no such image\n" {
			t.Errorf("the service has the status %s and the log %q", status, log)
		}
	})

	t.Run("the log continues at the offset that the service reports", func(t *testing.T) {
		setup, cloud := newSetup(t)
		wrong := fmt.Errorf("%w: %w", runtime.ErrLogsDropped, &runtime.OffsetError{Next: 9})
		cloud.Fail(runtimetest.Report, 1, wrong)
		setup.Log("one")
		text, err := setup.Handoff(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		handoff, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		reports := cloud.Reports("a")
		if last := reports[len(reports)-1]; last.Offset != 9 || handoff.SetupLines != 10 {
			t.Errorf("the last report is %+v, and the runner continues at line %d; want 9 and 10",
				last, handoff.SetupLines)
		}

		// A service that rejects every offset does not cause an endless loop.
		setup, cloud = newSetup(t)
		cloud.Fail(runtimetest.Report, 100, wrong)
		setup.Log("one")
		if _, err := setup.Handoff(t.Context(), "/"); err != nil {
			t.Errorf("a rejected log fails the setup: %v", err)
		}
	})

	t.Run("dropped lines never fail a setup", func(t *testing.T) {
		setup, cloud := newSetup(t)
		cloud.Fail(runtimetest.Report, 1, fmt.Errorf("%w: 413", runtime.ErrLogsDropped))
		setup.Log("one")
		if _, err := setup.Handoff(t.Context(), "/"); err != nil {
			t.Errorf("a rejected log fails the setup: %v", err)
		}
	})
}

// TestFlushHandoff adds lines after a handoff that no runner has read yet. A later handoff has them,
// and the agent sends them in the report that the runner would send.
func TestFlushHandoff(t *testing.T) {
	setup, cloud := newSetup(t)
	handoff := func() *runtime.Handoff {
		t.Helper()
		text, err := setup.Handoff(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	want := func(h *runtime.Handoff, lines, pending, resend int, want string) {
		t.Helper()
		if h.SetupLines != lines || len(h.Pending) != pending || h.Resend != resend {
			t.Errorf("the runner continues at line %d with %d lines, %d of them in one report; want %d, %d, %d",
				h.SetupLines, len(h.Pending), h.Resend, lines, pending, resend)
		}
		if _, log := cloud.Step("a", 0); log != want {
			t.Errorf("the service has the log %q, want %q", log, want)
		}
	}
	setup.Log("one")
	want(handoff(), 1, 0, 0, "one\n")
	setup.Log("two")
	setup.Log("three")
	want(handoff(), 1, 2, 2, "one\n")
	setup.Log("four") // not in the handoff
	if err := setup.FlushHandoff(t.Context()); err != nil {
		t.Error(err)
	}
	want(handoff(), 3, 1, 1, "one\ntwo\nthree\n")
	cloud.Fail(runtimetest.Report, 1, errors.New("connection reset"))
	if err := setup.FlushHandoff(t.Context()); err == nil {
		t.Error("FlushHandoff returned no error for a failed report")
	}
	want(handoff(), 3, 1, 1, "one\ntwo\nthree\n")
	if err := setup.Fail(t.Context(), errors.New("no such image")); err != nil {
		t.Fatal(err)
	}
	if status, log := cloud.Step("a", 0); status != runtime.Failed ||
		log != "one\ntwo\nthree\nfour\nError: no such image\n" {
		t.Errorf("the service has the status %s and the log %q", status, log)
	}
}

func TestSetupLog(t *testing.T) {
	setup, cloud := newSetup(t)
	setup.Log("pull from https://user:pass phrase@example with token-of-a: %s\xff", strings.Repeat("é", 9000))
	if err := setup.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, log := cloud.Step("a", 0)
	if strings.Contains(log, "pass phrase") || strings.Contains(log, "token-of-a") {
		t.Errorf("the log shows a secret: %.100q", log)
	}
	if len(log) > 4200 {
		t.Errorf("a line of %d bytes was sent", len(log))
	}
}

func FuzzReadHandoff(f *testing.F) {
	good, err := json.Marshal(runtime.Handoff{Version: runtime.HandoffVersion, Service: "http://service", JobID: "a",
		Token: "tok-123456789"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(""))
	f.Add([]byte(`{"version":99,"token":"tok-123456789"}`))
	f.Add([]byte(`{"version":"x","token":"tok-123456789"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if (h == nil) == (err == nil) {
			t.Fatalf("handoff %v and error %v", h, err)
		}
		if err != nil && strings.Contains(err.Error(), "tok-123456789") {
			t.Fatalf("the error contains the input: %v", err)
		}
	})
}

func TestHandoff(t *testing.T) {
	t.Run("format does not print the tokens", func(t *testing.T) {
		h := runtime.Handoff{JobID: "job-1", Token: "tok-123456789", OIDC: "jwt-123456789",
			Forward: map[string]string{"KEY": "val-123456789"}}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			for _, value := range []any{h, &h, []any{h}} {
				if got := fmt.Sprintf(verb, value); strings.Contains(got, "123456789") ||
					strings.Contains(got, fmt.Sprintf("%x", "123456789")) {
					t.Errorf("Sprintf(%q, %T) shows a token: %s", verb, value, got)
				}
			}
		}
	})

	t.Run("largest definition is neither changed nor made longer", func(t *testing.T) {
		setup, _ := newSetup(t)
		definition := []byte(`{"script": "` + strings.Repeat("<", 8<<20) + `"}`)
		setup.SetHandoff(runtime.Handoff{Version: runtime.HandoffVersion, Definition: definition})
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		text, err := setup.Handoff(t.Context(), "/")
		goruntime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil || !bytes.Equal(h.Definition, definition) || h.Root != "/" {
			t.Errorf("the runner reads a definition of %d bytes (%v), want the same %d bytes", len(h.Definition), err,
				len(definition))
		}
		if size := setup.HandoffSize(); len(text) > 9<<20 || size != len(text) {
			t.Errorf("the handoff has %d bytes and the size %d", len(text), size)
		}
		if needed := after.TotalAlloc - before.TotalAlloc; needed > 16<<20 {
			t.Errorf("the handoff needs %d MiB of heap, want at most 16", needed>>20)
		}
	})

	t.Run("durations and secrets survive JSON", func(t *testing.T) {
		want := runtime.Handoff{Version: runtime.HandoffVersion, Token: secret.New("t").Reveal(), Grace: 2.5,
			Forward: map[string]string{"A": "b"}}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if got.Token != "t" || got.Grace.Duration().Seconds() != 2.5 || got.Forward["A"] != "b" {
			t.Errorf("read %+v, want %+v", got, want)
		}
	})
}

// lossy is a service that loses the responses to some reports. It refuses a report whose lines
// leave a gap after the stored lines, or that repeats stored lines and does not end with the
// last of them.
type lossy struct {
	runtime.Cloud
	answers []bool // whether each of the next reports is answered, in order; all later ones are
	lines   []string
	status  []runtime.Status
	refused []string
}

func (l *lossy) Report(_ context.Context, _ *runtime.Job, report runtime.Report) error {
	answer := true
	if len(l.answers) > 0 {
		answer, l.answers = l.answers[0], l.answers[1:]
	}
	var texts []string
	for _, line := range report.Lines {
		texts = append(texts, line.Text)
	}
	known := len(l.lines) - report.Offset
	switch {
	case report.Offset > len(l.lines), known > 0 && known != len(texts):
		l.refused = append(l.refused, strings.Join(texts, ""))
		return errors.New("400 bad request")
	case known == 0:
		l.lines = append(l.lines, texts...)
	}
	if report.Status != "" {
		l.status = append(l.status, report.Status)
	}
	if !answer {
		return errors.New("connection reset")
	}
	return nil
}

func TestSetup(t *testing.T) {
	t.Run("pending lines begin with those that the service may have", func(t *testing.T) {
		setup, cloud := newSetup(t)
		dropped := fmt.Errorf("%w: connection reset", runtime.ErrLogsDropped)
		setup.Log("one")
		if err := setup.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cloud.Fail(runtimetest.Report, 2, dropped)
		setup.Log("two")
		_ = setup.Flush(t.Context()) // the response is lost
		setup.Log("three")
		text, err := setup.Handoff(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		h, err := runtime.ReadHandoff(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Pending) != 2 || h.Pending[0].Text != "two\n" || h.Pending[1].Text != "three\n" ||
			h.SetupLines != 1 || h.Resend != 1 {
			t.Errorf("got line %d with %+v pending; %d of them may be stored", h.SetupLines, h.Pending,
				h.Resend)
		}
	})
	t.Run("lines of a report whose response was lost are sent again unchanged", func(t *testing.T) {
		for i, end := range []string{"handoff", "failure", "handoff", "failure"} {
			service := &lossy{answers: []bool{i < 2, false, false}}
			setup := runtime.NewSetup(&runtime.Job{ID: "a", Token: secret.New("t")}, service,
				runtime.Handoff{Version: runtime.HandoffVersion})
			setup.Log("one")
			for _, line := range []string{"two", "three", "four"} {
				_ = setup.Flush(t.Context()) // fails if the response is lost
				setup.Log("%s", line)
			}
			want := "one\ntwo\nthree\nfour\n"
			if end == "handoff" {
				if _, err := setup.Handoff(t.Context(), "/"); err != nil {
					t.Errorf("%s: %v", end, err)
				}
			} else {
				want += "Error: no such image\n"
				if err := setup.Fail(t.Context(), errors.New("no such image")); err != nil {
					t.Errorf("%s: %v", end, err)
				}
			}
			if got := strings.Join(service.lines, ""); got != want || len(service.refused) > 0 {
				t.Errorf("%s: the service has %q and refused %q", end, got, service.refused)
			}
		}
	})
}
