package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

func TestServerRefusals(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	at := w.stack("s")
	w.deploy(at, steps(1))
	c := w.mustClaim(p)
	w.deploy(w.stack("other"), steps(1))
	other := w.mustClaim(p)
	job := "/api/workflow/jobs/" + c.job.JobID
	longLine := strings.Repeat("x", maxLine+1)
	line := func(t, l string) string { return fmt.Sprintf(`{"offset":0,"lines":[{"t":%q,"l":%q}]}`, t, l) }
	const now = "2026-01-01T00:00:00Z"

	for _, test := range []struct {
		name               string
		code               int
		token, method, url string
		body               any
	}{
		{"no token", 401, "", "GET", job, nil},
		{"an unknown token", 401, "cmwa-job-0", "GET", job, nil},
		{"a pool's token for a definition", 403, p.Token, "GET", job, nil},
		{"a user's token for a definition", 403, w.user, "GET", job, nil},
		{"another job's token", 404, other.job.JobToken, "GET", job, nil},
		{"another job's token for a status", 404, other.job.JobToken, "PATCH", job + "/0/status",
			`{"status":"running"}`},
		{"a job's token for a poll", 403, c.job.JobToken, "GET", "/api/deployments/poll", nil},
		{"no token for a poll", 401, "", "GET", "/api/deployments/poll", nil},
		{"a poll by HEAD", 405, p.Token, "HEAD", "/api/deployments/poll", nil},
		{"a step after the last", 404, c.job.JobToken, "PATCH", job + "/2/status", `{"status":"running"}`},
		{"a negative step", 404, c.job.JobToken, "PATCH", job + "/-1/status", `{"status":"running"}`},
		{"a step that is not a number", 404, c.job.JobToken, "PATCH", job + "/one/status", `{"status":"running"}`},
		{"an unknown status", 400, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"skipped"}`},
		{"no status", 400, c.job.JobToken, "PATCH", job + "/0/status", `{}`},
		{"a status that is not JSON", 400, c.job.JobToken, "PATCH", job + "/0/status", `running`},
		{"success before the start", 409, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"succeeded"}`},
		{"failed before the start", 409, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"failed"}`},
		{"the second step before the first", 409, c.job.JobToken, "PATCH", job + "/1/status", `{"status":"running"}`},
		{"lines before the start", 409, c.job.JobToken, "POST", job + "/0/logs", line(now, "a\n")},
		{"an empty batch before the start", 409, c.job.JobToken, "POST", job + "/0/logs", `{"offset":3,"lines":[]}`},
		{"lines without a time", 400, c.job.JobToken, "POST", job + "/0/logs", `{"offset":0,"lines":[{"l":"a\n"}]}`},
		{"a batch without the key offset", 400, c.job.JobToken, "POST", job + "/0/logs", `{"lines":[]}`},
		{"a batch without the key lines", 400, c.job.JobToken, "POST", job + "/0/logs", `{"offset":0}`},
		{"two lines in one entry", 400, c.job.JobToken, "POST", job + "/0/logs", line(now, "a\nb\n")},
		{"a line that is too long", 400, c.job.JobToken, "POST", job + "/0/logs", line(now, longLine+"\n")},
		{"a line not in UTF-8", 400, c.job.JobToken, "POST", job + "/0/logs", "{\"offset\":0,\"lines\":[{\"t\":\"" +
			now + "\",\"l\":\"\xff\"}]}"},
		{"a batch that is too large", 413, c.job.JobToken, "POST", job + "/0/logs", strings.Repeat(" ", maxLogBody+1)},
		{"an unknown job", 404, c.job.JobToken, "POST", "/api/workflow/jobs/none/heartbeat", nil},
		{"an unknown deployment", 404, p.Token, "GET", "/api/deployments/none/status", nil},
		{"an unknown path", 404, p.Token, "GET", "/api/none", nil},
		{"the deployment executor, which does not exist here", 404, w.user, "GET", "/api/deployments/executor", nil},
		{"a token exchange without an issuer", 403, "", "POST", "/api/oauth/token", "grant_type=x"},
	} {
		got := w.ask(test.token, test.method, test.url, test.body)
		if got.code != test.code {
			t.Errorf("%s: %d %s, want %d", test.name, got.code, got.body, test.code)
		}
		prefix := fmt.Sprintf(`{"code":%d,"message":"%s: `, got.code, http.StatusText(got.code))
		if !strings.HasPrefix(got.body, prefix) || got.header.Get("X-Pulumi-Request-ID") == "" {
			t.Errorf("%s: the response is %s with headers %v", test.name, got.body, got.header)
		}
	}
	w.shows(at, c.job.TypeSpecificID, accepted, notStarted, notStarted)
}

