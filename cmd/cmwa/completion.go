package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// shells returns the shells that there is a script for.
func shells() []string { return []string{"bash", "zsh", "fish"} }

func completionCommand(hard context.Context, s streams) *ffcli.Command {
	return &ffcli.Command{
		Name: "completion", ShortUsage: "cmwa completion " + strings.Join(shells(), "|"),
		ShortHelp: "print a script that lets a shell complete command lines",
		LongHelp: "Commands, flags, files and the keys of the configuration are completed, once the script has been read:\n\n" +
			"  bash  source <(cmwa completion bash), in ~/.bashrc\n" +
			"  zsh   source <(cmwa completion zsh), in ~/.zshrc after compinit\n" +
			"  fish  cmwa completion fish > ~/.config/fish/completions/cmwa.fish",
		FlagSet: s.flags("cmwa completion"),
		Exec: func(_ context.Context, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("name one shell: %s", strings.Join(shells(), ", "))
			}
			tree := completed(commands(hard, s))
			var script string
			switch args[0] {
			case "bash":
				script = bashScript(tree)
			case "zsh":
				script = zshScript(tree)
			case "fish":
				script = fishScript(tree)
			default:
				return cli.Usagef("there is no script for %q: the shells are %s", args[0], strings.Join(shells(), ", "))
			}
			_, err := io.WriteString(s.stdout, script)
			return err
		},
	}
}

// completion is one command as a shell needs to know it. Everything in it comes
// from the commands themselves: what an argument is stands in the usage line.
type completion struct {
	name, help string
	flags      []completionFlag
	argument   completionValue
}

type completionFlag struct {
	name, help string
	bool       bool
	value      completionValue
}

// completionValue is what may stand at a place: a file, a key, or one of some
// words. The zero value is anything, of which nothing is known.
type completionValue struct {
	file, key bool
	words     []string
}

func completed(root *ffcli.Command) []completion {
	var all []completion
	for _, command := range root.Subcommands {
		c := completion{name: command.Name, help: command.ShortHelp, argument: argumentIn(command.ShortUsage)}
		command.FlagSet.VisitAll(func(f *flag.Flag) {
			truth, ok := f.Value.(interface{ IsBoolFlag() bool })
			known := completionFlag{name: f.Name, help: f.Usage, bool: ok && truth.IsBoolFlag()}
			if !known.bool {
				known.value = valueIn(command.ShortUsage, f)
			}
			c.flags = append(c.flags, known)
		})
		all = append(all, c)
	}
	return all
}

// alternatives is words with bars between them, as a usage line writes them.
var alternatives = regexp.MustCompile(`^[a-z]+(\|[a-z]+)+$`)

// enumeration is the end of a flag's help that names all its values.
var enumeration = regexp.MustCompile(`(?:^|: )([a-z]+(?:, [a-z]+)* or [a-z]+)$`)

// argumentIn reads from a usage line what the arguments are.
func argumentIn(usage string) completionValue {
	words := strings.Fields(regexp.MustCompile(`\[-[^]]*\]`).ReplaceAllString(usage, ""))
	if len(words) < 3 {
		return completionValue{}
	}
	switch word := strings.Trim(words[2], "[].…"); {
	case alternatives.MatchString(word):
		return completionValue{words: strings.Split(word, "|")}
	case word == "KEY":
		return completionValue{key: true}
	case word == "FILE", word == "OLD":
		return completionValue{file: true}
	default:
		return completionValue{}
	}
}

// valueIn reads what a flag takes from the usage line or from the flag's help.
func valueIn(usage string, f *flag.Flag) completionValue {
	if _, rest, ok := strings.Cut(usage, "--"+f.Name+" "); ok {
		word, _, _ := strings.Cut(rest, "]")
		if alternatives.MatchString(word) {
			return completionValue{words: strings.Split(word, "|")}
		}
	}
	if list := enumeration.FindStringSubmatch(f.Usage); list != nil {
		return completionValue{words: strings.Split(strings.ReplaceAll(list[1], " or ", ", "), ", ")}
	}
	return completionValue{file: f.Name == "config" || strings.HasSuffix(f.Name, "-file")}
}

func (c completion) flagNames() []string {
	var names []string
	for _, f := range c.flags {
		names = append(names, "--"+f.name)
	}
	return names
}

