# Completion of cmwa for bash, written by cmwa completion bash.

_cmwa() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=
	# bash splits --flag=value into three words
	if [[ $word == = ]]; then
		word=
	elif [[ $before == = && COMP_CWORD -gt 2 ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	before=${before/#--/-}
	if [[ COMP_CWORD -eq 1 ]]; then
		words='check tell shell group end'
	else
		case ${COMP_WORDS[1]} in
		check)
			case $before in
			-format) words='text json' ;;
			*) if [[ $word == -* ]]; then words='--format --strict --help'; else files=yes; fi ;;
			esac ;;
		tell)
			case $before in
			-name) : ;;
			-target) words='docker ecs process' ;;
			-token-file) files=yes ;;
			*) if [[ $word == -* ]]; then words='--name --target --token-file --help'; else words=$("${COMP_WORDS[0]}" explain --names 2>/dev/null); fi ;;
			esac ;;
		shell)
			case $before in
			*) if [[ $word == -* ]]; then words='--help'; else words='bash zsh'; fi ;;
			esac ;;
		group)
			if [[ COMP_CWORD -eq 2 ]]; then
				words='first second'
			else
				case ${COMP_WORDS[2]} in
				first)
					case $before in
					*) if [[ $word == -* ]]; then words='--dry --help'; else files=yes; fi ;;
					esac ;;
				second)
					case $before in
					*) if [[ $word == -* ]]; then words='--help'; else :; fi ;;
					esac ;;
				esac
			fi
			;;
		end)
			case $before in
			*) if [[ $word == -* ]]; then words='--help'; else :; fi ;;
			esac ;;
		esac
	fi
	COMPREPLY=()
	if [[ -n $words ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
	fi
	# without this, readline completes files if there is no other completion
	if [[ -z $files ]]; then
		compopt +o default 2>/dev/null
	fi
	return 0
}

complete -o default -F _cmwa cmwa
