package schema_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets the heap grow further between two collections. The tests load many thousands of small files, and by
// default the garbage collector would use a third of the processor time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
