package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/effective"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func migrateCommand(s stdio) command.Command {
	return command.Command{
		Name: "migrate", Help: "print the configuration of Pulumi's own agent as one for this agent",
		Forms: []command.Form{{command.Argument("[FILE]", command.File)}},
		Long: `FILE is a pulumi-workflow-agent.yaml or pulumi-deployment-agent.yaml of Pulumi's own agent, or the
Kubernetes manifests of its Deployment, or a directory of them. Without FILE, it is the file that the
agent would use. The PULUMI_AGENT_ variables of this command, or those of the Deployment, override the
file, as in both agents.

Prints a pulumi-workflow-agent.yaml without defaults. Comments before it name each part that this agent
does not have, what is left to do, and settings without effect. Tokens are not printed.

Exit code 0: everything is taken over; 1: a part is not; 2: FILE cannot be read or is invalid.`,
		Run: func(ctx context.Context, args []string) error {
			c, variables, problems, err := s.loadElsewhere(ctx, strings.Join(args, ""))
			if err != nil {
				return cli.Usage(err)
			}
			if c == nil {
				return cli.Usage(problems.Err())
			}
			m := migrate(c, variables, problems)
			text, err := effective.YAML(m.settings, true)
			if err != nil {
				return err
			}
			for _, list := range []struct {
				title string
				lines []string
			}{
				{"Not taken over, because this agent does not have it:", m.missing},
				{"Left to do:", m.steps},
				{"Without effect:", m.unused},
			} {
				if len(list.lines) > 0 {
					fmt.Fprintf(s.stdout, "# %s\n", list.title)
				}
				for _, line := range list.lines {
					fmt.Fprintf(s.stdout, "#   - %s\n", line)
				}
			}
			if _, err := s.stdout.Write(text); err != nil {
				return err
			}
			if len(m.missing) > 0 {
				return cli.ExitError(cli.ExitFailure)
			}
			return nil
		},
	}
}

// migration is a configuration of Pulumi's own agent, as one for this agent.
type migration struct {
	settings []schema.Setting
	missing  []string // parts that this agent does not have
	steps    []string // what the user has to do
	unused   []string // settings without effect in both agents, or with the other settings
}

// ownVariables are what becomes of the variables that no key can replace.
var ownVariables = map[string]string{
	"PULUMI_AGENT_IMAGE": "remove the variable PULUMI_AGENT_IMAGE: Pods copy the runner from the image of the " +
		"agent's Pod; an agent outside of the cluster needs kubernetes.image",
	"PULUMI_AGENT_DEBUG_POD":                 "keep the variable PULUMI_AGENT_DEBUG_POD",
	"PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE": "keep the variable PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE",
}

// migrate leaves out defaults, and what this agent does not have. The variables are those that apply to the
// configuration, and the problems those of loading it.
func migrate(c *schema.Config, variables map[string]string, problems position.Problems) (m migration) {
	var replaced []string // variables whose values are now in the file
	inUse := effective.InUse(c)
	type place struct {
		key    string
		origin position.Origin
	}
	known := map[place]bool{}
	for _, setting := range inUse {
		known[place{setting.Key, setting.Origin}] = true
	}
	for _, setting := range c.Settings() {
		at := place{setting.Key, setting.Origin}
		if !known[at] && setting.Origin != (position.Origin{}) {
			m.unused = append(m.unused, fmt.Sprintf("%s (%s), because of deploy_target",
				setting.Key, printable.Text(setting.Origin.String())))
		}
		known[at] = true
	}
	for _, setting := range inUse {
		switch origin := setting.Origin; {
		case origin == position.Origin{} || setting.Value == "":
			continue
		case setting.Key == "deploy_target" && !slices.Contains(carriedOut.Targets, setting.Value):
			m.missing = append(m.missing, fmt.Sprintf("deploy_target: %s (%s); use %s", setting.Value,
				printable.Text(origin.String()), printable.Join(carriedOut.Targets, "or")))
			continue
		case strings.HasPrefix(setting.Key, "ecs."):
			m.missing = append(m.missing, setting.Key+" ("+printable.Text(origin.String())+")")
			continue
		case setting.Key == "working_directory":
			m.steps = append(m.steps, fmt.Sprintf("working_directory (%s) is left out: this agent finds its own "+
				"runner programs next to its executable", printable.Text(origin.String())))
			continue
		case strings.Contains(setting.Value, secret.Mark) && setting.Key != "token":
			m.missing = append(m.missing, fmt.Sprintf("%s (%s), because it may have secrets: copy it",
				setting.Key, printable.Text(origin.String())))
			continue
		case setting.Key == "token" && origin.Variable != "":
			m.steps = append(m.steps, "keep the variable "+origin.Variable+
				", or write the token to a file and name that in token_file")
			continue
		case setting.Key == "token":
			file := "pool.token"
			if setting.Pool != "" && setting.Pool != schema.DefaultPool {
				file = setting.Pool + ".token"
			}
			setting.Key, setting.Value = "token_file", file
			m.steps = append(m.steps, fmt.Sprintf("write the token of %s to the file %s next to this one, "+
				"with mode 0600, and owned by the agent's user", printable.Text(origin.String()), file))
		case origin.Variable != "":
			replaced = append(replaced, origin.Variable)
		}
		m.settings = append(m.settings, setting)
	}
	if len(replaced) > 0 {
		slices.Sort(replaced)
		m.steps = append(m.steps, "remove these variables, which would override this file: "+
			strings.Join(slices.Compact(replaced), ", "))
	}
	for _, p := range problems {
		hint := p.Hint
		p.Hint = ""
		text := printable.Text(p.String())
		switch {
		case ownVariables[p.Path] != "":
		case p.Rule == position.RuleUnknownKey, p.Rule == position.RuleUnknownVariable:
			m.missing = append(m.missing, text)
		case p.Rule == position.RuleUnused:
			if hint != "" {
				text += "; " + printable.Text(hint)
			}
			m.unused = append(m.unused, text)
		case p.Rule == position.RuleUnknownValue:
			m.steps = append(m.steps, "keep this variable, or write its value into this file: "+text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ownVariables)) {
		if strings.TrimSpace(variables[name]) != "" {
			m.steps = append(m.steps, ownVariables[name])
		}
	}
	return m
}
