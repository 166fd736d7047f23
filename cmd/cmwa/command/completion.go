package command

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// Shells returns the shells for which there is a script.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// Script returns the script that lets a shell complete commands. The shell is one of
// [Shells].
func Script(shell string, all []Command) string {
	switch shell {
	case "bash":
		return bashScript(all)
	case "zsh":
		return zshScript(all)
	case "fish":
		return fishScript(all)
	default:
		return ""
	}
}

// bashScript needs bash 4 and nothing else.
func bashScript(all []Command) string {
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
	for _, c := range all {
		names = append(names, c.Name)
	}
	fmt.Fprintf(&b, "\t\twords=%s\n\telse\n\t\tcase ${COMP_WORDS[1]} in\n", cli.Quote(strings.Join(names, " ")))
	for _, c := range all {
		fmt.Fprintf(&b, "\t\t%s)\n\t\t\tcase $before in\n", c.Name)
		for _, f := range c.Options() {
			if f.Takes != nil {
				fmt.Fprintf(&b, "\t\t\t-%s) %s ;;\n", f.Name, bashValue(*f.Takes))
			}
		}
		fmt.Fprintf(&b, "\t\t\t*) if [[ $word == -* ]]; then words=%s; else %s; fi ;;\n\t\t\tesac ;;\n",
			cli.Quote(flagNames(c)), bashValue(c.takes()))
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
func flagNames(c Command) string {
	var names []string
	for _, f := range c.Options() {
		names = append(names, f.spelling())
	}
	return strings.Join(names, " ")
}

func bashValue(v Values) string {
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

func zshScript(all []Command) string {
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
	for _, c := range all {
		fmt.Fprintf(&b, "\t\t%s\n", cli.Quote(c.Name+":"+strings.ReplaceAll(c.Help, ":", `\:`)))
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
	for _, c := range all {
		var specs []string
		for _, f := range c.Options() {
			spec := f.spelling() + "[" + zshText(f.help) + "]"
			if f.Takes != nil {
				spec += ":" + f.Name + ":" + zshValue(*f.Takes)
			}
			specs = append(specs, cli.Quote(spec))
		}
		if action := zshValue(c.takes()); action != "" {
			specs = append(specs, cli.Quote("*:argument:"+action))
		}
		if len(specs) > 0 {
			fmt.Fprintf(&b, "\t%s)\n\t\t_arguments \\\n\t\t\t%s ;;\n", c.Name, strings.Join(specs, " \\\n\t\t\t"))
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

func zshValue(v Values) string {
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

func fishScript(all []Command) string {
	var b strings.Builder
	b.WriteString("# Completion of cmwa for fish, made by cmwa completion fish.\n\ncomplete -c cmwa -f\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\ncomplete -c cmwa -n __fish_use_subcommand -a %s -d %s\n", c.Name, fishQuoted(c.Help))
		within := "complete -c cmwa -n '__fish_seen_subcommand_from " + c.Name + "'"
		for _, f := range c.Options() {
			kind, value := "-l", ""
			if len(f.Name) == 1 {
				kind = "-s"
			}
			if f.Takes != nil {
				if value = fishValue(*f.Takes); value == "" {
					value = " -x"
				} else {
					value = " -r" + value
				}
			}
			fmt.Fprintf(&b, "%s %s %s%s -d %s\n", within, kind, f.Name, value, fishQuoted(f.help))
		}
		if value := fishValue(c.takes()); value != "" {
			b.WriteString(within + value + "\n")
		}
	}
	return b.String()
}

func fishValue(v Values) string {
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
