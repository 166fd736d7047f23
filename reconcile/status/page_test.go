package status

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/browsertest"
)

// hostile is a text that a page must show as it is.
const hostile = `<script>document.body.remove()</script>`

func TestPage(t *testing.T) {
	ask := func(h http.Handler, path, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"

	t.Run("shows pools, jobs, the last reload and the rejected file", func(t *testing.T) {
		w := ask(Handler(busyAgent(t).Snapshots), "/", browser)
		wantTexts(t, w.Body.String(),
			"<title>cmwa: needs attention</title>", `<span class="badge bad">not ready</span>`,
			"The present file was rejected 1m00s ago", "<code>/etc/cmwa/agent.yaml:2:19</code>",
			"<strong>http_server_port</strong>", "reach the engine: connection refused", "the service asks for it",
			`<strong>prod</strong>`, `<li class="past">starting</li><li class="now" aria-current="step">running</li>`,
			`<li class="next">done</li>`, `<p class="minor">pull 1m10s, first line 0.2s</p>`,
			"<dt>Pools started</dt><dd>two</dd>", "<dt>Pools drained</dt><dd>old</dd>")
		if strings.Contains(w.Body.String(), canaryToken) {
			t.Errorf("the page has a token:\n%s", w.Body)
		}
	})
	t.Run("shows an agent without problems as ready", func(t *testing.T) {
		page := ask(Handler(calmAgent(t).Snapshots), "/", browser).Body.String()
		wantTexts(t, page, "<title>cmwa: ready</title>", `<span class="badge good">polling</span>`)
		if strings.Contains(page, `bad"`) || strings.Contains(page, `warn"`) {
			t.Errorf("the page of an agent without problems has\n%s", page)
		}
	})
	t.Run("escapes texts from outside", func(t *testing.T) {
		a := busyAgent(t)
		a.status.Pools[0].Reason = hostile
		a.status.Pools[0].Jobs[0].Work = runtime.Work{Stack: hostile, Operation: hostile, URL: "javascript:alert(1)"}
		page := ask(Handler(a.Snapshots), "/", browser).Body.String()
		if strings.Contains(page, hostile) || strings.Contains(page, "javascript:") {
			t.Errorf("the page has text that a browser would run:\n%s", page)
		}
	})
	t.Run("is the text for other clients", func(t *testing.T) {
		for _, accept := range []string{"", "*/*", "text/plain"} {
			w := ask(Handler(calmAgent(t).Snapshots), "/", accept)
			if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
				t.Errorf("with Accept %q the type is %s", accept, got)
			}
		}
	})
	t.Run("loads only its own files", func(t *testing.T) {
		h := Handler(calmAgent(t).Snapshots)
		for path, want := range map[string]int{
			"/": 200, "/page/page.js": 200, "/page/page.css": 200, "/page/page.html": 404, "/page/": 404,
		} {
			w := ask(h, path, browser)
			if w.Code != want {
				t.Errorf("%s: status %d, want %d", path, w.Code, want)
			}
			if got := w.Header().Get("Content-Security-Policy"); want == 200 && got != pagePolicy {
				t.Errorf("%s: the policy is %q", path, got)
			}
		}
	})
}

// liveAgent is an agent that a test changes while its server responds.
type liveAgent struct {
	*testAgent

	mu  sync.Mutex
	url string
}

func serveAgent(t *testing.T, agent *testAgent) *liveAgent {
	t.Helper()
	a := &liveAgent{testAgent: agent}
	document := a.Document
	p := newPage(func(now time.Time) Document {
		a.mu.Lock()
		defer a.mu.Unlock()
		return document(now)
	})
	mux := http.NewServeMux()
	p.handle(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { p.write(w) })
	server := httptest.NewUnstartedServer(mux)
	requests, stop := context.WithCancel(context.Background())
	server.Config.BaseContext = func(net.Listener) context.Context { return requests }
	server.Config.ReadTimeout, server.Config.WriteTimeout = pageCheck/2, pageCheck/2 // a stream lasts longer
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(stop)
	a.url = server.URL
	return a
}

func (a *liveAgent) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func TestPageStream(t *testing.T) {
	a := serveAgent(t, calmAgent(t))
	open := func() (events *bufio.Scanner, response *http.Response) {
		t.Helper()
		response, err := http.Get(a.url + "/page/events")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return bufio.NewScanner(response.Body), response
	}
	// until reads lines until one has a text.
	until := func(events *bufio.Scanner, text string) {
		t.Helper()
		for events.Scan() {
			if strings.HasPrefix(events.Text(), "data: ") && strings.Contains(events.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream ends without %q: %v", text, events.Err())
	}

	// 1. A stream starts with the present status, and has each change.
	events, response := open()
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("the type is %s", got)
	}
	until(events, ">polling<")
	a.change(func() { a.status.Pools[0].Phase = runtime.PoolDraining })
	until(events, ">draining<")

	// 2. Only so many streams are open at a time. One that is closed makes room for another.
	var last *http.Response
	for range pageStreams - 1 {
		if _, last = open(); last.StatusCode != http.StatusOK {
			t.Fatal(last.Status)
		}
	}
	if _, one := open(); one.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one stream too many: %s", one.Status)
	}
	if err := last.Body.Close(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); ; {
		if _, one := open(); one.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("a closed stream makes no room for another")
		}
	}
}

// TestPageInBrowser opens the page in chromium. The pictures of it are artifacts of the test.
func TestPageInBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	a := serveAgent(t, busyAgent(t))
	a.status.Pools[0].Jobs[0].Work = runtime.Work{
		Organization: "acme", Project: "website", Stack: hostile, Operation: "update", Version: "12",
		URL: "https://app.pulumi.com/acme/website/prod/deployments/12",
	}
	b := browsertest.New(t, browser, a.url)
	b.Open("/")
	b.Until("document.querySelector('.jobs strong').innerText === 'acme/website/" + hostile + "'")
	b.CheckScreens("status")

	// The page follows the agent: a job ends, and the file is accepted.
	a.change(func() {
		a.status.Pools[0].Jobs = nil
		a.view.Rejection = nil
	})
	b.Until("!document.querySelector('.jobs') && !document.querySelector('.rejected')")
	b.Unproblematic()
}
