package command

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/schema/printable"
)

// shells are the shells for which there is a completion script.
var shells = []string{"bash", "zsh", "fish"}

// Script returns the completion script for a shell: bash, zsh or fish.
func (p Program) Script(shell string) string {
	p.Commands = p.all(nil)
	switch shell {
	case "bash":
		return p.bashScript()
	case "zsh":
		return p.zshScript()
	case "fish":
		return p.fishScript()
	default:
		return ""
	}
}

// function returns the name of the shell function that completes the program.
func (p Program) function() string { return "_" + strings.ReplaceAll(p.Name, "-", "_") }

// bashScript returns the script for bash 4. It needs no other program.
func (p Program) bashScript() string {
	// The word under the cursor, and the one before it.
	var b strings.Builder
	fmt.Fprintf(&b, `# Completion of %[1]s for bash, written by %[1]s completion bash.

%[2]s() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=
	# bash splits --flag=value into three words
	if [[ $word == = ]]; then
		word=
	elif [[ $before == = && COMP_CWORD -gt 2 ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	before=${before/#--/-}
`, p.Name, p.function())

	// The possible words, and those that match.
	p.bashCommands(&b, p.Commands, 1)
	fmt.Fprintf(&b, `	COMPREPLY=()
	if [[ -n $words ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
	fi
	# without this, readline completes files if there is no other completion
	if [[ -z $files ]]; then
		compopt +o default 2>/dev/null
	fi
	return 0
}

complete -o default -F %[2]s %[1]s
`, p.Name, p.function())
	return b.String()
}

// bashCommands writes the completion of a list of commands. Index is the position of
// their names on the command line.
func (p Program) bashCommands(b *strings.Builder, commands []Command, index int) {
	tabs := strings.Repeat("\t", 2*index-1)
	fmt.Fprintf(b, "%[1]sif [[ COMP_CWORD -eq %[2]d ]]; then\n%[1]s\twords=%[3]s\n"+
		"%[1]selse\n%[1]s\tcase ${COMP_WORDS[%[2]d]} in\n",
		tabs, index, printable.QuoteShell(strings.Join(names(commands), " ")))
	for _, c := range commands {
		fmt.Fprintf(b, "%s\t%s)\n", tabs, c.Name)
		if len(c.Commands) > 0 {
			p.bashCommands(b, c.Commands, index+1)
			fmt.Fprintf(b, "%s\t\t;;\n", tabs)
			continue
		}
		fmt.Fprintf(b, "%s\t\tcase $before in\n", tabs)
		for _, f := range c.Options() {
			if f.Takes != nil {
				fmt.Fprintf(b, "%s\t\t-%s) %s ;;\n", tabs, f.Name, p.bashValue(*f.Takes))
			}
		}
		fmt.Fprintf(b, "%[1]s\t\t*) if [[ $word == -* ]]; then words=%[2]s; else %[3]s; fi ;;\n%[1]s\t\tesac ;;\n",
			tabs, printable.QuoteShell(flagNames(c)), p.bashValue(c.takes()))
	}
	fmt.Fprintf(b, "%[1]s\tesac\n%[1]sfi\n", tabs)
}

// flagNames returns the names of all flags of a command, separated by spaces.
func flagNames(c Command) string {
	var list []string
	for _, f := range c.Options() {
		list = append(list, spelling(f.Name))
	}
	return strings.Join(append(list, "--help"), " ")
}

// bashValue returns the statement that completes a value.
func (p Program) bashValue(v Values) string {
	switch {
	case v.file:
		return "files=yes"
	case v.key:
		return `words=$("${COMP_WORDS[0]}" ` + p.KeyNames + ` 2>/dev/null)`
	case len(v.choices) > 0:
		return "words=" + printable.QuoteShell(strings.Join(v.choices, " "))
	default:
		return ":"
	}
}

// zshScript returns the script for zsh.
func (p Program) zshScript() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %[1]s\n# Completion of %[1]s for zsh, written by %[1]s completion zsh.\n", p.Name)
	if p.KeyNames != "" {
		fmt.Fprintf(&b, `
%[2]s_keys() {
	local -a keys
	keys=(${(f)"$(_call_program keys %[1]s %[3]s)"})
	compadd -a keys
}
`, p.Name, p.function(), p.KeyNames)
	}
	p.zshCommands(&b, p.function(), p.Commands)
	fmt.Fprintf(&b, `
if [[ $funcstack[1] == %[2]s ]]; then
	%[2]s "$@"
else
	compdef %[2]s %[1]s
fi
`, p.Name, p.function())
	return b.String()
}

