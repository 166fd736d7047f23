package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/position"
)

// command describes one command. Its flag set, its usage text and its completions
// come from this description.
type command struct {
	name, help, long string
	forms            []form // at least one, which may be empty
	usageCode        int    // exit code of a usage error; 0 is that of the other commands
	daemon           bool   // runs for days: its memory counts more than its CPU time
	run              func(ctx context.Context, flags *flag.FlagSet, args []string) error
}

// form is one way to write the command line of a command.
type form []item

// item is a part of a form: flags, or an argument.
type item struct {
	text    string // in the usage line
	options []option
	takes   values // of an argument
}

// option is one flag.
type option struct {
	name, help string
	takes      *values // nil is a flag without a value
	define     func(*flag.FlagSet)
}

// values describes what a flag or an argument takes, as far as it can be completed:
// the name of a file, a key of the configuration, or one of a few words. The name
// stands in the usage line; without a name, the words do.
type values struct {
	name      string
	file, key bool
	words     []string
}

func (v values) String() string {
	if v.name == "" {
		return strings.Join(v.words, "|")
	}
	return v.name
}

// aFile is the name of a file.
var aFile = values{name: "FILE", file: true}

// aURL is a URL, which cannot be completed.
var aURL = values{name: "URL"}

// aName is a name that the service gave, which cannot be completed.
var aName = values{name: "NAME"}

// oneOf is one of a few words.
func oneOf(words ...string) values { return values{words: words} }

// boolFlag returns a flag without a value, which sets a variable to true.
func boolFlag(p *bool, name, help string) option {
	return option{name: name, help: help, define: func(set *flag.FlagSet) { set.BoolVar(p, name, *p, help) }}
}

// stringFlag returns a flag with a value, whose default the variable holds.
func stringFlag(p *string, name string, takes values, help string) option {
	return option{name: name, help: help, takes: &takes, define: func(set *flag.FlagSet) { set.StringVar(p, name, *p, help) }}
}

func (o option) String() string {
	if o.takes == nil {
		return "--" + o.name
	}
	return "--" + o.name + " " + o.takes.String()
}

// required returns the item of a flag that tells the form from others.
func required(o option) item { return item{text: o.String(), options: []option{o}} }

// optional returns the item of a flag that may be given, or of one of several.
func optional(options ...option) item {
	var texts []string
	for _, o := range options {
		texts = append(texts, o.String())
	}
	return item{text: "[" + strings.Join(texts, " | ") + "]", options: options}
}

// anyOf returns the item of flags that are too many for a usage line.
func anyOf(options ...option) item { return item{text: "[FLAGS]", options: options} }

// argument returns the item of an argument.
func argument(text string, takes values) item { return item{text: text, takes: takes} }

// usage returns a usage line for each form.
func (c command) usage() []string {
	var lines []string
	for _, f := range c.forms {
		line := "cmwa " + c.name
		for _, i := range f {
			line += " " + i.text
		}
		lines = append(lines, line)
	}
	return lines
}

// options returns all flags, sorted by name.
func (c command) options() []option {
	named := map[string]bool{}
	var all []option
	for _, f := range c.forms {
		for _, i := range f {
			for _, o := range i.options {
				if !named[o.name] {
					all = append(all, o)
				}
				named[o.name] = true
			}
		}
	}
	slices.SortFunc(all, func(a, b option) int { return strings.Compare(a.name, b.name) })
	return all
}

// takes returns what the first argument is.
func (c command) takes() values {
	for _, i := range c.forms[0] {
		if len(i.options) == 0 {
			return i.takes
		}
	}
	return values{}
}

// shortGC is the target percentage of the garbage collector for commands that end
// within milliseconds. With the default of 100, collecting a heap of a few
// megabytes is a fifth of their CPU time.
const shortGC = 400

// parser returns the command as the flag library takes it.
func (c command) parser(s streams) *ffcli.Command {
	set := s.flags("cmwa " + c.name)
	for _, o := range c.options() {
		o.define(set)
	}
	return &ffcli.Command{
		Name: c.name, ShortUsage: strings.Join(c.usage(), " | "), ShortHelp: c.help, LongHelp: c.long, FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			if !c.daemon {
				debug.SetGCPercent(shortGC)
			}
			return c.run(ctx, set, args)
		},
	}
}

// tree returns the command cmwa, with all commands below it.
func tree(all []command, s streams) *ffcli.Command {
	root := &ffcli.Command{
		Name: "cmwa", ShortUsage: "cmwa COMMAND [FLAGS]",
		ShortHelp: "a workflow agent for Pulumi Cloud", FlagSet: s.flags("cmwa"),
	}
	for _, c := range all {
		root.Subcommands = append(root.Subcommands, c.parser(s))
	}
	root.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return cli.Usage(unknownCommand(args[0], all))
		}
		fmt.Fprintln(s.stderr, ffcli.DefaultUsageFunc(root))
		return cli.Usagef("name a command")
	}
	return root
}

func unknownCommand(word string, all []command) error {
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	if best := position.Closest(word, names); best != "" {
		return fmt.Errorf("there is no command %q: did you mean %s?", word, best)
	}
	return fmt.Errorf("there is no command %q: the commands are %s", word, strings.Join(names, ", "))
}

// runLine parses a command line and runs its command.
func runLine(ctx context.Context, all []command, args []string, s streams) error {
	root := tree(all, s)
	err := root.Parse(args)
	switch {
	case err == nil:
		err = root.Run(ctx)
	case !errors.Is(err, flag.ErrHelp):
		err = cli.Usage(err)
	}
	var usage cli.UsageError
	for i, sub := range root.Subcommands {
		if code := all[i].usageCode; sub.FlagSet.Parsed() && code != 0 && errors.As(err, &usage) {
			return cli.UsageError{Err: err, Code: code}
		}
	}
	return err
}
