package journal_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/journal"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// encode returns the contents of the file of a record.
func encode(t testing.TB, record runtime.Record) []byte {
	t.Helper()
	contents, err := journal.Encode(record)
	if err != nil {
		t.Fatal(err)
	}
	return contents
}

func TestDecode(t *testing.T) {
	t.Run("partly written record is never decoded as another record", func(t *testing.T) {
		whole, other := encode(t, newRecord("a")), encode(t, newRecord("b"))
		for _, below := range [][]byte{make([]byte, 4096), append(bytes.Clone(other), make([]byte, 4096)...)} {
			for n := range len(whole) {
				contents := append(bytes.Clone(whole[:n]), below[n:]...)
				got, err := journal.Decode(contents)
				switch {
				case errors.Is(err, journal.ErrFree), errors.Is(err, journal.ErrDamaged):
				case err != nil:
					t.Fatalf("%d bytes: %v", n, err)
				case got.Job == "a" && bytes.HasPrefix(contents, whole): // the remaining bytes are the same
				case got.Job == "b" && bytes.HasPrefix(contents, other):
				case got.Job == "b" && got.Stage == runtime.RecordHandedOff: // the line of b is complete
				default:
					t.Fatalf("%d bytes: got %s", n, got)
				}
			}
		}
	})

	t.Run("partly written slot never has the stage claimed", func(t *testing.T) {
		record := newRecord("a")
		before := encode(t, record)
		record.Stage = runtime.RecordHandedOff
		record.Progress = runtime.Progress{Step: 3, Lines: 12, Status: runtime.Running}
		after := encode(t, record)
		for n := 1; n <= 512; n++ {
			contents := append(bytes.Clone(after[:n]), before[n:]...)
			got, err := journal.Decode(contents)
			if bytes.Equal(contents, before) { // the first bytes are the same
				continue
			}
			if err != nil || got.Stage != runtime.RecordHandedOff {
				t.Fatalf("%d bytes: got %s (%v)", n, got, err)
			}
		}
	})

	t.Run("record that is too large is not encoded", func(t *testing.T) {
		record := newRecord("a")
		record.Token = secret.New(strings.Repeat("x", 4<<20))
		if _, err := journal.Encode(record); err == nil || strings.Contains(err.Error(), "xxx") {
			t.Errorf("got %v, want an error without the token", err)
		}
	})
}
