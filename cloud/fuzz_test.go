package cloud

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// canary is a token that no error may show.
const canary = "c4n4ry-c4n4ry-c4n4ry"

// checkError fails the test if an error shows the canary, or is not one short line.
func checkError(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if strings.Contains(text, canary) {
		t.Fatalf("the error shows a token: %s", text)
	}
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(text) > 4*maxMessage || !utf8.ValidString(text) || strings.ContainsFunc(text, hidden) {
		t.Fatalf("the error is not one short line: %q", text)
	}
}

func FuzzReadPoll(f *testing.F) {
	f.Add([]byte(`{"jobID":"j","typeSpecificID":"d","jobToken":"` + canary + `","oidcToken":null}`))
	f.Add([]byte(`{"jobID":"","deploymentID":"d\n","jobToken":"` + canary + `"}`))
	f.Add([]byte(`{"jobID":5,"jobToken":"` + canary + `"}`))
	f.Add([]byte(`<html>` + canary))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		job, err := readPoll(text)
		if err != nil {
			if job != nil {
				t.Fatal("an error comes with a job")
			}
			if !strings.Contains(deploymentOf(text), canary) {
				checkError(t, err)
			}
			return
		}
		if job.ID == "" || job.Token.Empty() || job.Kind != runtime.Deployment {
			t.Fatalf("the job %q has no id, token or kind", job.ID)
		}
	})
}

// deploymentOf returns the ids in the response to a poll, which are no secrets.
func deploymentOf(text []byte) string {
	var p Poll
	_ = json.Unmarshal(text, &p)
	return p.TypeSpecificID + p.DeploymentID
}

