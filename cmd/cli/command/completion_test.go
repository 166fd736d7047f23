package command

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files")

// small returns a program whose commands have each kind of flag and argument.
func small() Program {
	var p string
	var b bool
	commands := []Command{
		{Name: "check", Help: "check files: all of them", Forms: []Form{{
			Optional(String(&p, "format", OneOf("text", "json"), "text or [json]")),
			Optional(Bool(&b, "strict", "don't forgive")), Argument("FILE...", File),
		}}},
		{Name: "tell", Help: `tell \ what it's about`, Forms: []Form{{
			AnyOf(
				String(&p, "target", OneOf("docker", "ecs", "process"), "where: docker, ecs or process"),
				String(&p, "token-file", File, "file to read"), String(&p, "name", Name, "any name"),
			),
			Argument("[KEY]", Key),
		}}},
		{Name: "shell", Help: "name a shell", Forms: []Form{{Argument("bash|zsh", OneOf("bash", "zsh"))}}},
		{Name: "group", Help: "two commands", Commands: []Command{
			{
				Name: "first", Help: "take a file",
				Forms: []Form{{Optional(Bool(&b, "dry", "do nothing")), Argument("FILE", File)}},
			},
			{Name: "second", Help: "take nothing", Forms: []Form{{}}},
		}},
		{Name: "end", Help: "take nothing", Forms: []Form{{}}},
	}
	return Program{Name: "cmwa", Commands: commands, KeyNames: "explain --names"}
}

// TestProgramScript compares the scripts with golden files. Tests of cmd/cmwa run the
// script for bash. No test needs zsh or fish.
func TestProgramScript(t *testing.T) {
	for name, script := range map[string]string{
		"bash": small().bashScript(), "zsh": small().zshScript(), "fish": small().fishScript(),
	} {
		golden := filepath.Join("testdata", "completion."+name)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), script); diff != "" {
			t.Errorf("the script differs from %s; if it is right, run the test with -update:\n%s", golden, diff)
		}
	}
}
