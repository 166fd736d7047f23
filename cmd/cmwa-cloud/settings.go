package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

func settingsGet(s stdio) command.Command {
	connection := newConnection(s)
	return command.Command{
		Name: "get", Help: "print the deployment settings of a stack as JSON; secrets stay encrypted",
		Forms: connection.form([]command.Item{stackArgument}),
		Run: func(ctx context.Context, args []string) error {
			c, stack, err := connection.openStack(args[0])
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := c.call(ctx, http.MethodGet, stack+"/deployments/settings", nil, &answer); err != nil {
				return err
			}
			var text bytes.Buffer
			if err := json.Indent(&text, answer, "", "  "); err != nil {
				return fmt.Errorf("print the settings: %w", err)
			}
			_, err = fmt.Fprintln(s.stdout, text.String())
			return err
		},
	}
}

func settingsSet(s stdio) command.Command {
	connection := newConnection(s)
	var d deployFlags
	return command.Command{
		Name: "set", Help: "change the deployment settings of a stack, and make the stack if it does not exist",
		Long:  "Settings that neither a flag nor the file names stay. In the file, null removes a setting.",
		Forms: connection.form([]command.Item{stackArgument}, d.settings()...),
		Run: func(ctx context.Context, args []string) error {
			c, stack, err := connection.openStack(args[0])
			if err != nil {
				return err
			}
			body, err := d.body(s)
			if err != nil {
				return err
			}
			if len(body) == 0 {
				return cli.Usagef("settings set needs a setting: see cmwa-cloud settings set --help")
			}
			if err := d.post(ctx, c, stack, "/deployments/settings", body, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.stdout, "the settings of %s are changed\n", args[0])
			return err
		},
	}
}
