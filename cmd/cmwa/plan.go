package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Exit codes of cmwa plan, in addition to 0 for no change. Plan commands of other programs
// use the same codes. The other commands of cmwa use different ones.
const (
	exitInvalid = 1
	exitChanges = 2
)

func planCommand(s stdio) command.Command {
	format, live := "text", false
	running := client{environ: s.environ}
	formats := command.String(&format, "format", command.OneOf("text", "json"), "format of the output")
	return command.Command{
		Name: "plan", Help: "show what a reload from one file to another would do",
		Forms: []command.Form{{
			command.Optional(formats),
			command.Argument("OLD", command.File), command.Argument("NEW", command.File),
		}, {
			command.Required(command.Bool(&live, "live", "compare NEW with the configuration of the running agent")),
			command.Optional(formats),
			command.Optional(
				command.String(&running.config, "config", command.File,
					"with --live: configuration file of the agent; otherwise the file that cmwa run would use"),
			),
			command.Argument("NEW", command.File),
		}},
		UsageCode: exitInvalid, // 2 means that there are changes
		Long: `Prints the keys that change, for the agent and for each pool, and when each takes effect:

  live      at once
  rebind    at once: the new HTTP listener opens, then the old one closes
  next job  for jobs that are claimed from then on
  drain     with a new pool, which starts while the old one finishes its jobs
  restart   when the agent is restarted
  none      not at all: the key is for another deploy_target

It also prints what changes in the Pods of the next jobs. Without --live, files that a configuration
names, such as token files, need not exist on this machine.

Each file may be a pipe, or - for standard input. A file that the agent would refuse has no plan.
Either file may be Kubernetes manifests, or a directory of them, with one configuration. Variables are
then those of the agent's container, as far as the manifests have their values; those of this machine
are ignored.

With --live, the running agent computes the plan, with its variables and files. ` + control.FindsAgent + `

Problems go to standard error; --format json always prints a document, which has them too. Exit code
0: no change; 2: changes; 1: a file cannot be read or used.`,
		Run: func(ctx context.Context, files []string) error {
			compute := s.planFiles
			if live {
				compute = func(ctx context.Context, files []string) (planned, error) {
					return s.planLive(ctx, &running, files)
				}
			}
			return s.plan(ctx, files, compute, format)
		},
	}
}

// planned is what a reload would do.
type planned struct {
	reloads  []reconcile.Reload
	pods     []pods.Changes
	findings []report.Finding // problems of the configurations
	refused  bool             // one of the problems is an error, so there is no plan
}

// plan is cmwa plan.
func (s stdio) plan(
	ctx context.Context, files []string, compute func(context.Context, []string) (planned, error), format string,
) error {
	p, err := compute(ctx, files)
	findings := p.findings
	if ctx.Err() != nil {
		return cli.ExitError(exitInvalid)
	}
	if err := report.Text(s.stderr, findings, false, s.coloured(s.stderr)); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err != nil {
		fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
		problem := position.Problem{Rule: position.RuleUnreadable, Message: err.Error()}
		findings = append(findings, report.Finding{Problem: problem})
	}
	document := planDocument{Version: 1, Reloads: []planReload{}, Problems: report.NewDocument(findings).Problems}
	if err != nil || p.refused {
		if format == "json" {
			if err := report.WriteJSON(s.stdout, document); err != nil {
				return err
			}
		}
		return cli.ExitError(exitInvalid)
	}

	if format == "json" {
		document.add(p.reloads, p.pods)
		err = report.WriteJSON(s.stdout, document)
	} else {
		text := reconcile.Describe(p.reloads)
		if s.coloured(s.stdout) {
			text = effects.Paint(text)
		}
		if _, err = io.WriteString(s.stdout, text); err == nil {
			err = pods.WriteReload(s.stdout, p.pods)
		}
	}
	if err == nil && len(p.reloads) > 0 {
		err = cli.ExitError(exitChanges)
	}
	return err
}

// effects are the colours of the effects in a plan: of those without an interruption, of those that
// wait, and of those that need a new pool or a new agent.
var effects = printable.Paints{
	{Part: regexp.MustCompile(`(?m)^  (live|rebind)\b`), Colour: printable.Green},
	{Part: regexp.MustCompile(`(?m)^  next job\b`), Colour: printable.Yellow},
	{Part: regexp.MustCompile(`(?m)^  (drain|restart)\b`), Colour: printable.Red},
}

