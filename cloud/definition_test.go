package cloud

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cmwa-project/cmwa/runtime"
)

// definition is a hostile or large definition. It repeats an item up to a size in bytes.
type definition struct{ head, item, tail string }

// body returns the text, which is made while it is read: it needs no memory.
func (d definition) body(size int) io.Reader {
	count := (size - len(d.head) - len(d.tail)) / len(d.item)
	items := io.LimitReader(&repeated{item: strings.Repeat(d.item, 4096)}, int64(count*len(d.item)))
	return io.MultiReader(strings.NewReader(d.head), items, strings.NewReader(d.tail))
}

// repeated is an endless text that repeats an item.
type repeated struct {
	item string
	at   int
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		copied := copy(p[n:], r.item[r.at:])
		n, r.at = n+copied, (r.at+copied)%len(r.item)
	}
	return n, nil
}

// respondTo is a transport whose response to each request is a definition.
type respondTo func() io.Reader

func (body respondTo) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body()), Request: r}, nil
}

// allocated returns the number of bytes that a function allocates, whether or not the garbage
// collector frees them meanwhile. So the function needs at most this much heap.
func allocated(do func()) uint64 {
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	do()
	goruntime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// definitions are definitions that are valid JSON, and the errors for those of less than 8 MiB.
var definitions = map[string]struct {
	definition
	want string // of the agent; empty without an error
}{
	"many steps":           {definition{`{"image":"r","steps":[`, `{},`, `{}]}`}, "more than 10000 steps"},
	"many steps, repeated": {definition{`{"image":"r"`, `,"steps":[{},{},{}]`, `}`}, "more than 10000 steps"},
	"short variables": {definition{`{"image":"r","steps":[{}],"env":{`, `"A":"b",`, `"B":""}}`},
		"more than 10000 variables"},
	"names of secret variables": {definition{`{"image":"r","steps":[{}],"cmwaSecretVariables":[`, `"A",`, `"B"]}`},
		"more than 10000 variables"},
	"one script":    {definition{`{"image":"r","steps":[{},{"run":"`, `echo hello\n`, `"}]}`}, ""},
	"one variable":  {definition{`{"image":"r","steps":[{}],"env":{"A":{"secret":"`, `<`, `"}}}`}, ""},
	"invalid UTF-8": {definition{`{"image":"r","steps":[{"run":"`, "\xff", `"}]}`}, ""},
	"unknown field": {definition{`{"image":"r","steps":[{}],"future":[`, `{"a":[]},`, `0]}`}, ""},
	"image":         {definition{`{"image":"`, "\xff", `","steps":[{}]}`}, "larger than 64 KiB"},
	"login": {definition{`{"steps":[{}],"image":{"reference":"r","credentials":{"username":"u","password":"`,
		"p", `"}}}`},
		"larger than 64 KiB"},
	"timeout":     {definition{`{"image":"r","timeout":"`, `1h`, `","steps":[{}]}`}, "larger than 64 KiB"},
	"white space": {definition{`{"image":"r","steps":[{}]}`, ` `, ``}, ""},
}

// TestDefinitionMemory checks that one attempt to fetch a definition needs at most 64 MiB of heap,
// regardless of what the service sends.
func TestDefinitionMemory(t *testing.T) {
	const most = 64 << 20
	for name, c := range definitions {
		for size, want := range map[int]string{
			maxDefinition: c.want,
			60 << 20:      "the definition of the job is larger than 8 MiB: shorten the scripts and variables",
		} {
			t.Run(fmt.Sprintf("%s, %d MiB", name, size>>20), func(t *testing.T) {
				var got runtime.Definition
				var err error
				needed := allocated(func() {
					j := NewJobs(JobsOptions{
						Service: "https://service.example", JobID: "j",
						Transport: respondTo(func() io.Reader { return c.body(size) }),
					})
					got, err = j.Definition(t.Context())
				})
				t.Logf("%d MiB allocated", needed>>20)
				switch {
				case needed > most:
					t.Errorf("the definition needs %d MiB of heap, want at most %d", needed>>20, most>>20)
				case want == "" && (err != nil || got.Image.Reference != "r" || len(got.Raw) < size-100):
					t.Errorf("got a definition of %d bytes (%v)", len(got.Raw), err)
				case want != "" && (!errors.Is(err, runtime.ErrJobFault) || !strings.Contains(err.Error(), want)):
					t.Errorf("the error is %v, want a fault of the job with %q", err, want)
				}
			})
		}
	}
}

// TestParseDefinitionMemory checks that the runner refuses too many steps and variables before it
// decodes them.
func TestParseDefinitionMemory(t *testing.T) {
	for name, c := range definitions {
		text, err := io.ReadAll(c.body(maxDefinition))
		noError(t, err)
		needed := allocated(func() { _, err = ParseDefinition(text) })
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case err != nil && needed > 1<<20:
			t.Errorf("%s: %d KiB were allocated for a refused definition", name, needed>>10)
		}
	}
}

