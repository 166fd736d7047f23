package command

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestCommand(t *testing.T) {
	var p string
	var b bool
	c := Command{Name: "plan", Forms: []Form{
		{Optional(String(&p, "format", OneOf("text", "json"), "")), Argument("OLD", File), Argument("NEW", File)},
		{
			Required(Bool(&b, "live", "")), Optional(String(&p, "config", File, ""), String(&p, "url", URL, "")),
			Argument("NEW", File),
		},
	}}
	want := []string{
		"cmwa plan [--format text|json] OLD NEW",
		"cmwa plan --live [--config FILE | --url URL] NEW",
	}
	if got := c.Usage("cmwa"); !slices.Equal(got, want) {
		t.Errorf("usage %q, want %q", got, want)
	}
	var names []string
	for _, o := range c.Options() {
		names = append(names, o.Name)
	}
	if want := []string{"config", "format", "live", "url"}; !slices.Equal(names, want) {
		t.Errorf("flags %q, want %q", names, want)
	}
}

// program returns a program with commands of each kind. A command that runs writes its
// arguments to out, and returns an error for the argument "wrong" or the flag --strict.
func program(out *[]string) Program {
	failure := errors.New("no disk")
	var strict bool
	var format, config string
	run := func(_ context.Context, args []string) error {
		*out = args
		switch {
		case slices.Equal(args, []string{"wrong"}):
			return cli.Usagef("wrong")
		case strict:
			return failure
		}
		return nil
	}
	flags := Optional(Bool(&strict, "strict", "fail"), String(&format, "format", OneOf("text", "json"), "format"))
	files := []Form{{flags, Argument("[FILE...]", File)}}
	return Program{Name: "cmwa", Help: "an agent", Commands: []Command{
		{Name: "vet", Help: "check files", Long: "A paragraph.\n\n  as it is", Forms: files, Run: run},
		{Name: "plan", Forms: []Form{{flags, Argument("OLD", File), Argument("NEW", File)}}, Run: run, UsageCode: 1},
		{Name: "run", Forms: []Form{{Optional(String(&config, "config", File, ""))}}, Run: run},
		{Name: "pool", Help: "work with pools", Commands: []Command{
			{Name: "create", Help: "create a pool", Forms: []Form{{flags, Argument("NAME", Name)}}, Run: run},
			{Name: "list", Forms: []Form{{}}, Run: run},
		}},
	}}
}

func TestProgramRun(t *testing.T) {
	for line, want := range map[string]struct {
		code   int
		stderr string // complete, or after "..." only the end
	}{
		"vet":                 {0, ""},
		"vet --strict":        {1, "cmwa: no disk\n"},
		"vet a --strict b":    {1, "cmwa: no disk\n"},
		"vet wrong":           {2, "cmwa: wrong\n"},
		"vet --stirct":        {2, "cmwa: unknown flag --stirct: did you mean --strict?\n"},
		"vet a -stirct=x":     {2, "cmwa: unknown flag --stirct: did you mean --strict?\n"},
		"vet --hepl":          {2, "cmwa: unknown flag --hepl: did you mean --help?\n"},
		"vet --xyzzy":         {2, "cmwa: unknown flag --xyzzy: see cmwa vet --help\n"},
		"vet --strict=maybe":  {2, "cmwa: --strict takes no value\n"},
		"vet --format":        {2, "cmwa: --format needs a value\n"},
		"vet --format secret": {2, "cmwa: --format must be one of text, json\n"},
		"plan wrong":          {1, "cmwa: usage: cmwa plan [--strict | --format text|json] OLD NEW\n"},
		"plan --xyzzy":        {1, "cmwa: unknown flag --xyzzy: see cmwa plan --help\n"},
		"plan a b --xyzzy":    {1, "cmwa: unknown flag --xyzzy: see cmwa plan --help\n"},
		"plan a b --strict":   {1, "cmwa: no disk\n"},
		"run a":               {2, "cmwa: run takes no argument: name a file with --config\n"},
		"pool list a":         {2, "cmwa: list takes no argument\n"},
		"pool create":         {2, "cmwa: usage: cmwa pool create [--strict | --format text|json] NAME\n"},
		"pool create a":       {0, ""},
		"pool craete":         {2, "cmwa: unknown command \"craete\": did you mean create?\n"},
		"pool":                {2, "...cmwa: missing command\n"},
		"plna":                {2, "cmwa: unknown command \"plna\": did you mean plan?\n"},
		"x":                   {2, "cmwa: unknown command \"x\": see cmwa --help\n"},
		"--verison":           {2, "cmwa: unknown flag --verison: did you mean --version?\n"},
		"--strict vet":        {2, "cmwa: --strict must follow the command: cmwa COMMAND --strict\n"},
		"help plna":           {2, "cmwa: unknown command \"plna\": did you mean plan?\n"},
		"completion tcsh":     {2, "cmwa: no script for this shell: name one of bash, zsh, fish\n"},
		"":                    {2, "...cmwa: missing command\n"},
	} {
		t.Run(line, func(t *testing.T) {
			var args []string
			var stdout, stderr bytes.Buffer
			code := cli.Exit(&stderr, "cmwa", program(&args).Run(t.Context(), strings.Fields(line), &stdout, &stderr))
			end, only := strings.CutPrefix(want.stderr, "...")
			if code != want.code || !strings.HasSuffix(stderr.String(), end) || !only && stderr.String() != end ||
				stdout.Len() > 0 {
				t.Errorf("exit code %d, stdout %q, stderr %q, want %d, %q", code, &stdout, &stderr, want.code,
					want.stderr)
			}
		})
	}
}