// bashScript needs bash 4 and nothing else.
func bashScript(tree []completion) string {
	var b strings.Builder
	b.WriteString(`# Completion of cmwa for bash, made by cmwa completion bash.

_cmwa() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=
	# bash takes --flag=value for three words
	if [[ $word == = ]]; then
		word=
	elif [[ $before == = && COMP_CWORD -gt 2 ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	before=${before/#--/-}
	if [[ COMP_CWORD -eq 1 ]]; then
`)
	var names []string
	for _, c := range tree {
		names = append(names, c.name)
	}
	fmt.Fprintf(&b, "\t\twords=%s\n\telse\n\t\tcase ${COMP_WORDS[1]} in\n", quoted(strings.Join(names, " ")))
	for _, c := range tree {
		fmt.Fprintf(&b, "\t\t%s)\n\t\t\tcase $before in\n", c.name)
		for _, f := range c.flags {
			if !f.bool {
				fmt.Fprintf(&b, "\t\t\t-%s) %s ;;\n", f.name, bashValue(f.value))
			}
		}
		fmt.Fprintf(&b, "\t\t\t*) if [[ $word == -* ]]; then words=%s; else %s; fi ;;\n\t\t\tesac ;;\n", quoted(strings.Join(c.flagNames(), " ")), bashValue(c.argument))
	}
	b.WriteString(`		esac
	fi
	COMPREPLY=()
	if [[ -n $words ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
	fi
	# without an answer of ours, readline completes files, and that is wanted only here
	if [[ -z $files ]]; then
		compopt +o default 2>/dev/null
	fi
	return 0
}

complete -o default -F _cmwa cmwa
`)
	return b.String()
}

func bashValue(v completionValue) string {
	switch {
	case v.file:
		return "files=yes"
	case v.key:
		return `words=$("${COMP_WORDS[0]}" explain --names 2>/dev/null)`
	case len(v.words) > 0:
		return "words=" + quoted(strings.Join(v.words, " "))
	default:
		return ":"
	}
}

func zshScript(tree []completion) string {
	var b strings.Builder
	b.WriteString(`#compdef cmwa
# Completion of cmwa for zsh, made by cmwa completion zsh.

_cmwa_keys() {
	local -a keys
	keys=(${(f)"$(_call_program keys cmwa explain --names)"})
	compadd -a keys
}

_cmwa() {
	local -a commands
	commands=(
`)
	for _, c := range tree {
		fmt.Fprintf(&b, "\t\t%s\n", quoted(c.name+":"+strings.ReplaceAll(c.help, ":", `\:`)))
	}
	b.WriteString(`	)
	if ((CURRENT == 2)); then
		_describe command commands
		return
	fi
	local command=$words[2]
	shift words
	((CURRENT--))
	case $command in
`)
	for _, c := range tree {
		var specs []string
		for _, f := range c.flags {
			spec := "--" + f.name + "[" + zshText(f.help) + "]"
			if !f.bool {
				spec += ":" + f.name + ":" + zshValue(f.value)
			}
			specs = append(specs, quoted(spec))
		}
		if action := zshValue(c.argument); action != "" {
			specs = append(specs, quoted("*:argument:"+action))
		}
		if len(specs) > 0 {
			fmt.Fprintf(&b, "\t%s)\n\t\t_arguments \\\n\t\t\t%s ;;\n", c.name, strings.Join(specs, " \\\n\t\t\t"))
		}
	}
	b.WriteString(`	esac
}

if [[ $funcstack[1] == _cmwa ]]; then
	_cmwa "$@"
else
	compdef _cmwa cmwa
fi
`)
	return b.String()
}

func zshValue(v completionValue) string {
	switch {
	case v.file:
		return "_files"
	case v.key:
		return "_cmwa_keys"
	case len(v.words) > 0:
		return "(" + strings.Join(v.words, " ") + ")"
	default:
		return ""
	}
}

// zshText writes a text into the brackets of a specification.
func zshText(text string) string {
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(text)
}

func fishScript(tree []completion) string {
	var b strings.Builder
	b.WriteString("# Completion of cmwa for fish, made by cmwa completion fish.\n\ncomplete -c cmwa -f\n")
	for _, c := range tree {
		fmt.Fprintf(&b, "\ncomplete -c cmwa -n __fish_use_subcommand -a %s -d %s\n", c.name, fishQuoted(c.help))
		within := "complete -c cmwa -n '__fish_seen_subcommand_from " + c.name + "'"
		for _, f := range c.flags {
			value := fishValue(f.value)
			switch {
			case f.bool:
				value = ""
			case value == "":
				value = " -x"
			default:
				value = " -r" + value
			}
			fmt.Fprintf(&b, "%s -l %s%s -d %s\n", within, f.name, value, fishQuoted(f.help))
		}
		if value := fishValue(c.argument); value != "" {
			b.WriteString(within + value + "\n")
		}
	}
	return b.String()
}

func fishValue(v completionValue) string {
	switch {
	case v.file:
		return " -F"
	case v.key:
		return " -f -a '(cmwa explain --names)'"
	case len(v.words) > 0:
		return " -f -a " + fishQuoted(strings.Join(v.words, " "))
	default:
		return ""
	}
}

// quoted writes a text as one word of bash or zsh.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// fishQuoted writes a text as one word of fish.
func fishQuoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