func TestReportLogs(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, steps(1))
	c := w.mustClaim(p)
	c.status(0, running)
	for i, sent := range []struct {
		code, offset int
		lines        []string
	}{
		{200, 0, []string{"a\n", "b\r\n"}},
		{200, 0, []string{"a\n", "b\r\n"}}, // a retry after a lost response
		{400, 3, []string{"d\n"}},
		{400, 1, []string{"b\r\n"}},
		{400, 0, []string{"a\n", "B\n"}},
		{400, 0, []string{"a\n", "b\r\n", "c\n"}},
		{200, 2, []string{"c\n", strings.Repeat("ü", maxLine/2) + "\n"}},
		{200, 4, []string{}},
		{200, 4, []string{"end without newline"}},
	} {
		if got := c.logs(0, sent.offset, sent.lines...); got != sent.code {
			t.Errorf("batch %d: got status %d, want %d", i, got, sent.code)
		}
	}
	for _, offset := range []int{2, 7} {
		var refusal cloud.ErrorBody
		batch := cloud.LogBatch{Offset: offset, Lines: []cloud.LogLine{{Time: time.Unix(1, 0), Text: "other\n"}}}
		w.want(400, c.job.JobToken, "POST", "/api/workflow/jobs/"+c.job.JobID+"/0/logs", batch, &refusal)
		if refusal.NextOffset == nil || *refusal.NextOffset != 5 {
			t.Errorf("lines at offset %d: got %+v, want the next offset 5", offset, refusal)
		}
	}
	c.status(0, succeeded)
	if got := c.logs(0, 0, "a\n", "b\r\n"); got != 200 {
		t.Errorf("a retry after the end: got status %d, want 200", got)
	}
	if got := c.logs(0, 5, "late\n"); got != 409 {
		t.Errorf("lines after the end: got status %d, want 409", got)
	}
	want := "[Setup]a\nb\r\nc\n" + strings.Repeat("ü", maxLine/2) + "\nend without newline"
	if log, complete := w.log(at, id); log != want || complete {
		t.Errorf("the log has %d bytes, want %d; complete %v, want false", len(log), len(want), complete)
	}
	var page logPage
	w.want(200, w.user, "GET", at+"/"+id+"/logs?job=0&step=0&offset=1&count=2", nil, &page)
	if len(page.Lines) != 2 || page.Lines[0].Line != "b\r\n" || page.Lines[1].Line != "c\n" ||
		page.NextOffset == nil ||
		*page.NextOffset != 3 {
		t.Errorf("two lines from offset 1: got %+v", page)
	}
	page = logPage{}
	w.want(200, w.user, "GET", at+"/"+id+"/logs?step=0&offset=4&count=499", nil, &page)
	if len(page.Lines) != 1 || page.NextOffset != nil {
		t.Errorf("the last line: got %+v", page)
	}
	for _, bad := range []string{"step=2", "step=x", "step=0&count=500", "step=0&offset=-1", "continuationToken=9.9",
		"continuationToken=x", "step=0&job=1"} {
		if got := w.ask(w.user, "GET", at+"/"+id+"/logs?"+bad, nil); got.code != 400 && got.code != 404 {
			t.Errorf("%s: got status %d, want 400 or 404", bad, got.code)
		}
	}
}