func TestProgramHelp(t *testing.T) {
	const vet = "cmwa vet: check files\n\n" +
		"Usage:\n  cmwa vet [--strict | --format text|json] [FILE...]\n\n" +
		"A paragraph.\n\n  as it is\n\n" +
		"Flags:\n  --format text|json\n      format\n  --strict\n      fail\n"
	const create = "cmwa pool create: create a pool\n\n" +
		"Usage:\n  cmwa pool create [--strict | --format text|json] NAME\n"
	const version = "cmwa dev\ncommit: "
	for line, want := range map[string]string{
		"vet --help": vet, "vet -h": vet, "vet a --help": vet, "help vet": vet, "help vet --help": "cmwa help: ",
		"pool create -h": create, "help pool create": create, "help pool": "cmwa pool: work with pools\n",
		"--help": "cmwa: an agent\n", "-h": "cmwa: an agent\n", "help": "cmwa: an agent\n",
		"--version": version, "-v": version, "version": version,
	} {
		t.Run(line, func(t *testing.T) {
			var args []string
			var stdout, stderr bytes.Buffer
			code := cli.Exit(&stderr, "cmwa", program(&args).Run(t.Context(), strings.Fields(line), &stdout, &stderr))
			if code != 0 || !strings.HasPrefix(stdout.String(), want) || stderr.Len() > 0 {
				t.Errorf("exit code %d, stderr %q, stdout\n%s", code, &stderr, &stdout)
			}
		})
	}
	t.Run("lines are at most 80 columns wide", func(t *testing.T) {
		long := Command{
			Name: "vet", Help: strings.Repeat("text ", 40), Long: strings.Repeat("text ", 40), Forms: []Form{{}},
		}
		for line := range strings.Lines(long.help("cmwa")) {
			if len(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%d columns: %s", len(line)-1, line)
			}
		}
	})
}

func TestInterspersed(t *testing.T) {
	for line, want := range map[string]string{
		"a --strict b":     "a b: no disk",
		"- a":              "- a: <nil>",
		"a -- --strict b":  "a --strict b: <nil>",
		"-- --strict b":    "--strict b: <nil>",
		"--strict -- -a":   "-a: no disk",
		"--strict=false a": "a: <nil>",
	} {
		var args []string
		var out bytes.Buffer
		err := program(&args).Run(t.Context(), append([]string{"vet"}, strings.Fields(line)...), &out, &out)
		got := strings.Join(args, " ") + ": <nil>"
		if err != nil {
			got = strings.Join(args, " ") + ": " + err.Error()
		}
		if got != want || out.Len() > 0 {
			t.Errorf("%s: %q, want %q; output %q", line, got, want, &out)
		}
	}
}