func FuzzParseDefinition(f *testing.F) {
	f.Add([]byte(`{"image":"r","env":{"A":{"secret":"` + canary + `"}},"steps":[{"name":"Setup"}]}`))
	f.Add([]byte(`{"env":{"A":{"isSecret":1,"value":"` + canary + `"}},"steps":[null]}`))
	f.Add([]byte(`{"env":{"A":{"secret":{"secret":"` + canary + `"}}},"steps":[{}]}`))
	f.Add([]byte(`{"env":{"A":"` + canary + `","B":[]},"steps":[{}]}`))
	f.Add([]byte(`{"image":{"credentials":{"password":["` + canary + `"]}},"steps":[{}]}`))
	f.Add([]byte(`{"image":{"reference":"r","credentials":{"username":"u","password":{"secret":"` + canary + `"}}},` +
		`"env":{"A":{"isSecret":true,"value":"` + canary + `"}},"steps":[{"run":"x","timeout":"1s"}]}`))
	f.Add([]byte(`{"image":null,"env":null,"steps":null,"timeout":""}`))
	f.Add([]byte(`{"image":null,"env":null,"steps":[{}],"timeout":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		definition, err := ParseDefinition(text)
		switch {
		case err != nil && definition != nil, err == nil && len(definition.Steps) == 0:
			t.Fatalf("got a definition without steps, or a definition and the error %v", err)
		case err != nil && strings.Contains(err.Error(), canary):
			t.Fatalf("the error shows a secret: %v", err)
		case err != nil:
			return
		}
		again, err := json.Marshal(definition)
		if err != nil {
			t.Fatalf("cannot encode the decoded definition: %v", err)
		}
		if _, err := ParseDefinition(again); err != nil {
			t.Fatalf("cannot decode the encoded definition: %v\n%s", err, again)
		}
	})
}

func FuzzParseJobStatus(f *testing.F) {
	for _, seed := range []string{`"running"`, `{"id":"d","status":"failed","complete":true}`, `{"complete":true}`,
		`{"status":5,"complete":"x"}`, `null`, `"Failed"`, ``} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		status, documented := parseJobStatus(text)
		switch status {
		case runtime.Continue, runtime.Completing, runtime.Cancelled:
		default:
			t.Fatalf("%s is read as %v", text, status)
		}

		// Only these statuses cancel a job. An escape sequence may hide them.
		final := strings.Contains(string(text), "failed") || strings.Contains(string(text), "skipped") ||
			strings.Contains(string(text), `\u`)
		if status == runtime.Cancelled && (!final || !documented) {
			t.Fatalf("%s cancels a job", text)
		}
	})
}

func FuzzReadExchanged(f *testing.F) {
	f.Add([]byte(`{"access_token":"`+canary+`","expires_in":"1h"}`), int64(0))
	f.Add([]byte(`{"access_token":"`+canary+` ","expires_in":1e400}`), int64(time.Minute))
	f.Add([]byte(`{"access_token":{"`+canary+`":1},"expires_in":-0}`), int64(-1))
	f.Fuzz(func(t *testing.T, text []byte, requested int64) {
		token, lifetime, err := readExchanged(text, time.Duration(requested))
		if err != nil {
			checkError(t, err)
			if !token.Empty() {
				t.Fatal("an error comes with a token")
			}
			return
		}
		if token.Empty() || lifetime < 0 || lifetime > maxTokenLifetime {
			t.Fatalf("%s is read with the lifetime %s", text, lifetime)
		}
		header := http.Header{}
		header.Set("Authorization", token.Reveal())
		if value := header.Get("Authorization"); strings.ContainsFunc(value, unicode.IsControl) ||
			strings.ContainsFunc(value, unicode.IsSpace) {
			t.Fatalf("the token %q cannot be sent", value)
		}
	})
}

func FuzzNewStatusError(f *testing.F) {
	f.Add([]byte(`{"code":410,"message":"gone: `+canary+`"}`), uint16(410), "", "")
	f.Add([]byte(`{"error":"x","error_description":"`+canary+`\u0000"}`), uint16(400), "60", "req-"+canary)
	f.Add([]byte(`{"code":4.1e2,"message":null}`), uint16(409), "Thu, 01 Jan 2026 00:00:00 GMT", "\x7f")
	f.Add([]byte("x"), uint16(400), "0", canary[:7]+"\xfe"+canary[7:])
	f.Add([]byte("one\u0080two\u202ethree"), uint16(500), "", "")
	f.Add([]byte("\xff<html>"+canary), uint16(302), canary, "")
	f.Fuzz(func(t *testing.T, text []byte, code uint16, retry, id string) {
		recorder := httptest.NewRecorder()
		recorder.Header()["Retry-After"] = []string{retry}
		recorder.Header()["X-Pulumi-Request-Id"] = []string{id}
		recorder.Header()["Location"] = []string{"/" + id}
		recorder.WriteHeader(300 + int(code%300))
		err := newStatusError(call{token: secret.New(canary)}, recorder.Result(), text)
		checkError(t, err)
		if err.RetryAfter < 0 || err.RetryAfter > maxRetryAfter {
			t.Fatalf("%q requests a wait of %s", retry, err.RetryAfter)
		}
		if err.final && err.Code != http.StatusConflict && err.Code != http.StatusGone {
			t.Fatalf("status %d is final", err.Code)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"5", "-5", "99999999999999999999", "Thu, 01 Jan 2026 00:00:00 GMT", "1.5", " 7 "} {
		f.Add(seed, int64(1_767_225_600))
	}
	f.Fuzz(func(t *testing.T, text string, now int64) {
		wait, ok := retryAfter(http.Header{"Retry-After": {text}}, time.Unix(now%(1<<40), 0))
		if wait < 0 || wait > maxRetryAfter || !ok && wait != 0 {
			t.Fatalf("%q requests a wait of %s (%v)", text, wait, ok)
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, seed := range []string{`"1h30m"`, `3600000000000`, `null`, `""`, `-1`, `"-1s"`, `1.5`, `1e400`, `{}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d Duration
		if json.Unmarshal(text, &d) != nil {
			return
		}
		again, err := json.Marshal(d)
		var same Duration
		if err != nil || d < 0 || json.Unmarshal(again, &same) != nil || same != d {
			t.Fatalf("%s is read as %d and written as %s (%v)", text, d, again, err)
		}
	})
}

func FuzzClaimsOf(f *testing.F) {
	f.Add([]byte(`{"iss":"i","sub":"s","aud":["a"],"exp":1767225600,"nbf":1.5}`))
	f.Add([]byte(`{"aud":5,"exp":1e300}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := claimsOf(secret.New("e30." + base64.RawURLEncoding.EncodeToString(text) + ".sig"))
		if err != nil {
			if !errors.Is(err, errNoClaims) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		for _, at := range []float64{found.Expires, found.NotBefore} {
			if _, err := timeOfClaim(at).MarshalText(); err != nil {
				t.Fatalf("%v has no date: %v", at, err)
			}
		}
	})
}

func FuzzLogLine(f *testing.F) {
	f.Add([]byte(`{"offset":3,"lines":[{"t":"2026-01-01T00:00:00.123456789+02:00","l":"a\r\n"}]}`))
	f.Add([]byte(`{"lines":[{"t":null,"l":null},{"t":"0001-01-01T00:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var batch LogBatch
		if json.Unmarshal(text, &batch) != nil {
			return
		}
		again, err := json.Marshal(batch)
		if err != nil {
			return // a year beyond 9999
		}
		var same LogBatch
		if err := json.Unmarshal(again, &same); err != nil || len(same.Lines) != len(batch.Lines) {
			t.Fatalf("%s is written as %s, which cannot be read: %v", text, again, err)
		}
	})
}
