package runtime_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestWorkOf(t *testing.T) {
	longest, tooLong := strings.Repeat("s", 1<<10), strings.Repeat("s", 1<<10+1)
	for _, want := range []runtime.Work{
		{},
		{Organization: "acme"},
		{
			Organization: "acme", Project: "web site", Stack: longest, Operation: "update", Version: "12",
			URL: "https://app.example.com/acme/web/12",
		},
	} {
		if got := runtime.WorkOf(want.Labels()); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	edited := map[string]string{
		"cmwa.project": "web\n12:00 INF forged", "cmwa.stack": tooLong, "cmwa.version": "1\x1b[31m2", "other": "x",
	}
	want := runtime.Work{Project: "web 12:00 INF forged", Version: "1?[31m2"}
	if got := runtime.WorkOf(edited); got != want {
		t.Errorf("edited labels: got %+v, want %+v", got, want)
	}
}

func TestFullStack(t *testing.T) {
	for want, work := range map[string]runtime.Work{
		"": {}, "acme/web/prod": {Organization: "acme", Project: "web", Stack: "prod"},
		"acme/prod": {Organization: "acme", Stack: "prod"},
	} {
		if got := work.FullStack(); got != want {
			t.Errorf("%+v has the name %q, want %q", work, got, want)
		}
	}
}
