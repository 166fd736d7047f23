package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
				String(&p, "o", OneOf("yaml"), "short"),
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
	return Program{Name: "cmwa", Commands: commands, Keys: func() []string { return []string{"token", "tags"} }}
}

// completions are the texts that complete command lines, without descriptions. The last word, after
// the last space, is the one to complete.
var completions = map[string][]string{
	"":                           {"check", "tell", "shell", "group", "end", "completion", "version", "help"},
	"c":                          {"check", "completion"},
	"nothing ":                   nil,
	"check ":                     {filesMark},
	"check a ":                   {filesMark},
	"check --":                   {"--format", "--strict", "--help"},
	"check --s":                  {"--strict"},
	"check --strict ":            {filesMark},
	"check --format ":            {"text", "json"},
	"check a --format j":         {"json"},
	"check -format j":            {"json"},
	"check --format=j":           {"json"},
	"check --format=":            {"text", "json"},
	"check --format x ":          {filesMark},
	"tell ":                      {"token", "tags"},
	"tell to":                    {"token"},
	"tell -o ":                   {"yaml"},
	"tell -":                     {"--name", "-o", "--target", "--token-file", "--help"},
	"tell --token-file ":         {filesMark},
	"tell --token-file=":         {filesMark},
	"tell --name ":               nil,
	"tell --target=docker --tok": {"--token-file"},
	"shell z":                    {"zsh"},
	"group ":                     {"first", "second"},
	"group x ":                   nil,
	"group first --d":            {"--dry"},
	"group first ":               {filesMark},
	"group second ":              nil,
	"help sh":                    {"shell"},
	"completion f":               {"fish"},
}

func TestProgramComplete(t *testing.T) {
	for line, want := range completions {
		t.Run(line, func(t *testing.T) {
			var got []string
			for _, line := range small().complete(strings.Split(line, " ")) {
				text, _, _ := strings.Cut(line, "\t")
				got = append(got, text)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("bash splits a flag and its value", func(t *testing.T) {
		for line, want := range map[string]string{"check --format = j": "json", "check --format =": "text json"} {
			if got := strings.Join(small().complete(strings.Split(line, " ")), " "); got != want {
				t.Errorf("%s: %q, want %q", line, got, want)
			}
		}
	})
	t.Run("the hidden command prints completions with descriptions", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		err := small().Run(t.Context(), []string{"__complete", "check", "--s"}, &stdout, &stderr)
		if err != nil || stdout.String() != "--strict\tdon't forgive\n" || stderr.Len() > 0 {
			t.Errorf("%v %q %q", err, &stdout, &stderr)
		}
		if err := small().Run(t.Context(), []string{"__complete"}, &stdout, &stderr); err != nil {
			t.Error(err)
		}
	})
}

// TestProgramScript runs the scripts in the shells that are installed, with a program that has fixed
// completions. Tests of cmd/cmwa run the script for bash with the real program.
func TestProgramScript(t *testing.T) {
	const program = `#!/bin/sh
case "$*" in
"__complete tell --name it's ") printf 'token\ttext: a\ntags\n' ;;
"__complete tell ") echo :files ;;
esac
`
	for shell, test := range map[string]struct{ script, want string }{
		"bash": {`source "$SCRIPT"
			compopt() { echo "compopt $*"; }
			COMP_WORDS=(cmwa tell --name "it's" "") COMP_CWORD=4; _cmwa; echo "${COMPREPLY[*]}"
			COMP_WORDS=(cmwa tell ""); COMP_CWORD=2; _cmwa; echo "${#COMPREPLY[*]}"
			`, "compopt +o default\ntoken tags\n0\n"},
		"zsh": {`compdef() { : }; compset() { : }; _files() { print files }
			_describe() { print -rl -- "${(@P)2}" }
			source "$SCRIPT"
			words=(cmwa tell --name "it\\'s" ""); CURRENT=5; _cmwa
			words=(cmwa tell ""); CURRENT=3; _cmwa
			`, "token:text\\: a\ntags\nfiles\n"},
		"fish": {`source $SCRIPT; complete -C "cmwa tell --name it\'s "`, "tags\ntoken\ttext: a\n"},
	} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			switch {
			case err != nil && os.Getenv("CI") == "true":
				t.Fatal(err)
			case err != nil:
				t.Skip(err)
			}
			directory := t.TempDir()
			for name, content := range map[string]string{"cmwa": program, "script": small().Script(shell)} {
				if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(path, "-c", test.script)
			cmd.Env = append(os.Environ(), "SCRIPT="+filepath.Join(directory, "script"), "HOME="+directory,
				"PATH="+directory+":"+os.Getenv("PATH"))
			out, err := cmd.Output()
			if diff := cmp.Diff(test.want, string(out)); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}