// planFiles plans the reload from the first file to the second.
func (s stdio) planFiles(ctx context.Context, files []string) (p planned, err error) {
	before, after, findings, err := s.loadBoth(ctx, files)
	p = planned{findings: findings, refused: before == nil || after == nil}
	if err == nil && !p.refused {
		p.reloads = reconcile.Preview(before, after)
		p.pods, err = podRelease().Reload(before, after)
	}
	return p, err
}

// loadBoth loads the two files of a plan, each as the agent of this release would.
func (s stdio) loadBoth(
	ctx context.Context, names []string,
) (before, after *schema.Config, findings []report.Finding, err error) {
	files, err := input.Reader{Environ: s.environ, Stdin: s.stdin, Directories: true}.Read(ctx, names)
	if err != nil {
		return nil, nil, nil, err
	}

	// If there is a manifest, the result must not depend on this machine.
	anyManifest := slices.ContainsFunc(files.Sources, func(source schema.Source) bool {
		_, packed := schema.Configurations(source)
		return packed
	})
	configs := make([]*schema.Config, len(names))
	reported := map[position.Problem]bool{}
	for i, name := range names {
		var sources []schema.Source
		var problems position.Problems
		for j, source := range files.Sources {
			if files.Named[j] != i {
				continue
			}
			source.Elsewhere = true
			if anyManifest {
				source.Environ, source.Executable = nil, ""
			}
			sources = append(sources, source)
			problems = append(problems, files.Unread[j]...)
		}
		if problems == nil {
			configs[i], _, problems = loadOnly(sources, name)
		}
		findings = append(findings, report.Findings(sources[0].Path, problems, reported)...)
	}
	return configs[0], configs[1], findings, nil
}

// loadOnly loads the only configuration in the files that one argument names, as the agent
// would, and returns it with the variables that apply to it. The configuration is nil if a problem is an
// error, such as files that do not contain exactly one configuration.
func loadOnly(
	files []schema.Source, name string,
) (c *schema.Config, variables map[string]string, problems position.Problems) {
	var found []schema.Source
	for _, source := range files {
		source.Release = carriedOut
		embedded, packed := schema.Configurations(source)
		switch {
		case packed:
			problems = append(problems, schema.VetAsAgent(source)...)
			found = append(found, embedded...)
		case len(files) == 1:
			c, problems = asAgent(source)
			return c, source.Environ, problems
		case len(schema.Templates(source)) == 0:
			problems = append(problems, schema.VetAsAgent(source)...)
			found = append(found, source)
		}
	}
	wrong := position.Problem{
		Rule: position.RuleManifest, File: name, Hint: "name a file or a directory with one configuration",
	}
	switch {
	case problems.Err() != nil:
		return nil, nil, problems
	case len(found) == 1:
		c, more := asAgent(found[0])
		return c, found[0].Environ, append(problems, more.Errors()...)
	case len(found) == 0:
		wrong.Message = "no ConfigMap or Secret of this file contains a configuration, and no container has " +
			"variables of the agent"
	default:
		wrong.Message = fmt.Sprintf("there are %d configurations", len(found))
	}
	return nil, nil, append(problems, wrong)
}

// planDocument is the JSON document of cmwa plan. Version changes when programs that read
// the previous version would misread the document.
type planDocument struct {
	Version  int              `json:"version"`
	Changed  bool             `json:"changed"`
	Reloads  []planReload     `json:"reloads"`
	Problems []report.Problem `json:"problems"` // of the files; if one is an error, there is no plan
}

type planReload struct {
	reconcile.Reload
	Pod []patch.Change `json:"pod,omitempty"` // changes in the Pods of the pool's next jobs
}

func (d *planDocument) add(reloads []reconcile.Reload, changed []pods.Changes) {
	byPool := map[string][]patch.Change{}
	for _, c := range changed {
		byPool[c.Pool] = c.Changes
	}
	d.Changed = len(reloads) > 0
	for _, r := range reloads {
		r.Changes = append([]reconcile.Change{}, r.Changes...) // an empty list in JSON, not null
		d.Reloads = append(d.Reloads, planReload{r, byPool[r.Pool]})
	}
}
