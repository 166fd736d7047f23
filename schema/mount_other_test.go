//go:build !linux

package schema_test

import "testing"

func mountReadOnly(t *testing.T, _ string) {
	t.Helper()
	t.Skip("only Linux has such mounts")
}
