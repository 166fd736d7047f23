package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

// serve starts a server with one handler, and returns its URL.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/status"
}

func TestFetch(t *testing.T) {
	t.Run("returns the document of a handler", func(t *testing.T) {
		agent := busyAgent(t)
		at := serve(t, Handler(agent.Snapshots).ServeHTTP)
		d, err := Fetch(t.Context(), at, true)
		want := agent.Document(d.Now)
		for i := range want.Pools[0].Jobs { // JSON does not contain the reading of the monotonic clock
			want.Pools[0].Jobs[i].Since = d.Pools[0].Jobs[i].Since
		}
		if err != nil || d.Version != Version || !reflect.DeepEqual(d.Reload.Changes, want.Reload.Changes) ||
			!reflect.DeepEqual(d.Config.Rejection.Problems, want.Config.Rejection.Problems) ||
			!reflect.DeepEqual(d.Pools[0].Jobs, want.Pools[0].Jobs) {
			t.Errorf("%v\n%+v\nwant\n%+v", err, d, want)
		}
	})

	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"another program": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
			"status code 418"},
		"a redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1")
			w.WriteHeader(http.StatusFound)
		}, "status code 302"},
		"no JSON":    {write("<html>\x1b[2J"), "not that of a cmwa agent"},
		"other JSON": {write(`{"status":"healthy"}`), "not that of a cmwa agent"},
		"JSON of the wrong type": {write(fmt.Sprintf(`{"version":%d,"pools":"none"}`, Version)),
			"not that of a cmwa agent"},
		"deep JSON":       {write(strings.Repeat("[", 1<<20)), "not that of a cmwa agent"},
		"a later version": {write(fmt.Sprintf(`{"version":%d}`, Version+1)), "use the program of the agent's release"},
		"a huge response": {write(`{"version":1,"problem":"` + strings.Repeat("x", maxDocument) + `"}`),
			"larger than 8 MiB"},
		"an incomplete response": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}, "is incomplete"},
	} {
		t.Run("rejects "+name, func(t *testing.T) {
			d, err := Fetch(t.Context(), serve(t, test.handler), true)
			if err == nil || !strings.Contains(err.Error(), test.want) ||
				strings.ContainsAny(err.Error(), "\n\x1b") || errors.Is(err, ErrNoAgent) {
				t.Errorf("got error %v, want %q, and not ErrNoAgent", err, test.want)
			}
			if !reflect.DeepEqual(d, Document{}) {
				t.Errorf("got %+v, want an empty document", d)
			}
		})
	}
	t.Run("rejects an invalid URL", func(t *testing.T) {
		if _, err := Fetch(t.Context(), "http://a%25zz/\x1b", true); err == nil ||
			strings.Contains(err.Error(), "\x1b") {
			t.Errorf("the error is %v, want one without control characters", err)
		}
	})
	t.Run("rejects a closed port", func(t *testing.T) {
		server := httptest.NewServer(write(""))
		server.Close()
		if _, err := Fetch(t.Context(), server.URL, true); !errors.Is(err, ErrNoAgent) ||
			!strings.HasSuffix(err.Error(), ": connection refused") {
			t.Errorf("the error is %v, want ErrNoAgent with the reason connection refused", err)
		}
	})
}

func TestFetchTimeout(t *testing.T) {
	stop := make(chan struct{})
	at := serve(t, func(http.ResponseWriter, *http.Request) { <-stop })
	defer close(stop)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Fetch(ctx, at, true); err == nil {
		t.Error("Fetch returned no error after its context ended")
	}
	if why := explain(context.DeadlineExceeded); why != "no response within 5s" {
		t.Errorf("the explanation of an ended timeout is %q", why)
	}
}
