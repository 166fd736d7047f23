package runtimetest_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestService(t *testing.T) {
	const line = `{"t":"2026-01-02T03:04:05Z","l":"%"}`
	lines := func(offset string, texts ...string) string {
		var all []string
		for _, text := range texts {
			all = append(all, strings.Replace(line, "%", text, 1))
		}
		return `{"offset":` + offset + `,"lines":[` + strings.Join(all, ",") + `]}`
	}
	service := runtimetest.NewService()
	service.Add(&runtime.Job{ID: "a", Token: secret.New("right"), Definition: runtimetest.Definition("true")})
	refused := 0
	for i, call := range []struct {
		method, path, body string
		token              string
		want               int
	}{
		{"PATCH", "a/0/status", `{"status":"running"}`, "wrong", 401},
		{"PATCH", "b/0/status", `{"status":"running"}`, "right", 404},
		{"PATCH", "a/2/status", `{"status":"running"}`, "right", 404},
		{"PATCH", "a/x/status", `{"status":"running"}`, "right", 404},
		{"PATCH", "a/1/status", `{"status":"running"}`, "right", 400}, // before step 0
		{"PATCH", "a/0/status", `{"status":"succeeded"}`, "right", 400},
		{"POST", "a/0/logs", lines("0", "early"), "right", 400},
		{"PATCH", "a/0/status", `{"status":"running"}`, "right", 200},
		{"PATCH", "a/0/status", `{"status":"running"}`, "right", 200}, // sent again
		{"PATCH", "a/0/status", `{"status":"cancelled"}`, "right", 400},
		{"PATCH", "a/0/status", `status`, "right", 400},
		{"POST", "a/0/logs", lines("0", "1", "2"), "right", 200},
		{"POST", "a/0/logs", lines("1", "2", "3"), "right", 200}, // overlaps
		{"POST", "a/0/logs", lines("1", "two"), "right", 400},
		{"POST", "a/0/logs", lines("4", "gap"), "right", 400},
		{"POST", "a/0/logs", `{"offset":3,"lines":[{"l":"no time"}]}`, "right", 400},
		{"POST", "a/0/logs", lines("3", `a\nb`), "right", 400},
		{"POST", "a/0/logs", lines("3", strings.Repeat("x", 5<<20)), "right", 413},
		{"POST", "a/heartbeat", `{}`, "right", 200},
		{"PATCH", "a/0/status", `{"status":"succeeded"}`, "right", 200},
		{"POST", "a/0/logs", lines("2", "3"), "right", 200}, // sent again
		{"POST", "a/0/logs", lines("3", "late"), "right", 400},
		{"GET", "a", ``, "right", 404},
	} {
		request := httptest.NewRequest(call.method, "/api/workflow/jobs/"+call.path, strings.NewReader(call.body))
		request.Header.Set("Authorization", "token "+call.token)
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, request)
		if answer.Code != call.want {
			t.Errorf("call %d, %s %s: answered %d, want %d: %s", i, call.method, call.path, answer.Code, call.want,
				answer.Body)
		}
		if call.want != http.StatusOK {
			refused++
		}
	}
	record := service.Record("a")
	if text := record.Text(0); text != "123" {
		t.Errorf("the log is %q, want 123", text)
	}
	if want := []runtime.Status{runtime.Succeeded, runtime.NotStarted}; !slices.Equal(record.Statuses(), want) ||
		record.Heartbeats != 1 {
		t.Errorf("recorded %+v, want %v and one heartbeat", record, want)
	}
	if got := service.Violations(); len(got) != refused {
		t.Errorf("%d violations are recorded, want %d: %q", len(got), refused, got)
	}
}
