#compdef cmwa
# Completion of cmwa for zsh, written by cmwa completion zsh.

_cmwa_keys() {
	local -a keys
	keys=(${(f)"$(_call_program keys cmwa explain --names)"})
	compadd -a keys
}

_cmwa_group() {
	local -a commands
	commands=(
		'first:take a file'
		'second:take nothing'
	)
	if ((CURRENT == 2)); then
		_describe command commands
		return
	fi
	local command=$words[2]
	shift words
	((CURRENT--))
	case $command in
	first)
		_arguments \
			'--dry[do nothing]' \
			'*:argument:_files' ;;
	esac
}

_cmwa() {
	local -a commands
	commands=(
		'check:check files\: all of them'
		'tell:tell \ what it'\''s about'
		'shell:name a shell'
		'group:two commands'
		'end:take nothing'
	)
	if ((CURRENT == 2)); then
		_describe command commands
		return
	fi
	local command=$words[2]
	shift words
	((CURRENT--))
	case $command in
	check)
		_arguments \
			'--format[text or \[json\]]:format:(text json)' \
			'--strict[don'\''t forgive]' \
			'*:argument:_files' ;;
	tell)
		_arguments \
			'--name[any name]:name:' \
			'--target[where\: docker, ecs or process]:target:(docker ecs process)' \
			'--token-file[file to read]:token-file:_files' \
			'*:argument:_cmwa_keys' ;;
	shell)
		_arguments \
			'*:argument:(bash zsh)' ;;
	group)
		_cmwa_group ;;
	esac
}

if [[ $funcstack[1] == _cmwa ]]; then
	_cmwa "$@"
else
	compdef _cmwa cmwa
fi
