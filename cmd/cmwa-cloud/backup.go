package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// fileArgument is the argument for a backup.
var fileArgument = command.Argument("FILE", command.File)

func backupCommand(s stdio) command.Command {
	var options server.Options
	return command.Command{
		Name: "backup", Help: "write a backup of a data directory to a new file, also while the service runs",
		Long: "The file is a tar archive with the state of one moment: the database, the states of all stacks, the " +
			"access token of the first start, and the master key. A reader of the file can read every secret. " +
			"A master key in another place (--master-key) is not in the backup: keep it, because no secret can be " +
			"read without it.",
		Forms: []command.Form{{fileArgument, command.AnyOf(
			command.String(&options.Directory, dataFlag, command.Text("DIRECTORY"),
				"data directory of the service (required)"),
			command.String(&options.Objects, objectsFlag, command.Text("DIRECTORY"),
				"directory of the states, if it is not in the data directory; also PULUMI_LOCAL_OBJECTS"),
		)}},
		Run: func(ctx context.Context, args []string) error {
			if options.Directory == "" {
				return cli.Usagef("backup needs --data DIRECTORY: the data directory of the service")
			}
			options.Objects = cmp.Or(options.Objects, s.variable("PULUMI_LOCAL_OBJECTS"))
			size, err := server.Backup(ctx, options, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.stdout, "%s has %d bytes; it contains secrets\n", args[0], size)
			return err
		},
	}
}

func restoreCommand(s stdio) command.Command {
	var directory, masterKey string
	return command.Command{
		Name: "restore", Help: "check a backup, and unpack it into a new data directory",
		Long: "The command checks every file, every page of the database, every state and the master key before the " +
			"directory has a database. The states are then in this directory, also if --objects was used before. " +
			"To test a backup, restore it into a directory that you then delete.",
		Forms: []command.Form{{fileArgument, command.AnyOf(
			command.String(&directory, dataFlag, command.Text("DIRECTORY"), "empty or missing directory (required)"),
			command.String(&masterKey, masterKeyFlag, command.File,
				"file with the master key, if it was not in the data directory; also PULUMI_LOCAL_KEYS"),
		)}},
		Run: func(ctx context.Context, args []string) error {
			if directory == "" {
				return cli.Usagef("restore needs --data DIRECTORY: an empty directory, or one that does not exist")
			}
			masterKey = cmp.Or(masterKey, s.variable("PULUMI_LOCAL_KEYS"))
			if err := server.Restore(ctx, directory, masterKey, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(s.stdout, "%s is restored: start the service with --data %s\n",
				args[0], printable.ShellArgument(directory))
			return err
		},
	}
}
