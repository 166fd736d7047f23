package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
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
	all := bash(t, "cmwa", "")
	for _, c := range commands(context.Background(), streams{}) {
		if !slices.Contains(all, c.Name) {
			t.Errorf("%s is not completed", c.Name)
		}
		flags := bash(t, "cmwa", c.Name, "-")
		for _, f := range c.Options() {
			spelling := "--" + f.Name
			if len(f.Name) == 1 {
				spelling = "-" + f.Name
			}
			if !slices.Contains(flags, spelling) {
				t.Errorf("%s %s is not completed", c.Name, spelling)
			}
		}
	}
}

// TestWhatAFlagTakesIsKnown fails for a new flag that names no values. The flags
// that take any text are listed here.
func TestWhatAFlagTakesIsKnown(t *testing.T) {
	free := []string{
		"configure --organization", "configure --pool-id", "configure --service-url", "plan --url",
		"pod --job-image", "pod --pool", "status --url",
	}
	for _, c := range commands(context.Background(), streams{}) {
		for _, f := range c.Options() {
			known := f.Takes == nil || f.Takes.Completed()
			if name := c.Name + " --" + f.Name; known == slices.Contains(free, name) {
				t.Errorf("%s: what it takes is known: %t", name, known)
			}
		}
	}
}

func TestCommandUsage(t *testing.T) {
	var got []string
	for _, c := range commands(context.Background(), streams{}) {
		got = append(got, strings.Join(c.Usage(), " | "))
	}
	want := []string{
		"cmwa run [--config FILE] [--dry-run]",
		"cmwa status [--config FILE | --url URL] [--json] [--watch]",
		"cmwa doctor [--config FILE] [--json] [--exchange]",
		"cmwa vet [--format text|json|sarif|github] [--pod] [FILE...]",
		"cmwa plan [--format text|json] OLD NEW | cmwa plan --live [--config FILE | --url URL] NEW",
		"cmwa pod [--job-image IMAGE] [--pool NAME] [--format yaml|json | -o yaml|json] [FILE]",
		"cmwa configure [FLAGS]",
		"cmwa config [--config FILE] [--origin] [--format yaml|json]",
		"cmwa explain [--names] [KEY]",
		"cmwa schema [--format json|cue]",
		"cmwa completion bash|zsh|fish",
		"cmwa version",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEveryScriptNamesEveryCommandAndEveryFlag(t *testing.T) {
	for _, shell := range command.Shells() {
		script := tell(nil, "completion", shell)
		if script.code != 0 || script.stderr != "" {
			t.Fatal(shell, script)
		}
		for _, c := range commands(context.Background(), streams{}) {
			if !regexp.MustCompile(`[^a-z-]` + c.Name + `[^a-z-]`).MatchString(script.stdout) {
				t.Errorf("the script of %s lacks %s", shell, c.Name)
			}
			for _, f := range c.Options() {
				form := "(--|-l )"
				if len(f.Name) == 1 {
					form = "(-|-s )"
				}
				if !regexp.MustCompile(`[^a-z-]` + form + f.Name + `[^a-z-]`).MatchString(script.stdout) {
					t.Errorf("the script of %s lacks %s --%s", shell, c.Name, f.Name)
				}
			}
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