// zshCommands writes the functions that complete the groups in a list of commands, and
// then the function that completes the list.
func (p Program) zshCommands(b *strings.Builder, function string, commands []Command) {
	for _, c := range commands {
		if len(c.Commands) > 0 {
			p.zshCommands(b, function+"_"+c.Name, c.Commands)
		}
	}

	// The names of the commands.
	fmt.Fprintf(b, "\n%s() {\n\tlocal -a commands\n\tcommands=(\n", function)
	for _, c := range commands {
		fmt.Fprintf(b, "\t\t%s\n", printable.QuoteShell(c.Name+":"+strings.ReplaceAll(c.Help, ":", `\:`)))
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

	// The flags and arguments of each.
	for _, c := range commands {
		if len(c.Commands) > 0 {
			fmt.Fprintf(b, "\t%s)\n\t\t%s_%s ;;\n", c.Name, function, c.Name)
			continue
		}
		var specs []string
		for _, f := range c.Options() {
			spec := spelling(f.Name) + "[" + zshText(f.help) + "]"
			if f.Takes != nil {
				spec += ":" + f.Name + ":" + p.zshValue(*f.Takes)
			}
			specs = append(specs, printable.QuoteShell(spec))
		}
		if action := p.zshValue(c.takes()); action != "" {
			specs = append(specs, printable.QuoteShell("*:argument:"+action))
		}
		if len(specs) > 0 {
			fmt.Fprintf(b, "\t%s)\n\t\t_arguments \\\n\t\t\t%s ;;\n", c.Name, strings.Join(specs, " \\\n\t\t\t"))
		}
	}
	b.WriteString("\tesac\n}\n")
}

// zshValue returns the action that completes a value, empty if there is none.
func (p Program) zshValue(v Values) string {
	switch {
	case v.file:
		return "_files"
	case v.key:
		return p.function() + "_keys"
	case len(v.choices) > 0:
		return "(" + strings.Join(v.choices, " ") + ")"
	default:
		return ""
	}
}

// zshText escapes the text in brackets of a specification for _arguments.
func zshText(text string) string {
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(text)
}

// fishScript returns the script for fish.
func (p Program) fishScript() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Completion of %[1]s for fish, written by %[1]s completion fish.\n\n"+
		"complete -c %[1]s -f\n", p.Name)
	p.fishCommands(&b, p.Commands, "__fish_use_subcommand", "")
	return b.String()
}

// fishCommands writes the completion of a list of commands. First is the condition for
// their names. Within is the beginning of the condition for their flags and arguments;
// it is empty for commands outside of a group.
func (p Program) fishCommands(b *strings.Builder, commands []Command, first, within string) {
	for _, c := range commands {
		// The name of the command.
		fmt.Fprintf(b, "\ncomplete -c %s -n %s -a %s -d %s\n", p.Name, first, c.Name, fishQuote(c.Help))
		seen := within + "__fish_seen_subcommand_from " + c.Name
		if len(c.Commands) > 0 {
			inner := seen + "; and not __fish_seen_subcommand_from " + strings.Join(names(c.Commands), " ")
			p.fishCommands(b, c.Commands, fishQuote(inner), seen+"; and ")
			continue
		}

		// Its flags and its argument.
		line := fmt.Sprintf("complete -c %s -n %s", p.Name, fishQuote(seen))
		for _, f := range c.Options() {
			kind, value := "-l", ""
			if len(f.Name) == 1 {
				kind = "-s"
			}
			if f.Takes != nil {
				if value = p.fishValue(*f.Takes); value == "" {
					value = " -x"
				} else {
					value = " -r" + value
				}
			}
			fmt.Fprintf(b, "%s %s %s%s -d %s\n", line, kind, f.Name, value, fishQuote(f.help))
		}
		if value := p.fishValue(c.takes()); value != "" {
			b.WriteString(line + value + "\n")
		}
	}
}

// fishValue returns the options that complete a value, empty if there are none.
func (p Program) fishValue(v Values) string {
	switch {
	case v.file:
		return " -F"
	case v.key:
		return " -f -a '(" + p.Name + " " + p.KeyNames + ")'"
	case len(v.choices) > 0:
		return " -f -a " + fishQuote(strings.Join(v.choices, " "))
	default:
		return ""
	}
}

// fishQuote returns a text quoted for fish.
func fishQuote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
