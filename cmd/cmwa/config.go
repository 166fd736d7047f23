package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/effective"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// maskedHelp lists what [secret.Mask] replaces.
const maskedHelp = `Tokens are masked. In a Pod template, so are commands, arguments, the values of environment
variables and HTTP headers, annotations, attributes and options of volumes, and queries of paths.
Annotations that the API server checks are shown.`

func configCommand(s stdio) command.Command {
	config, format, origin := "", "yaml", false
	return command.Command{
		Name: "config", Help: "print the settings that cmwa run would use",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File,
				"configuration file; otherwise the file that cmwa run would use")),
			command.Optional(command.Bool(&origin, "origin",
				"add the origin of each value: file and line, variable, or default")),
			command.Optional(command.String(&format, "format", command.OneOf("yaml", "json"), "format of the output")),
		}},
		Long: `Environment variables override the file, and the file overrides the defaults. Keys
without a value, and the sections of other deploy targets, are omitted. Settings that all pools
share are at the top level.

` + maskedHelp + `

The file may be Kubernetes manifests, or a directory of them, with one configuration. Variables are
then those of the agent's container, as far as the manifests have their values.

Files that the configuration names, such as a token file, need not exist here. Exit code 2: the
configuration is invalid.`,
		Run: func(ctx context.Context, _ []string) error {
			c, _, problems, err := s.loadElsewhere(ctx, config)
			if err != nil {
				return cli.Usage(err)
			}
			if c == nil {
				return cli.Usage(problems.Err())
			}
			for _, p := range problems {
				fmt.Fprintf(s.stderr, "cmwa: %v: %v\n", p.Severity, p)
			}

			settings := effective.InUse(c)
			if format == "json" {
				return report.WriteJSON(s.stdout, effective.Data(settings, origin))
			}
			text, err := effective.YAML(settings, origin)
			if err != nil {
				return err
			}
			if origin {
				text = append(text, s.variablesOnly()...)
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}

// variablesOnly returns a comment for each setting without a key that a variable sets.
func (s stdio) variablesOnly() (text []byte) {
	for _, f := range schema.Fields() {
		if value := strings.TrimSpace(s.environ[f.Variable]); f.OnlyVariable && value != "" {
			text = fmt.Appendf(text, "# %s: %s; see cmwa explain %s\n", f.Variable, printable.Text(value), f.Variable)
		}
	}
	return text
}

// loadElsewhere loads a configuration, but not the files that it names, and returns it with the variables that apply
// to it. The configuration may be in Kubernetes manifests, or in a directory of them.
func (s stdio) loadElsewhere(
	ctx context.Context, name string,
) (c *schema.Config, variables map[string]string, problems position.Problems, err error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		files, err := input.Reader{Directories: true}.Read(ctx, []string{name})
		if err != nil {
			return nil, nil, nil, err
		}
		for _, problems := range files.Unread {
			return nil, nil, problems, nil
		}
		c, variables, problems = loadOnly(files.Sources, name)
		return c, variables, problems, nil
	}
	source, err := find(name, s.environ)
	if err != nil {
		return nil, nil, nil, err
	}
	if _, packed := schema.Configurations(source); packed {
		c, variables, problems = loadOnly([]schema.Source{source}, name)
		return c, variables, problems, nil
	}
	source.Elsewhere = true
	c, problems = schema.Load(source)
	return c, source.Environ, problems, nil
}
