package runner_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestRunLeaksNoGoroutine(t *testing.T) {
	w := newFixture(t, steps("echo one; sleep 600 & echo $! > id", "kill $(cat id); exit 3"))
	before := goleak.IgnoreCurrent()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // idle connections are not tested here
	w.options.Transport = transport
	w.run(runtime.CodeFailed)
	goleak.VerifyNone(t, before,
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"), // the service
	)
}
