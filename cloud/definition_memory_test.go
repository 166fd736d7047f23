//go:build !race

package cloud

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"

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
