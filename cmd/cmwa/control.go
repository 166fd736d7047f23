package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// controlTerminal returns what the commands of the control socket need.
func controlTerminal(s stdio) control.Terminal {
	environ := readEnvironment(s.environ)
	return control.Terminal{Stdout: s.stdout, Stderr: s.stderr, Folders: func(config string) ([]string, string, error) {
		// Find the state folder. The file may be invalid, so read only one key of it.
		source, err := find(config, environ)
		if err != nil {
			return nil, "", err
		}
		configured := cmp.Or(strings.TrimSpace(environ["PULUMI_AGENT_STATE_DIRECTORY"]),
			schema.TopLevelScalar(source.Content, "state_directory"))
		state, err := agentid.Directory(configured, environ.lookup, os.Getuid())
		if err != nil {
			return nil, "", err
		}

		// List the folders of the agents in it.
		folders, err := agentid.Folders(state, source.Path)
		if err != nil {
			return nil, "", fmt.Errorf("%w: run this as the agent's user or as root", err)
		}
		if source.Path == "" {
			return folders, "environment variables only", nil
		}
		return folders, printable.QuoteName(source.Path), nil
	}}
}
