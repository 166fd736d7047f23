package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Command describes one command.
type Command struct {
	Name, Help, Long string
	Forms            []Form // at least one, which may be empty
	UsageCode        int    // exit code of a usage error; 0 is that of the other commands
	Daemon           bool   // runs for days: its memory counts more than its CPU time
	Run              func(ctx context.Context, flags *flag.FlagSet, args []string) error
}

// Form is one way to write the command line of a command.
type Form []Item

// Item is a part of a form: flags, or an argument.
type Item struct {
	text    string // in the usage line
	options []Option
	takes   Values // of an argument
}

// Option is one flag.
type Option struct {
	Name   string
	help   string
	Takes  *Values // nil is a flag without a value
	define func(*flag.FlagSet)
}

// Values describes what a flag or an argument takes. The kinds that shells complete
// are files, keys of the configuration, and words of a list.
type Values struct {
	name      string // in the usage line; empty is the words
	file, key bool
	words     []string
}

// File is the name of a file.
var File = Values{name: "FILE", file: true}

// Key is a key of the configuration.
var Key = Values{name: "KEY", key: true}

// URL is a URL, which shells do not complete.
var URL = Values{name: "URL"}

// Name is a name that the service gave, which shells do not complete.
var Name = Values{name: "NAME"}

// Image is a container image, which shells do not complete.
var Image = Values{name: "IMAGE"}

// OneOf is one of a few words.
func OneOf(words ...string) Values { return Values{words: words} }

// Completed reports whether shells complete the values.
func (v Values) Completed() bool { return v.file || v.key || len(v.words) > 0 }

func (v Values) String() string {
	if v.name == "" {
		return strings.Join(v.words, "|")
	}
	return v.name
}

// Bool returns a flag without a value, which sets a variable to true.
func Bool(p *bool, name, help string) Option {
	return Option{Name: name, help: help, define: func(set *flag.FlagSet) { set.BoolVar(p, name, *p, help) }}
}

// String returns a flag with a value, whose default the variable holds.
func String(p *string, name string, takes Values, help string) Option {
	define := func(set *flag.FlagSet) { set.StringVar(p, name, *p, help) }
	return Option{Name: name, help: help, Takes: &takes, define: define}
}

func (o Option) String() string {
	if o.Takes == nil {
		return o.spelling()
	}
	return o.spelling() + " " + o.Takes.String()
}

// spelling returns the flag as people write it: one dash before one letter, two
// before a word.
func (o Option) spelling() string {
	if len(o.Name) == 1 {
		return "-" + o.Name
	}
	return "--" + o.Name
}

// Required returns the item of a flag that tells its form from others.
func Required(o Option) Item { return Item{text: o.String(), options: []Option{o}} }

// Optional returns the item of a flag that may be given, or of one of several.
func Optional(options ...Option) Item {
	var texts []string
	for _, o := range options {
		texts = append(texts, o.String())
	}
	return Item{text: "[" + strings.Join(texts, " | ") + "]", options: options}
}

// AnyOf returns the item of flags that are too many for a usage line.
func AnyOf(options ...Option) Item { return Item{text: "[FLAGS]", options: options} }

// Argument returns the item of an argument.
func Argument(text string, takes Values) Item { return Item{text: text, takes: takes} }

// Usage returns a usage line for each form.
func (c Command) Usage() []string {
	var lines []string
	for _, f := range c.Forms {
		line := "cmwa " + c.Name
		for _, i := range f {
			line += " " + i.text
		}
		lines = append(lines, line)
	}
	return lines
}

// Options returns all flags, sorted by name.
func (c Command) Options() []Option {
	named := map[string]bool{}
	var all []Option
	for _, f := range c.Forms {
		for _, i := range f {
			for _, o := range i.options {
				if !named[o.Name] {
					all = append(all, o)
				}
				named[o.Name] = true
			}
		}
	}
	slices.SortFunc(all, func(a, b Option) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// takes returns what the first argument is.
func (c Command) takes() Values {
	for _, i := range c.Forms[0] {
		if len(i.options) == 0 {
			return i.takes
		}
	}
	return Values{}
}

// shortGC is the target percentage of the garbage collector for commands that end
// within milliseconds. With the default of 100, collecting a heap of a few
// megabytes is a fifth of their CPU time.
const shortGC = 400

// parser returns the command as the flag library takes it.
func (c Command) parser(stderr io.Writer) *ffcli.Command {
	set := flagSet("cmwa "+c.Name, stderr)
	for _, o := range c.Options() {
		o.define(set)
	}
	return &ffcli.Command{
		Name: c.Name, ShortUsage: strings.Join(c.Usage(), " | "), ShortHelp: c.Help, LongHelp: c.Long, FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			if !c.Daemon {
				debug.SetGCPercent(shortGC)
			}
			return c.Run(ctx, set, args)
		},
	}
}

// flagSet returns an empty set of flags that prints usage to stderr.
func flagSet(name string, stderr io.Writer) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(stderr)
	return set
}

// tree returns the command cmwa, with all commands below it.
func tree(all []Command, stderr io.Writer) *ffcli.Command {
	root := &ffcli.Command{
		Name: "cmwa", ShortUsage: "cmwa COMMAND [FLAGS]",
		ShortHelp: "a workflow agent for Pulumi Cloud", FlagSet: flagSet("cmwa", stderr),
	}
	for _, c := range all {
		root.Subcommands = append(root.Subcommands, c.parser(stderr))
	}
	root.Exec = func(_ context.Context, args []string) error {
		if len(args) > 0 {
			return cli.Usage(unknownCommand(args[0], all))
		}
		fmt.Fprintln(stderr, ffcli.DefaultUsageFunc(root))
		return cli.Usagef("name a command")
	}
	return root
}

// unknownCommand returns the error for a command that does not exist.
func unknownCommand(word string, all []Command) error {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	if best := position.Closest(word, names); best != "" {
		return fmt.Errorf("there is no command %q: did you mean %s?", word, best)
	}
	return fmt.Errorf("there is no command %q: the commands are %s", word, strings.Join(names, ", "))
}

// Run parses a command line and runs its command. Usage goes to stderr.
func Run(ctx context.Context, all []Command, args []string, stderr io.Writer) error {
	root := tree(all, stderr)
	err := root.Parse(args)
	switch {
	case err == nil:
		err = root.Run(ctx)
	case !errors.Is(err, flag.ErrHelp):
		err = cli.Usage(err)
	}
	var usage cli.UsageError
	for i, sub := range root.Subcommands {
		if code := all[i].UsageCode; sub.FlagSet.Parsed() && code != 0 && errors.As(err, &usage) {
			return cli.UsageError{Err: err, Code: code}
		}
	}
	return err
}

// Interspersed parses flags that stand between and after files, and returns the
// files.
func Interspersed(flags *flag.FlagSet, args []string) (files []string, err error) {
	var rest []string
	if end := slices.Index(args, "--"); end >= 0 {
		args, rest = args[:end], args[end+1:]
	}
	for len(args) > 0 {
		if args[0] == "-" || !strings.HasPrefix(args[0], "-") {
			files, args = append(files, args[0]), args[1:]
			continue
		}
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, cli.Usage(err)
		}
		args = flags.Args()
	}
	return append(files, rest...), nil
}
