# Completion of cmwa for fish, made by cmwa completion fish.

complete -c cmwa -f

complete -c cmwa -n __fish_use_subcommand -a check -d 'check files: all of them'
complete -c cmwa -n '__fish_seen_subcommand_from check' -l format -r -f -a 'text json' -d 'text or [json]'
complete -c cmwa -n '__fish_seen_subcommand_from check' -l strict -d 'don\'t forgive'
complete -c cmwa -n '__fish_seen_subcommand_from check' -F

complete -c cmwa -n __fish_use_subcommand -a tell -d 'tell \\ what it\'s about'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l name -x -d 'any word'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l target -r -f -a 'docker ecs process' -d 'where: docker, ecs or process'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l token-file -r -F -d 'file to read'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -f -a '(cmwa explain --names)'

complete -c cmwa -n __fish_use_subcommand -a shell -d 'name a shell'
complete -c cmwa -n '__fish_seen_subcommand_from shell' -f -a 'bash zsh'

complete -c cmwa -n __fish_use_subcommand -a end -d 'take nothing'