func TestReadDefinition(t *testing.T) {
	for text, want := range map[string]string{
		`{"image":"debian","steps":[{"name":"a","run":"true","new":1}],"new":{},"env":null,"timeout":null,` +
			`"shell":null}`: "",
		`{"steps":[]}`:        "no steps",
		`null`:                "no steps",
		`[]`:                  "the definition of the job is invalid",
		``:                    "not JSON",
		`{"steps":[{"name":1`: "not JSON",
		`{"steps":[7]}`:       "the definition of the job is invalid",
	} {
		synctest.Test(t, func(t *testing.T) {
			definition, err := newScript(answer{status: 200, text: text}).jobs(io.Discard).Definition(t.Context())
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", text, err)
			case want == "" && (definition.Image.Reference != "debian" || definition.Steps != 1):
				t.Errorf("%s is read as %+v", text, definition)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		})
	}

	// The agent does not decode steps and variables, and leaves their errors to the runner.
	const text = `{"steps":[{}],"env":{"A":{"secret":7}}}`
	if _, err := ReadDefinition([]byte(text)); err != nil {
		t.Errorf("the agent refuses %s: %v", text, err)
	}
	if _, err := ParseDefinition([]byte(text)); err == nil {
		t.Errorf("the runner accepts %s", text)
	}
}

// TestDefinitionWork checks the names that users see on a Pod. The variables come from users.
func TestDefinitionWork(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for text, want := range map[string]runtime.Work{
		`{}`: {},
		`{"PULUMI_CI_ORGANIZATION": "acme", "PULUMI_CI_PROJECT": "website", "PULUMI_CI_STACK": "production",
			"PULUMI_CI_OPERATION": "update", "PULUMI_CI_BUILD_URL": "https://app.pulumi.com/acme/website/1"}`: {
			Organization: "acme", Project: "website", Stack: "production", Operation: "update",
			URL: "https://app.pulumi.com/acme/website/1",
		},
		`{"PULUMI_CI_STACK": {"secret": "hidden"}, "PULUMI_CI_PROJECT": {"ciphertext": "hidden"}}`: {},
		`{"PULUMI_CI_STACK": "two\n lines\u0000\u001b[1m"}`: {
			Stack: "two lines??[1m",
		},
		`{"PULUMI_CI_STACK": "` + long + `", "PULUMI_CI_BUILD_URL": "https://a.example/` + long + `"}`: {
			Stack: long[:1020] + " …",
		},
		`{"PULUMI_CI_BUILD_URL": "https://user:hidden@a.example:8443/x%2fy?token=hidden#hidden"}`: {
			URL: "https://a.example:8443/x%2fy",
		},
		`{"PULUMI_CI_STACK": "hidden", "PULUMI_CI_PROJECT": "shown"},
			"cmwaSecretVariables": ["A", "PULUMI_CI_STACK"]`: {Project: "shown"},
		`{"PULUMI_CI_STACK": 7, "PULUMI_CI_PROJECT": {"a": 1}}, "cmwaSecretVariables": [7]`: {},
		`{"PULUMI_CI_BUILD_URL": "javascript:alert(1)"}`:                                    {},
		`{"PULUMI_CI_BUILD_URL": "/only/a/path"}`:                                           {},
	} {
		d, err := ReadDefinition([]byte(`{"steps": [{}], "env": ` + text + `}`))
		noError(t, err)
		if d.Work != want {
			t.Errorf("%.100s is read as %+v, want %+v", text, d.Work, want)
		}
	}
}
