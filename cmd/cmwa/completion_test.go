package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
)

var update = flag.Bool("update", false, "write golden files")

// bash completes a command line as bash itself does: it reads the script, and
// calls the function that the script has registered.
func bash(t *testing.T, args ...string) []string {
	t.Helper()
	script := fileOf(t, "cmwa.bash", cmwa(nil, "completion", "bash").stdout)
	const asked = `set -eu
source "$1"
shift
[[ $(complete -p cmwa) == "complete -o default -F _cmwa cmwa" ]]
compopt() { echo "compopt $*"; } # the real one fails outside of an interactive completion
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_cmwa
printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.Command("bash", append([]string{"--norc", "--noprofile", "-c", asked, "bash", script}, args...)...)
	cmd.Env = []string{"PATH=" + filepath.Dir(staticCmwa(t)) + ":" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bash: %v\n%s", err, out)
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	return slices.DeleteFunc(answers, func(answer string) bool { return answer == "" })
}

// noFiles is the command of the script that turns off readline's completion of files.
const noFiles = "compopt +o default"

func TestCompletion(t *testing.T) {
	t.Parallel()
	t.Run("bash completes command lines", func(t *testing.T) {
		for line, want := range map[string][]string{
			"cmwa ex":                       {noFiles, "explain"},
			"cmwa conf":                     {noFiles, "configure", "config"},
			"cmwa stat":                     {noFiles, "status"},
			"cmwa schema --":                {noFiles, "--format", "--help"},
			"cmwa schema --format ":         {noFiles, "json", "json-standard", "cue"},
			"cmwa schema --format = c":      {noFiles, "cue"},
			"cmwa schema --format =":        {noFiles, "json", "json-standard", "cue"},
			"cmwa vet --format s":           {noFiles, "sarif"},
			"cmwa vet ":                     nil,
			"cmwa plan one.yaml ":           nil,
			"cmwa run --config ":            nil,
			"cmwa run ":                     {noFiles},
			"cmwa config --o":               {noFiles, "--origin"},
			"cmwa completion ":              {noFiles, "bash", "zsh", "fish"},
			"cmwa explain polling_":         {noFiles, "polling_interval", "polling_interval_override"},
			"cmwa explain ecs.su":           {noFiles, "ecs.subnets"},
			"cmwa explain PULUMI_AGENT_SYS": {noFiles, "PULUMI_AGENT_SYSLOG"},
			"cmwa explain missing-t":        {noFiles, "missing-token"},
			"cmwa help conf":                {noFiles, "configure", "config"},
		} {
			if got := bash(t, strings.Split(line, " ")...); !slices.Equal(got, want) {
				t.Errorf("%q: got %q, want %q", line, got, want)
			}
		}
	})

	t.Run("bash completes every command and every flag", func(t *testing.T) {
		all := bash(t, "cmwa", "")
		for _, c := range newProgram(context.Background(), stdio{}).Commands {
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
	})

	// This fails for a new flag without known values. The list has the flags that take
	// any text.
	t.Run("every flag has known values", func(t *testing.T) {
		free := []string{
			"configure --organization", "configure --pool-id", "configure --service-url",
			"pod --job-image", "pod --operation", "pod --organization", "pod --pool", "pod --project", "pod --stack",
			"run --service-url-pin", "status --url",
		}
		for _, c := range newProgram(context.Background(), stdio{}).Commands {
			for _, f := range c.Options() {
				known := f.Takes == nil || f.Takes.Completed()
				if name := c.Name + " --" + f.Name; known == slices.Contains(free, name) {
					t.Errorf("%s has known values: %t, want %t", name, known, !known)
				}
			}
		}
	})

	t.Run("cmwa explain --names prints every name in the schema", func(t *testing.T) {
		names := schema.Names()
		if got := cmwa(nil, "explain", "--names"); got.stdout != strings.Join(names, "\n")+"\n" || got.code != 0 {
			t.Errorf("%+v", got)
		}
		for _, name := range names {
			if strings.ContainsAny(name, " \t'\"$`\\") {
				t.Errorf("a shell cannot take %q as one plain argument", name)
			}
		}
	})
}

func TestNewProgramUsage(t *testing.T) {
	var got []string
	for _, c := range newProgram(context.Background(), stdio{}).Commands {
		got = append(got, strings.Join(c.Usage("cmwa"), " | "))
	}
	want := []string{
		"cmwa run [--config FILE] [--service-url-pin URL] [--dry-run]",
		"cmwa status [--config FILE | --url URL] [--json] [--watch]",
		"cmwa jobs COMMAND",
		"cmwa pause [--config FILE] POOL",
		"cmwa resume [--config FILE] POOL",
		"cmwa drain [--config FILE] [--wait]",
		"cmwa doctor [--config FILE] [--json] [--exchange]",
		"cmwa vet [--format text|json|sarif|github] [--pod] [--local] [--strict] [FILE...]",
		"cmwa plan [--format text|json] OLD NEW | " +
			"cmwa plan --live [--format text|json] [--config FILE] NEW",
		"cmwa pod [--job-image IMAGE] [--pool NAME] [--organization NAME] [--project NAME] [--stack NAME] " +
			"[--operation NAME] [--format yaml|json | -o yaml|json] [FILE]",
		"cmwa configure [FLAGS]",
		"cmwa config [--config FILE] [--origin] [--format yaml|json]",
		"cmwa migrate [FILE]",
		"cmwa explain [--names] [KEY]",
		"cmwa schema [--format json|json-standard|cue]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
