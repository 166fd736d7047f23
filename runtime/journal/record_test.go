package journal

import (
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// claimed returns a record with every kind of field.
func claimed() runtime.Record {
	return runtime.Record{
		Job: "a", Pool: "p", Token: secret.New("t"), Claimed: time.Unix(1_700_000_000, 0).UTC(), Restarts: 2,
		Stage: runtime.RecordClaimed, Progress: runtime.Progress{Step: 3, Lines: 12, Status: runtime.Running},
	}
}

func TestDecode(t *testing.T) {
	t.Run("part of a record is damaged", func(t *testing.T) {
		whole, err := Encode(claimed())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(whole); err != nil || got != claimed() {
			t.Fatalf("got %v (%v)", got, err)
		}
		for n := range len(whole) {
			if got, err := Decode(whole[:n]); err == nil {
				t.Fatalf("%d bytes: got %v", n, got)
			}
		}
	})

	t.Run("record that is too large is not encoded", func(t *testing.T) {
		record := claimed()
		record.Token = secret.New(strings.Repeat("x", maxRecord))
		if _, err := Encode(record); err == nil || strings.Contains(err.Error(), "xxx") {
			t.Errorf("got %v, want an error without the token", err)
		}
	})
}

// FuzzDecode checks that Decode never panics, and that a decoded record is the same after
// another encode and decode.
func FuzzDecode(f *testing.F) {
	whole, err := Encode(claimed())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, contents []byte) {
		record, err := Decode(contents)
		if err != nil {
			if record != (runtime.Record{}) {
				t.Fatalf("Decode returned the error %v and a record that is not empty", err)
			}
			return
		}
		if !record.Stage.Valid() || record.Job == "" || record.Pool == "" {
			t.Fatalf("the stage is %q, or the job or the pool is empty", record.Stage)
		}
		text, err := Encode(record)
		if err != nil {
			return // escapes in JSON can make the record too large
		}
		again, err := Decode(text)
		if err != nil || !again.Claimed.Equal(record.Claimed) {
			t.Fatalf("decode the encoded record: %v, or another claim time", err)
		}
		again.Claimed = record.Claimed
		if again != record {
			t.Fatalf("the record differs after another encode and decode; its progress is %+v", again.Progress)
		}
	})
}
