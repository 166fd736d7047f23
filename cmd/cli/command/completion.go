package command

import (
	"slices"
	"strings"
)

// completeCommand is the name of the hidden command that the completion scripts call with the words
// of a command line. The last word is the one to complete; it may be empty.
const completeCommand = "__complete"

// filesMark is the only completion if the shell completes files.
const filesMark = ":files"

// shells are the shells for which there is a completion script.
var shells = []string{"bash", "zsh", "fish"}

// scripts are the completion scripts by shell. PROGRAM stands for the name of the program, and
// FUNCTION for the same name as a part of a function's name.
var scripts = map[string]string{
	// bash splits --flag=value into three words.
	"bash": `# Completion of PROGRAM for bash, written by PROGRAM completion bash.
_FUNCTION() {
	mapfile -t COMPREPLY < <("${COMP_WORDS[0]/#\~/${HOME-}}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
	if [[ ${COMPREPLY[0]-} == :files ]]; then
		COMPREPLY=()
	else
		compopt +o default 2>/dev/null # otherwise readline completes files if there is no completion
	fi
	return 0
}
complete -o default -F _FUNCTION PROGRAM
`,
	"zsh": `#compdef PROGRAM
# Completion of PROGRAM for zsh, written by PROGRAM completion zsh.
_FUNCTION() {
	local -a completions
	completions=(${(f)"$(PROGRAM __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)"})
	compset -P '-*='
	if [[ $completions[1] == :files ]]; then
		_files
	else
		completions=("${(@)completions//:/\\:}")
		completions=("${(@)completions/$'\t'/:}")
		_describe completion completions
	fi
}
if [[ $funcstack[1] == _FUNCTION ]]; then _FUNCTION "$@"; else compdef _FUNCTION PROGRAM; fi
`,
	"fish": `# Completion of PROGRAM for fish, written by PROGRAM completion fish.
function __FUNCTION_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l flag (string match -r -- '^-[^=]*=' "$current")
    set -l found (PROGRAM __complete $words "$current" 2>/dev/null)
    if test "$found[1]" = :files
        set found (__fish_complete_path (string replace -r -- '^-[^=]*=' '' "$current"))
    end
    for line in $found
        echo "$flag$line"
    end
end
complete -c PROGRAM -f -a '(__FUNCTION_complete)'
`,
}

// Script returns the completion script for a shell: bash, zsh or fish.
func (p Program) Script(shell string) string {
	return strings.NewReplacer("PROGRAM", p.Name, "FUNCTION", strings.ReplaceAll(p.Name, "-", "_")).
		Replace(scripts[shell])
}

// complete returns the completions of the last word of a command line without the program. Each is
// a line that may have a description after a tab.
func (p Program) complete(words []string) []string {
	words = splitFlags(words)
	last := len(words) - 1
	if last < 0 {
		return nil
	}

	c := Command{Commands: p.all(nil)}
	for _, word := range words[:last] {
		if len(c.Commands) == 0 {
			break
		}
		i := slices.IndexFunc(c.Commands, func(sub Command) bool { return sub.Name == word })
		if i < 0 {
			return nil
		}
		c = c.Commands[i]
	}

	current := words[last]
	if len(c.Commands) > 0 {
		var lines []string
		for _, sub := range c.Commands {
			lines = append(lines, described(sub.Name, sub.Help))
		}
		return beginning(lines, current)
	}
	for _, o := range c.Options() {
		before := words[last-1]
		if o.Takes != nil && strings.HasPrefix(before, "-") && strings.TrimLeft(before, "-") == o.Name {
			return p.values(*o.Takes, words)
		}
	}
	if strings.HasPrefix(current, "-") {
		var lines []string
		for _, o := range c.Options() {
			lines = append(lines, described(spelling(o.Name), o.help))
		}
		lines = append(lines, described("--help", "print the help of this command"))
		return beginning(lines, current)
	}
	return p.values(c.takes(), words)
}

// splitFlags returns words in which a flag and its value are two words. bash passes --flag=value as
// three words, and --flag= as two.
func splitFlags(words []string) []string {
	var split []string
	for i, word := range words {
		name, value, joined := strings.Cut(word, "=")
		switch {
		case word == "=" && i > 0 && strings.HasPrefix(words[i-1], "-"):
			if i == len(words)-1 {
				split = append(split, "")
			}
		case joined && strings.HasPrefix(word, "-"):
			split = append(split, name, value)
		default:
			split = append(split, word)
		}
	}
	return split
}

// values returns the completions of the last word, which is one of the values.
func (p Program) values(v Values, words []string) []string {
	current := words[len(words)-1]
	switch {
	case v.list != nil:
		return beginning(v.list(words), current)
	case v.file:
		return []string{filesMark}
	case v.key:
		return beginning(p.Keys(), current)
	default:
		return beginning(v.choices, current)
	}
}

func described(text, description string) string {
	return text + "\t" + strings.Join(strings.Fields(description), " ")
}

func beginning(lines []string, text string) (found []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, text) {
			found = append(found, line)
		}
	}
	return found
}
