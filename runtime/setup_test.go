package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	return runtime.NewSetup(claim.Job, cloud, runtime.Handover{Version: runtime.HandoverVersion, Token: claim.Job.Token.Reveal(), Redact: []string{"pass word"}}), cloud
}

func TestASetUpIsToldInOrderAndHandedOverWhereItStopped(t *testing.T) {
	setup, cloud := newSetup(t)
	setup.Say("one")
	setup.Say("two\nthree\n")
	if err := setup.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	setup.Say("four")
	text, err := setup.Handover(t.Context(), "/root")
	if err != nil {
		t.Fatal(err)
	}
	h, err := runtime.ReadHandover(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if h.SetupLines != 4 || h.Root != "/root" {
		t.Errorf("handed over at line %d with root %q, want 4 and /root", h.SetupLines, h.Root)
	}
	if status, log := cloud.Step("a", 0); status != runtime.Running || log != "one\ntwo\nthree\nfour\n" {
		t.Errorf("the service knows %s, %q", status, log)
	}
}

func TestLinesThatCouldNotBeSentAreSentLater(t *testing.T) {
	setup, cloud := newSetup(t)
	cloud.Fail(runtimetest.Report, 1, errors.New("connection reset"))
	setup.Say("one")
	if err := setup.Flush(t.Context()); err == nil {
		t.Fatal("a failed report was not told to the caller")
	}
	if err := setup.Fail(t.Context(), errors.New("no such image")); err != nil {
		t.Fatal(err)
	}
	if status, log := cloud.Step("a", 0); status != runtime.Failed || log != "one\nError: no such image\n" {
		t.Errorf("the service knows %s, %q", status, log)
	}
}

func TestLogTroubleNeverFailsASetUp(t *testing.T) {
	setup, cloud := newSetup(t)
	cloud.Fail(runtimetest.Report, 1, fmt.Errorf("%w: 413", runtime.ErrUntold))
	setup.Say("one")
	if _, err := setup.Handover(t.Context(), "/"); err != nil {
		t.Errorf("a log that is refused keeps the job from its start: %v", err)
	}
}

func TestASetUpShowsNoSecretAndNoEndlessLine(t *testing.T) {
	setup, cloud := newSetup(t)
	setup.Say("pull from https://user:pass word@example with token-of-a: %s\xff", strings.Repeat("é", 9000))
	if err := setup.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, log := cloud.Step("a", 0)
	if strings.Contains(log, "pass word") || strings.Contains(log, "token-of-a") {
		t.Errorf("the log shows a secret: %.100q", log)
	}
	if len(log) > 4200 {
		t.Errorf("a line of %d bytes was told", len(log))
	}
}

func FuzzReadHandover(f *testing.F) {
	good, err := json.Marshal(runtime.Handover{Version: runtime.HandoverVersion, Service: "http://service", JobID: "a", Token: "tok-123456789"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(""))
	f.Add([]byte(`{"version":99,"token":"tok-123456789"}`))
	f.Add([]byte(`{"version":"x","token":"tok-123456789"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := runtime.ReadHandover(bytes.NewReader(text))
		if (h == nil) == (err == nil) {
			t.Fatalf("handover %v and error %v", h, err)
		}
		if err != nil && strings.Contains(err.Error(), "tok-123456789") {
			t.Fatalf("the error shows what was read: %v", err)
		}
	})
}

func TestAHandoverDoesNotPrintItsTokens(t *testing.T) {
	h := runtime.Handover{JobID: "job-1", Token: "tok-123456789", OIDC: "jwt-123456789", Forward: map[string]string{"KEY": "val-123456789"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{h, &h, []any{h}} {
			if got := fmt.Sprintf(verb, value); strings.Contains(got, "123456789") || strings.Contains(got, fmt.Sprintf("%x", "123456789")) {
				t.Errorf("Sprintf(%q, %T) shows a token: %s", verb, value, got)
			}
		}
	}
}

func TestDurationsAndSecretsOfAHandoverSurviveTheWay(t *testing.T) {
	want := runtime.Handover{Version: runtime.HandoverVersion, Token: secret.New("t").Reveal(), Grace: 2.5, Forward: map[string]string{"A": "b"}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := runtime.ReadHandover(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got.Token != "t" || got.Grace.Duration().Seconds() != 2.5 || got.Forward["A"] != "b" {
		t.Errorf("read %+v, want %+v", got, want)
	}
}
