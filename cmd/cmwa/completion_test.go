package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
)

var update = flag.Bool("update", false, "write golden files")

// told is what one command has said.
type told struct {
	code           int
	stdout, stderr string
}

// tell runs one command line inside the test, with an environment of its own.
func tell(environ []string, args ...string) told {
	var stdout, stderr bytes.Buffer
	ctx := context.Background()
	code := execute(ctx, ctx, args, streams{environ, strings.NewReader(""), &stdout, &stderr})
	return told{code, stdout.String(), stderr.String()}
}

// bash completes a command line as bash itself does: it reads the script, and
// calls the function that the script has registered.
func bash(t *testing.T, words ...string) []string {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "cmwa.bash")
	said := tell(nil, "completion", "bash")
	if err := os.WriteFile(script, []byte(said.stdout), 0o600); err != nil || said.code != 0 {
		t.Fatal(said, err)
	}
	const asked = `set -eu
source "$1"
shift
[[ $(complete -p cmwa) == "complete -o default -F _cmwa cmwa" ]]
compopt() { echo "compopt $*"; } # bash has it only while a person presses a key
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_cmwa
printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.Command("bash", append([]string{"--norc", "--noprofile", "-c", asked, "bash", script}, words...)...)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bash: %v\n%s", err, out)
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	return slices.DeleteFunc(answers, func(answer string) bool { return answer == "" })
}

// noFiles is how the script tells readline that a file is not wanted.
const noFiles = "compopt +o default"

func TestBashCompletesCommandLines(t *testing.T) {
	for line, want := range map[string][]string{
		"cmwa ex":                          {noFiles, "explain"},
		"cmwa conf":                        {noFiles, "configure", "config"},
		"cmwa stat":                        {noFiles, "status"},
		"cmwa schema --":                   {noFiles, "--format"},
		"cmwa schema --format ":            {noFiles, "json", "cue"},
		"cmwa schema --format = c":         {noFiles, "cue"},
		"cmwa schema --format =":           {noFiles, "json", "cue"},
		"cmwa schema -format j":            {noFiles, "json"},
		"cmwa schema x":                    {noFiles},
		"cmwa vet --format s":              {noFiles, "sarif"},
		"cmwa vet ":                        nil,
		"cmwa vet --format json ":          nil,
		"cmwa plan one.yaml ":              nil,
		"cmwa run --config ":               nil,
		"cmwa run ":                        {noFiles},
		"cmwa config --o":                  {noFiles, "--origin"},
		"cmwa config --config a.yaml --or": {noFiles, "--origin"},
		"cmwa completion ":                 {noFiles, "bash", "zsh", "fish"},
		"cmwa explain polling_":            {noFiles, "polling_interval", "polling_interval_override"},
		"cmwa explain ecs.su":              {noFiles, "ecs.subnets"},
		"cmwa explain PULUMI_AGENT_SYS":    {noFiles, "PULUMI_AGENT_SYSLOG"},
		"cmwa explain missing-t":           {noFiles, "missing-token"},
		"cmwa version ":                    {noFiles},
		"cmwa nothing ":                    {noFiles},
	} {
		words := strings.Split(line, " ")
		if diff := cmp.Diff(want, bash(t, words...), cmp.Transformer("empty", func(list []string) []string { return append([]string{}, list...) })); diff != "" {
			t.Errorf("%q:\n%s", line, diff)
		}
	}
}

func TestBashCompletesEveryCommandAndEveryFlag(t *testing.T) {
	ctx := context.Background()
	root := commands(ctx, streams{stderr: io.Discard})
	all := bash(t, "cmwa", "")
	for _, command := range root.Subcommands {
		if !slices.Contains(all, command.Name) {
			t.Errorf("%s is not completed", command.Name)
		}
		flags := bash(t, "cmwa", command.Name, "-")
		command.FlagSet.VisitAll(func(f *flag.Flag) {
			if !slices.Contains(flags, "--"+f.Name) {
				t.Errorf("%s --%s is not completed", command.Name, f.Name)
			}
		})
	}
}

// TestWhatAFlagTakesIsKnown reminds who adds a flag with few values to name them
// in the usage line. Those of which nothing can be known are listed here.
func TestWhatAFlagTakesIsKnown(t *testing.T) {
	free := []string{"configure --organization", "configure --pool-id", "configure --service-url", "plan --url", "status --url"}
	for _, command := range completed(commands(context.Background(), streams{stderr: io.Discard})) {
		for _, f := range command.flags {
			known := f.bool || f.value.file || f.value.key || len(f.value.words) > 0
			if name := command.name + " --" + f.name; known == slices.Contains(free, name) {
				t.Errorf("%s: what it takes is known: %t", name, known)
			}
		}
	}
}

// small is a tree of commands with one of each sort of flag and argument.
func small() *ffcli.Command {
	make := func(name, usage, help string, define func(*flag.FlagSet)) *ffcli.Command {
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		define(flags)
		return &ffcli.Command{Name: name, ShortUsage: usage, ShortHelp: help, FlagSet: flags}
	}
	return &ffcli.Command{Subcommands: []*ffcli.Command{
		make("check", "cmwa check [--format text|json] FILE...", "check files: all of them", func(f *flag.FlagSet) {
			f.String("format", "text", "text or [json]")
			f.Bool("strict", false, "don't forgive")
		}),
		make("tell", "cmwa tell [KEY]", `tell \ what it's about`, func(f *flag.FlagSet) {
			f.String("target", "", "where: docker, ecs or process")
			f.String("token-file", "", "file to read")
			f.String("name", "", "any word")
		}),
		make("shell", "cmwa shell bash|zsh", "name a shell", func(*flag.FlagSet) {}),
		make("end", "cmwa end", "take nothing", func(*flag.FlagSet) {}),
	}}
}

