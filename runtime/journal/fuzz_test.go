package journal

import (
	"bytes"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// FuzzDecode checks that Decode never panics, and that a decoded record is the same after
// another Encode and Decode. The second and third inputs are the slot and the line without
// checksums: random changes of the first input would make the checksums wrong.
func FuzzDecode(f *testing.F) {
	whole, err := Encode(runtime.Record{
		Job: "a", Pool: "p", Token: secret.New("t"), Claimed: time.Unix(1_700_000_000, 0), Stage: runtime.RecordClaimed,
	})
	if err != nil {
		f.Fatal(err)
	}
	slot, line := bytes.TrimRight(whole[sumSize+1:slotSize], " \n"), whole[slotSize+sumSize+1:len(whole)-1]
	f.Add(whole, []byte(nil), []byte(nil))
	f.Add(whole[:600], slot, line)
	f.Add(make([]byte, 600), []byte("{}"), []byte("{}"))
	f.Fuzz(func(t *testing.T, contents, slot, line []byte) {
		checkDecode(t, contents)
		if len(slot) >= slotSize-sumSize-1 {
			return
		}
		sealed := append(append([]byte(checksum(slot)), ' '), slot...)
		sealed = append(sealed, bytes.Repeat([]byte{' '}, slotSize-len(sealed))...)
		sealed = append(append(append(append(sealed, checksum(line)...), ' '), line...), '\n')
		checkDecode(t, sealed)
	})
}

// checkDecode decodes contents, encodes the record, and decodes it again.
func checkDecode(t *testing.T, contents []byte) {
	t.Helper()
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
		t.Fatalf("the record differs after another Encode and Decode; its progress is %+v", again.Progress)
	}
}
