package command

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files")

// small returns commands with one of each sort of flag and argument.
func small() []Command {
	var p string
	var b bool
	return []Command{
		{Name: "check", Help: "check files: all of them", Forms: []Form{{
			Optional(String(&p, "format", OneOf("text", "json"), "text or [json]")),
			Optional(Bool(&b, "strict", "don't forgive")), Argument("FILE...", File),
		}}},
		{Name: "tell", Help: `tell \ what it's about`, Forms: []Form{{
			AnyOf(
				String(&p, "target", OneOf("docker", "ecs", "process"), "where: docker, ecs or process"),
				String(&p, "token-file", File, "file to read"), String(&p, "name", Name, "any word"),
			),
			Argument("[KEY]", Key),
		}}},
		{Name: "shell", Help: "name a shell", Forms: []Form{{Argument("bash|zsh", OneOf("bash", "zsh"))}}},
		{Name: "end", Help: "take nothing", Forms: []Form{{}}},
	}
}

func TestTheScriptsForShellsThatAreNotHere(t *testing.T) {
	for name, script := range map[string]string{"zsh": zshScript(small()), "fish": fishScript(small())} {
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
			t.Errorf("run with -update if this is right:\n%s", diff)
		}
	}
}
