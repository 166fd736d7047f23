package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestUsage(t *testing.T) {
	var p string
	var b bool
	c := Command{Name: "plan", Forms: []Form{
		{Optional(String(&p, "format", OneOf("text", "json"), "")), Argument("OLD", File), Argument("NEW", File)},
		{Required(Bool(&b, "live", "")), Optional(String(&p, "config", File, ""), String(&p, "url", URL, "")), Argument("NEW", File)},
	}}
	want := []string{
		"cmwa plan [--format text|json] OLD NEW",
		"cmwa plan --live [--config FILE | --url URL] NEW",
	}
	if got := c.Usage(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	var names []string
	for _, o := range c.Options() {
		names = append(names, o.Name)
	}
	if want := []string{"config", "format", "live", "url"}; !slices.Equal(names, want) {
		t.Errorf("flags %q", names)
	}
}

func TestRun(t *testing.T) {
	failure := errors.New("no disk")
	all := func() []Command {
		var strict bool
		run := func(_ context.Context, _ *flag.FlagSet, args []string) error {
			switch {
			case slices.Equal(args, []string{"wrong"}):
				return cli.Usagef("wrong")
			case strict:
				return failure
			}
			return nil
		}
		forms := []Form{{Optional(Bool(&strict, "strict", "")), Argument("[FILE]", File)}}
		return []Command{
			{Name: "vet", Forms: forms, Run: run},
			{Name: "plan", Forms: forms, Run: run, UsageCode: 1},
		}
	}
	for line, want := range map[string]struct {
		code   int
		stderr string
	}{
		"vet":            {0, ""},
		"vet --strict":   {1, "no disk"},
		"vet wrong":      {2, "wrong"},
		"vet --unknown":  {2, "not defined: -unknown"},
		"vet --help":     {0, ""},
		"plan wrong":     {1, "wrong"},
		"plan --unknown": {1, "not defined: -unknown"},
		"plan --strict":  {1, "no disk"},
		"plna":           {2, `there is no command "plna": did you mean plan?`},
		"x":              {2, "the commands are plan, vet"},
		"--unknown":      {2, "not defined: -unknown"},
		"":               {2, "name a command"},
	} {
		t.Run(line, func(t *testing.T) {
			var stderr bytes.Buffer
			code := cli.Exit(&stderr, "cmwa", Run(t.Context(), all(), strings.Fields(line), io.Discard))
			if code != want.code || !strings.Contains(stderr.String(), want.stderr) {
				t.Errorf("exit code %d, %q", code, &stderr)
			}
		})
	}
}

func TestInterspersed(t *testing.T) {
	for line, want := range map[string]string{
		"a --strict b":      "a b strict",
		"- a":               "- a",
		"a -- --strict b":   "a --strict b",
		"--strict -- -a":    "-a strict",
		"--strict=false a ": "a",
	} {
		flags := flag.NewFlagSet("vet", flag.ContinueOnError)
		strict := flags.Bool("strict", false, "")
		got, err := Interspersed(flags, strings.Fields(line))
		if *strict {
			got = append(got, "strict")
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
}
