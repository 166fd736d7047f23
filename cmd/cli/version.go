package cli

import "runtime/debug"

// version is set when a release is built, by the linker flag -X.
var version = ""

// Version returns the version of this build: the one that was set at a release,
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
