# Completion of cmwa for fish, written by cmwa completion fish.

complete -c cmwa -f

complete -c cmwa -n __fish_use_subcommand -a check -d 'check files: all of them'
complete -c cmwa -n '__fish_seen_subcommand_from check' -l format -r -f -a 'text json' -d 'text or [json]'
complete -c cmwa -n '__fish_seen_subcommand_from check' -l strict -d 'don\'t forgive'
complete -c cmwa -n '__fish_seen_subcommand_from check' -F

complete -c cmwa -n __fish_use_subcommand -a tell -d 'tell \\ what it\'s about'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l name -x -d 'any name'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l target -r -f -a 'docker ecs process' -d 'where: docker, ecs or process'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -l token-file -r -F -d 'file to read'
complete -c cmwa -n '__fish_seen_subcommand_from tell' -f -a '(cmwa explain --names)'

complete -c cmwa -n __fish_use_subcommand -a shell -d 'name a shell'
complete -c cmwa -n '__fish_seen_subcommand_from shell' -f -a 'bash zsh'

complete -c cmwa -n __fish_use_subcommand -a group -d 'two commands'

complete -c cmwa -n '__fish_seen_subcommand_from group; and not __fish_seen_subcommand_from first second' -a first -d 'take a file'
complete -c cmwa -n '__fish_seen_subcommand_from group; and __fish_seen_subcommand_from first' -l dry -d 'do nothing'
complete -c cmwa -n '__fish_seen_subcommand_from group; and __fish_seen_subcommand_from first' -F

complete -c cmwa -n '__fish_seen_subcommand_from group; and not __fish_seen_subcommand_from first second' -a second -d 'take nothing'

complete -c cmwa -n __fish_use_subcommand -a end -d 'take nothing'
