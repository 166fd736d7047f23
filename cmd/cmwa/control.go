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
	return control.Terminal{Stdout: s.stdout, Stderr: s.stderr, Directory: func(config string) (string, string, error) {
		return stateDirectory(config, s.environ)
	}}
}

// stateDirectory returns the state directory of the agent with a configuration, and the name of
// the configuration for people. Config is the value of --config.
func stateDirectory(config string, environ environment) (directory, name string, err error) {
	// The file may be invalid, so read only one key of it.
	source, err := find(config, environ)
	if err != nil {
		return "", "", err
	}
	configured := cmp.Or(strings.TrimSpace(environ["PULUMI_AGENT_STATE_DIRECTORY"]),
		schema.TopLevelScalar(source.Content, "state_directory"))
	if directory, err = agentid.Directory(configured, environ.lookup, os.Getuid()); err != nil {
		return "", "", err
	}
	name = "environment variables only"
	if source.Path != "" {
		name = printable.QuoteName(source.Path)
	}

	// The agent with the directory may have another configuration.
	owner, err := agentid.OwnerOf(directory)
	if err != nil {
		return "", "", fmt.Errorf("%w: run this as the agent's user or as root", err)
	}
	if !owner.RunsWith(source.Path) {
		return "", "", fmt.Errorf("no agent runs with %s: the last process that used its state directory %s is %s",
			name, directory, owner)
	}
	return directory, name, nil
}
