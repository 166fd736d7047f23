package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// These are set when a release is built, by the linker flag -X.
var (
	version = ""
	commit  = ""
	date    = "" // of the commit, in RFC 3339
)

// Version returns the version of this build: the one that was set for a release,
// or the one that the Go toolchain recorded.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// VersionText returns the output of the command version of a program: its version,
// commit and date, the version of Go, and the platform, one in each line. The commit
// and its date are those that were set for a release, or those that the Go toolchain
// recorded.
func VersionText(program string) string {
	revision, at := commit, date
	if info, ok := debug.ReadBuildInfo(); ok && revision == "" {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.time":
				at = s.Value
			}
		}
	}
	return fmt.Sprintf("%s %s\ncommit: %s\ndate: %s\ngo: %s\nplatform: %s/%s\n", program, Version(),
		cmp.Or(revision, "unknown"), cmp.Or(at, "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
