package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestWhatARunnerMayNotSayIsRefused(t *testing.T) {
	w := newWorld(t)
	p := w.pool("p")
	at := w.stack("s")
	w.deploy(at, steps(1))
	c := w.mustClaim(p)
	w.deploy(w.stack("other"), steps(1))
	other := w.mustClaim(p)
	job := "/api/workflow/jobs/" + c.job.JobID
	long := strings.Repeat("x", maxLine+1)
	line := func(t, l string) string { return fmt.Sprintf(`{"offset":0,"lines":[{"t":%q,"l":%q}]}`, t, l) }
	const now = "2026-01-01T00:00:00Z"

	for _, refused := range []struct {
		what               string
		code               int
		token, method, url string
		body               any
	}{
		{"no token", 401, "", "GET", job, nil},
		{"an unknown token", 401, "cmwa-job-0", "GET", job, nil},
		{"a pool's token for a definition", 403, p.Token, "GET", job, nil},
		{"a user's token for a definition", 403, w.user, "GET", job, nil},
		{"another job's token", 404, other.job.JobToken, "GET", job, nil},
		{"another job's token for a status", 404, other.job.JobToken, "PATCH", job + "/0/status", `{"status":"running"}`},
		{"a job's token for a poll", 403, c.job.JobToken, "GET", "/api/deployments/poll", nil},
		{"no token for a poll", 401, "", "GET", "/api/deployments/poll", nil},
		{"a poll by HEAD", 405, p.Token, "HEAD", "/api/deployments/poll", nil},
		{"a step too far", 404, c.job.JobToken, "PATCH", job + "/2/status", `{"status":"running"}`},
		{"a negative step", 404, c.job.JobToken, "PATCH", job + "/-1/status", `{"status":"running"}`},
		{"a word for a step", 404, c.job.JobToken, "PATCH", job + "/one/status", `{"status":"running"}`},
		{"an unknown status", 400, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"skipped"}`},
		{"no status", 400, c.job.JobToken, "PATCH", job + "/0/status", `{}`},
		{"no JSON", 400, c.job.JobToken, "PATCH", job + "/0/status", `running`},
		{"the end before the start", 409, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"succeeded"}`},
		{"a failure before the start", 409, c.job.JobToken, "PATCH", job + "/0/status", `{"status":"failed"}`},
		{"the second step first", 409, c.job.JobToken, "PATCH", job + "/1/status", `{"status":"running"}`},
		{"lines before the start", 409, c.job.JobToken, "POST", job + "/0/logs", line(now, "a\n")},
		{"lines with a gap", 409, c.job.JobToken, "POST", job + "/0/logs", `{"offset":3,"lines":[]}`},
		{"lines without a time", 400, c.job.JobToken, "POST", job + "/0/logs", `{"offset":0,"lines":[{"l":"a\n"}]}`},
		{"lines without an offset", 400, c.job.JobToken, "POST", job + "/0/logs", `{"lines":[]}`},
		{"no lines", 400, c.job.JobToken, "POST", job + "/0/logs", `{"offset":0}`},
		{"two lines in one", 400, c.job.JobToken, "POST", job + "/0/logs", line(now, "a\nb\n")},
		{"a line too long", 400, c.job.JobToken, "POST", job + "/0/logs", line(now, long+"\n")},
		{"bytes that are no text", 400, c.job.JobToken, "POST", job + "/0/logs", "{\"offset\":0,\"lines\":[{\"t\":\"" + now + "\",\"l\":\"\xff\"}]}"},
		{"a batch too large", 413, c.job.JobToken, "POST", job + "/0/logs", strings.Repeat(" ", maxLogBody+1)},
		{"an unknown job", 404, c.job.JobToken, "POST", "/api/workflow/jobs/none/heartbeat", nil},
		{"an unknown deployment", 404, p.Token, "GET", "/api/deployments/none/status", nil},
		{"an unknown path", 404, p.Token, "GET", "/api/none", nil},
		{"the executor", 404, w.user, "GET", "/api/deployments/executor", nil},
		{"an exchange of tokens without a policy", 403, "", "POST", "/api/oauth/token", "grant_type=x"},
	} {
		got := w.ask(refused.token, refused.method, refused.url, refused.body)
		if got.code != refused.code {
			t.Errorf("%s: %d %s, want %d", refused.what, got.code, got.body, refused.code)
		}
		if prefix := fmt.Sprintf(`{"code":%d,"message":"%s: `, got.code, http.StatusText(got.code)); !strings.HasPrefix(got.body, prefix) || got.header.Get("X-Pulumi-Request-ID") == "" {
			t.Errorf("%s: the answer is %s with headers %v", refused.what, got.body, got.header)
		}
	}
	w.shows(at, c.job.TypeSpecificID, accepted, notStarted, notStarted)
}

func TestLinesComeOnceInOrderAndWithoutAGap(t *testing.T) {
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
		{200, 0, []string{"a\n", "b\r\n"}}, // the answer was lost, and it comes again
		{400, 3, []string{"d\n"}},
		{400, 1, []string{"b\r\n"}},
		{400, 0, []string{"a\n", "B\n"}},
		{400, 0, []string{"a\n", "b\r\n", "c\n"}},
		{200, 2, []string{"c\n", strings.Repeat("ü", maxLine/2) + "\n"}},
		{200, 4, []string{}},
		{200, 4, []string{"end without newline"}},
	} {
		if got := c.logs(0, sent.offset, sent.lines...); got != sent.code {
			t.Errorf("batch %d: %d, want %d", i, got, sent.code)
		}
	}
	c.status(0, succeeded)
	if got := c.logs(0, 0, "a\n", "b\r\n"); got != 200 {
		t.Errorf("a repetition after the end: %d", got)
	}
	if got := c.logs(0, 5, "late\n"); got != 409 {
		t.Errorf("lines after the end: %d", got)
	}
	want := "[Setup]a\nb\r\nc\n" + strings.Repeat("ü", maxLine/2) + "\nend without newline"
	if log, over := w.log(at, id); log != want || over {
		t.Errorf("the log has %d bytes, want %d; over %v", len(log), len(want), over)
	}
	var page logPage
	w.want(200, w.user, "GET", at+"/"+id+"/logs?job=0&step=0&offset=1&count=2", nil, &page)
	if len(page.Lines) != 2 || page.Lines[0].Line != "b\r\n" || page.Lines[1].Line != "c\n" || page.NextOffset == nil || *page.NextOffset != 3 {
		t.Errorf("two lines from 1 are %+v", page)
	}
	page = logPage{}
	w.want(200, w.user, "GET", at+"/"+id+"/logs?step=0&offset=4&count=499", nil, &page)
	if len(page.Lines) != 1 || page.NextOffset != nil {
		t.Errorf("the last line is %+v", page)
	}
	for _, bad := range []string{"step=2", "step=x", "step=0&count=500", "step=0&offset=-1", "continuationToken=9.9", "continuationToken=x", "step=0&job=1"} {
		if got := w.ask(w.user, "GET", at+"/"+id+"/logs?"+bad, nil); got.code != 400 && got.code != 404 {
			t.Errorf("%s: %d", bad, got.code)
		}
	}
}
