package records

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func testEntry() Entry {
	return Entry{Pod: "pod-1", UID: "uid-1", Record: runtime.Record{
		Job: "job-1", WorkflowID: "w-1", Kind: runtime.Deployment, Token: secret.New("job-token-value"),
		OIDC: secret.New("oidc-token-value"), Pool: "default-1a2b", PoolName: "default",
		Identity: runtime.Identity{Service: "https://service", Target: "kubernetes"}, Generation: 7,
		Claimed: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Stage: runtime.RecordHandedOff,
		Progress: runtime.Progress{Step: 2, Lines: 3, Status: runtime.Running},
	}}
}

// encode encodes an entry, which must succeed.
func encode(t testing.TB, k Key, name string, e Entry) []byte {
	t.Helper()
	text, err := k.Encode(name, e)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestKey(t *testing.T) {
	key, plain := NewKey(secret.New("pool-token-value")), NewKey(secret.String{})

	t.Run("entry is the same after decoding", func(t *testing.T) {
		for _, k := range []Key{key, plain} {
			got, err := k.Decode("name", encode(t, k, "name", testEntry()))
			if err != nil || !reflect.DeepEqual(got, testEntry()) {
				t.Errorf("decoded %#v, %v", got, err)
			}
		}
	})

	t.Run("sealed text contains no part of the entry", func(t *testing.T) {
		text := encode(t, key, "name", testEntry())
		for _, part := range []string{"job-1", "token", "default", "service", "handed_off"} {
			if bytes.Contains(text, []byte(part)) {
				t.Errorf("%q is in %s", part, text)
			}
		}
		if again := encode(t, key, "name", testEntry()); bytes.Equal(again, text) {
			t.Error("two sealed texts of one entry are equal")
		}
	})

	t.Run("text of another name, key or content is refused", func(t *testing.T) {
		text := encode(t, key, "name", testEntry())
		changed := bytes.Replace(text, []byte(`sealed":"`), []byte(`sealed":"AAAA`), 1)
		for what, got := range map[string]error{
			"another name":       second(key.Decode("other", text)),
			"another token":      second(NewKey(secret.New("x")).Decode("name", text)),
			"no token":           second(plain.Decode("name", text)),
			"changed":            second(key.Decode("name", changed)),
			"not sealed":         second(key.Decode("name", encode(t, plain, "name", testEntry()))),
			"sealed text is cut": second(key.Decode("name", []byte(`{"version":1,"sealed":"AAAA"}`))),
		} {
			if !errors.Is(got, ErrSealed) {
				t.Errorf("%s: got %v, want ErrSealed", what, got)
			}
		}
	})

	t.Run("damaged text is refused without its content", func(t *testing.T) {
		for _, text := range []string{
			"", "{", "[]", `{"version":2}`, `{"version":1}`, `{"version":1,"entry":{"job":"a"}}`,
			`{"version":1,"entry":"hidden"}`, `{"version":1,"entry":{"token":"hidden","job":7}}`,
			`{"version":1,"entry":{"job":"a","pool":"b","claimed":"2026-01-02T03:04:05Z","stage":"hidden"}}`,
			strings.Repeat("x", maxRecord+1),
		} {
			_, err := plain.Decode("name", []byte(text))
			if err == nil || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%.80s: got %v, want an error without the content", text, err)
			}
		}
	})

	t.Run("CA certificates are left out", func(t *testing.T) {
		e := testEntry()
		e.Record.CA = strings.Repeat("c", 200<<10)
		text := encode(t, key, "name", e)
		got, err := key.Decode("name", text)
		if err != nil || !reflect.DeepEqual(got, testEntry()) || len(text) > 2<<10 {
			t.Errorf("decoded %#v, %v from %d bytes, want the entry without certificates", got, err, len(text))
		}
	})

	t.Run("large entry", func(t *testing.T) {
		e := testEntry()
		e.Record.Token = secret.New(strings.Repeat("t", maxRecord))
		if _, err := key.Encode("name", e); err == nil || len(err.Error()) > 200 {
			t.Errorf("with a large token: got %v, want a short error", err)
		}
	})

	t.Run("key is not printed", func(t *testing.T) {
		if text := fmt.Sprintf("%v %+v %#v", key, key, testEntry().Record); strings.Contains(text, "token-value") {
			t.Errorf("the printed text contains a token: %s", text)
		}
	})
}

// second returns the error that a call of Decode returned.
func second(_ Entry, err error) error { return err }

// FuzzKeyDecode decodes texts that others may have written.
func FuzzKeyDecode(f *testing.F) {
	key, plain := NewKey(secret.New("pool-token-value")), NewKey(secret.String{})
	f.Add(encode(f, key, "name", testEntry()))
	f.Add(encode(f, plain, "name", testEntry()))
	f.Add([]byte(`{"version":1,"entry":{"job":"a","pool":"b","claimed":"2026-01-02T03:04:05Z","stage":"claimed"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := plain.Decode("name", text)
		if err != nil {
			return
		}
		// A decoded entry is the same after another Encode and Decode.
		again, err := plain.Decode("name", encode(t, plain, "name", e))
		if err != nil || !again.Record.Claimed.Equal(e.Record.Claimed) {
			t.Fatalf("encode and decode the entry again: %v", err)
		}
		again.Record.Claimed = e.Record.Claimed
		if !reflect.DeepEqual(again, e) {
			t.Errorf("%+v became %+v", e, again)
		}
	})
}