func TestTheScriptsForShellsThatAreNotHere(t *testing.T) {
	tree := completed(small())
	for name, script := range map[string]string{"zsh": zshScript(tree), "fish": fishScript(tree)} {
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

func TestEveryScriptNamesEveryCommandAndEveryFlag(t *testing.T) {
	root := commands(context.Background(), streams{stderr: io.Discard})
	for _, shell := range shells() {
		script := tell(nil, "completion", shell)
		if script.code != 0 || script.stderr != "" {
			t.Fatal(shell, script)
		}
		for _, command := range root.Subcommands {
			if !regexp.MustCompile(`[^a-z-]` + command.Name + `[^a-z-]`).MatchString(script.stdout) {
				t.Errorf("the script of %s lacks %s", shell, command.Name)
			}
			command.FlagSet.VisitAll(func(f *flag.Flag) {
				if !regexp.MustCompile(`(--|-l )` + f.Name + `[^a-z-]`).MatchString(script.stdout) {
					t.Errorf("the script of %s lacks %s --%s", shell, command.Name, f.Name)
				}
			})
		}
	}
}

func TestCompletionNeedsAShellThatItKnows(t *testing.T) {
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		if said := tell(nil, args...); said.code != cli.ExitUsage || !strings.Contains(said.stderr, "bash, zsh, fish") || said.stdout != "" {
			t.Errorf("%v: %+v", args, said)
		}
	}
}

func TestWhatIsCompletedForExplainCanBeExplained(t *testing.T) {
	names, err := schema.Names()
	if err != nil {
		t.Fatal(err)
	}
	if said := tell(nil, "explain", "--names"); said.stdout != strings.Join(names, "\n")+"\n" || said.code != 0 {
		t.Errorf("%+v", said)
	}
	for _, name := range names {
		if strings.ContainsAny(name, " \t'\"$`\\") {
			t.Errorf("a shell cannot take %q as one plain word", name)
		}
	}
}
