package command

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Program describes a program that has commands. It adds the commands help, version
// and completion.
type Program struct {
	Name     string // of the executable
	Help     string // one line, without the name
	Long     string // for the help of the program; see [Command.Long]
	Commands []Command

	// Keys returns the values of [Key], for completion. It is nil if no command takes a key.
	Keys func() []string
}

// Command describes one command, or a group of commands such as "pool" in
// "pool create".
type Command struct {
	Name  string
	Help  string // one line
	Long  string // paragraphs, which the help wraps; indented lines stay as they are
	Forms []Form // at least one, which may be empty; nil for a group

	// Run runs the command. Args has the arguments that are not flags; their number has
	// been checked against Forms. Flags may precede and follow them.
	Run func(ctx context.Context, args []string) error

	Commands  []Command // of a group, which has no forms and no Run
	UsageCode int       // exit code of a usage error; 0 means cli.ExitUsage
	Daemon    bool      // runs for days: its memory counts more than its CPU time
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
// are files, keys of the configuration, and choices.
type Values struct {
	name      string // in the usage line; empty means the choices
	file, key bool
	choices   []string
	open      bool // other values than the choices are valid, too

	// list returns choices that are known only at run time, for completion: see Listed.
	list func(args []string) []string
}

// Common values. Of these, shells complete files and keys.
var (
	File  = Values{name: "FILE", file: true}
	Key   = Values{name: "KEY", key: true} // of the configuration
	URL   = Values{name: "URL"}
	Name  = Values{name: "NAME"}  // any name
	Image = Values{name: "IMAGE"} // of a container
)

// OneOf is one of a few choices. Other values are usage errors.
func OneOf(choices ...string) Values { return Values{choices: choices} }

// AnyOrOneOf is any text. Shells complete a few choices.
func AnyOrOneOf(choices ...string) Values { return Values{choices: choices, open: true} }

// Text is any text, which shells do not complete. Name stands for it in the usage
// line.
func Text(name string) Values { return Values{name: name} }

// Listed is any text. Shells complete what the function list returns. It gets the command line so far
// without the program; a flag and its value are two elements.
func Listed(name string, list func(args []string) []string) Values {
	return Values{name: name, list: list}
}

// Completed reports whether shells complete the values.
func (v Values) Completed() bool { return v.file || v.key || v.list != nil || len(v.choices) > 0 }

// String returns the values as they are in the usage line.
func (v Values) String() string {
	if v.name == "" {
		return strings.Join(v.choices, "|")
	}
	return v.name
}

// check returns an error if only the choices are valid and value is not one of them. The
// error does not quote the value, because users may write a secret in the wrong place.
func (v Values) check(value string) error {
	if v.open || len(v.choices) == 0 || slices.Contains(v.choices, value) {
		return nil
	}
	list := strings.Join(v.choices, ", ")
	best := position.Closest(value, slices.Clone(v.choices))
	if choices := beginning(v.choices, value); best == "" && value != "" && len(choices) == 1 {
		best = choices[0] // such as update for up
	}
	if best != "" {
		return fmt.Errorf("must be one of %s: did you mean %s?", list, best)
	}
	return fmt.Errorf("must be one of %s", list)
}

// Closest returns the candidate that a user may have meant by a name, or an empty text.
func Closest(name string, candidates []string) string { return position.Closest(name, candidates) }

// Bool returns a flag without a value, which sets a variable to true.
func Bool(p *bool, name, help string) Option {
	return Option{Name: name, help: help, define: func(set *flag.FlagSet) { set.BoolVar(p, name, *p, help) }}
}

// String returns a flag with a value. Its default is the present value of the variable.
func String(p *string, name string, takes Values, help string) Option {
	if *p != "" {
		help += " (default " + *p + ")"
	}
	define := func(set *flag.FlagSet) {
		set.Func(name, help, func(value string) error {
			if err := takes.check(value); err != nil {
				return err
			}
			*p = value
			return nil
		})
	}
	return Option{Name: name, help: help, Takes: &takes, define: define}
}

// Repeated returns a flag with a value. Users may repeat the flag to give several values.
func Repeated(p *[]string, name string, takes Values, help string) Option {
	define := func(set *flag.FlagSet) {
		set.Func(name, help, func(value string) error {
			*p = append(*p, value)
			return takes.check(value)
		})
	}
	return Option{Name: name, help: help + " (repeatable)", Takes: &takes, define: define}
}

// String returns the flag with its value as it is in the usage line.
func (o Option) String() string {
	if o.Takes == nil {
		return spelling(o.Name)
	}
	return spelling(o.Name) + " " + o.Takes.String()
}

// spelling returns a flag with its dashes: one before a letter, two before a name.
func spelling(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Required returns the item of a flag that a command line of this form must have.
func Required(o Option) Item { return Item{text: o.String(), options: []Option{o}} }

// Optional returns the item of an optional flag, or of several alternative ones.
func Optional(options ...Option) Item {
	var texts []string
	for _, o := range options {
		texts = append(texts, o.String())
	}
	return Item{text: "[" + strings.Join(texts, " | ") + "]", options: options}
}

// AnyOf returns the item of flags that are too many for a usage line.
func AnyOf(options ...Option) Item { return Item{text: "[FLAGS]", options: options} }

// Argument returns the item of an argument. Text is NAME, [NAME] if it is optional,
// or [NAME...] if there may be several.
func Argument(text string, takes Values) Item { return Item{text: text, takes: takes} }

// Usage returns a usage line for each form. Prefix is the program, and the group if
// there is one.
func (c Command) Usage(prefix string) []string {
	line := prefix + " " + c.Name
	if len(c.Commands) > 0 {
		return []string{line + " COMMAND"}
	}
	var lines []string
	for _, f := range c.Forms {
		full := line
		for _, i := range f {
			full += " " + i.text
		}
		lines = append(lines, full)
	}
	return lines
}

// Options returns all flags, sorted by name.
func (c Command) Options() []Option {
	var all []Option
	for _, f := range c.Forms {
		for _, i := range f {
			all = append(all, i.options...)
		}
	}
	slices.SortStableFunc(all, func(a, b Option) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Option) bool { return a.Name == b.Name }) // forms may share flags
}

// takes returns the values of the first argument.
func (c Command) takes() Values {
	for _, i := range c.Forms[0] {
		if len(i.options) == 0 {
			return i.takes
		}
	}
	return Values{}
}

// arguments checks flags and arguments against the forms. It returns nil if there is a
// form that allows all given flags and this number of arguments, and whose required flags
// are given.
func (c Command) arguments(prefix string, args []string, given map[string]bool) error {
	most := 0
	for _, f := range c.Forms {
		least, limit, applies, flags := 0, 0, true, map[string]bool{}
		for _, i := range f {
			switch {
			case len(i.options) == 0 && strings.HasSuffix(i.text, "...]"):
				limit = len(args)
			case len(i.options) == 0 && strings.HasPrefix(i.text, "["):
				limit++
			case len(i.options) == 0:
				least, limit = least+1, limit+1
			case !strings.HasPrefix(i.text, "["):
				applies = applies && given[i.options[0].Name]
			}
			for _, o := range i.options {
				flags[o.Name] = true
			}
		}
		most = max(most, limit)

		for name := range given {
			applies = applies && flags[name]
		}
		if applies && least <= len(args) && len(args) <= limit {
			return nil
		}
	}
	isConfig := func(o Option) bool { return o.Name == "config" }
	switch {
	case most == 0 && !given["config"] && slices.ContainsFunc(c.Options(), isConfig):
		return fmt.Errorf("%s takes no argument: name a file with --config", c.Name)
	case most == 0:
		return fmt.Errorf("%s takes no argument", c.Name)
	}
	return fmt.Errorf("usage: %s", strings.Join(c.Usage(prefix), "\n       "))
}

func names(commands []Command) (list []string) {
	for _, c := range commands {
		list = append(list, c.Name)
	}
	return list
}
