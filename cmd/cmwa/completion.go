package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// shells returns the shells that there is a script for.
func shells() []string { return []string{"bash", "zsh", "fish"} }

// completionCommand prints completions of all commands, of which it is one.
func completionCommand(all func() []command, s streams) command {
	return command{
		name: "completion", help: "print a script that lets a shell complete command lines",
		forms: []form{{argument(strings.Join(shells(), "|"), oneOf(shells()...))}},
		long: "Commands, flags, files and the keys of the configuration are completed, once the script has been read:\n\n" +
			"  bash  source <(cmwa completion bash), in ~/.bashrc\n" +
			"  zsh   source <(cmwa completion zsh), in ~/.zshrc after compinit\n" +
			"  fish  cmwa completion fish > ~/.config/fish/completions/cmwa.fish",
		run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("name one shell: %s", strings.Join(shells(), ", "))
			}
			var script string
			switch args[0] {
			case "bash":
				script = bashScript(all())
			case "zsh":
				script = zshScript(all())
			case "fish":
				script = fishScript(all())
			default:
				return cli.Usagef("there is no script for %q: the shells are %s", args[0], strings.Join(shells(), ", "))
			}
			_, err := io.WriteString(s.stdout, script)
			return err
		},
	}
}

// bashScript needs bash 4 and nothing else.
func bashScript(commands []command) string {
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
	for _, c := range commands {
		names = append(names, c.name)
	}
	fmt.Fprintf(&b, "\t\twords=%s\n\telse\n\t\tcase ${COMP_WORDS[1]} in\n", cli.Quote(strings.Join(names, " ")))
	for _, c := range commands {
		fmt.Fprintf(&b, "\t\t%s)\n\t\t\tcase $before in\n", c.name)
		for _, f := range c.options() {
			if f.takes != nil {
				fmt.Fprintf(&b, "\t\t\t-%s) %s ;;\n", f.name, bashValue(*f.takes))
			}
		}
		fmt.Fprintf(&b, "\t\t\t*) if [[ $word == -* ]]; then words=%s; else %s; fi ;;\n\t\t\tesac ;;\n", cli.Quote(flagNames(c)), bashValue(c.takes()))
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

// flagNames returns the names of all flags of a command, with blanks between them.
func flagNames(c command) string {
	var names []string
	for _, f := range c.options() {
		names = append(names, "--"+f.name)
	}
	return strings.Join(names, " ")
}

func bashValue(v values) string {
	switch {
	case v.file:
		return "files=yes"
	case v.key:
		return `words=$("${COMP_WORDS[0]}" explain --names 2>/dev/null)`
	case len(v.words) > 0:
		return "words=" + cli.Quote(strings.Join(v.words, " "))
	default:
		return ":"
	}
}

func zshScript(commands []command) string {
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
	for _, c := range commands {
		fmt.Fprintf(&b, "\t\t%s\n", cli.Quote(c.name+":"+strings.ReplaceAll(c.help, ":", `\:`)))
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
	for _, c := range commands {
		var specs []string
		for _, f := range c.options() {
			spec := "--" + f.name + "[" + zshText(f.help) + "]"
			if f.takes != nil {
				spec += ":" + f.name + ":" + zshValue(*f.takes)
			}
			specs = append(specs, cli.Quote(spec))
		}
		if action := zshValue(c.takes()); action != "" {
			specs = append(specs, cli.Quote("*:argument:"+action))
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

func zshValue(v values) string {
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

func fishScript(commands []command) string {
	var b strings.Builder
	b.WriteString("# Completion of cmwa for fish, made by cmwa completion fish.\n\ncomplete -c cmwa -f\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "\ncomplete -c cmwa -n __fish_use_subcommand -a %s -d %s\n", c.name, fishQuoted(c.help))
		within := "complete -c cmwa -n '__fish_seen_subcommand_from " + c.name + "'"
		for _, f := range c.options() {
			value := ""
			if f.takes != nil {
				if value = fishValue(*f.takes); value == "" {
					value = " -x"
				} else {
					value = " -r" + value
				}
			}
			fmt.Fprintf(&b, "%s -l %s%s -d %s\n", within, f.name, value, fishQuoted(f.help))
		}
		if value := fishValue(c.takes()); value != "" {
			b.WriteString(within + value + "\n")
		}
	}
	return b.String()
}

func fishValue(v values) string {
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

// fishQuoted writes a text as one word of fish.
func fishQuoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
