package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Exit codes of cmwa plan beside 0 for no change. They are those that people know
// from other planners, not those of the other commands.
const (
	exitInvalid = 1
	exitChanges = 2
)

func planCommand(s streams) command.Command {
	format, live := "text", false
	running := client{environ: readEnvironment(s.environ)}
	c := command.Command{
		Name: "plan", Help: "say what a reload from one file to another would do",
		Forms: []command.Form{{
			command.Optional(command.String(&format, "format", command.OneOf("text", "json"), "text or json")),
			command.Argument("OLD", command.File), command.Argument("NEW", command.File),
		}, {
			command.Required(command.Bool(&live, "live",
				"compare with what the running agent has in force, in place of OLD")),
			command.Optional(
				command.String(&running.config, "config", command.File,
					"with --live: configuration file of the agent; otherwise the one that cmwa run would find"),
				command.String(&running.url, "url", command.URL, "with --live: where the agent's HTTP server is"),
			),
			command.Argument("NEW", command.File),
		}},
		UsageCode: exitInvalid, // 2 means that there are changes
		Long: "Tells, for the agent and for each pool, which keys would change, and whether that is applied now, to the next job,\n" +
			"by draining the pool and starting a new one, or needs a restart; and what changes in the Pods of its next jobs, with the\n" +
			"Pod template merged. Tokens and files that are not on this machine do not matter.\n" +
			"\n" +
			"OLD and NEW are named as a FILE of cmwa vet: pipes too, and - is standard input. Each is judged as the agent of this\n" +
			"release would: what it refuses has no plan, and of what it ignores there is a warning. Either may also be Kubernetes\n" +
			"manifests that hold one configuration; then neither is laid under the variables of this machine.\n" +
			"\n" +
			"With --live, NEW is compared with what the running agent has in force: what saving it in place of the agent's file\n" +
			"would do. It must be run where the agent runs, as its user and with its variables, and reads NEW as the agent would.\n" +
			"\n" +
			"Problems go to standard error. Exit code 0: no change; 2: changes; 1: a file cannot be read or used.",
	}
	c.Run = func(ctx context.Context, flags *flag.FlagSet, args []string) error {
		files, err := command.Interspersed(flags, args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return err
		case err == nil && live && len(files) == 1 && (format == "text" || format == "json"):
			return s.planLive(ctx, &running, files[0], format)
		case err != nil, live, running.config+running.url != "", len(files) != 2, format != "text" && format != "json":
			return cli.Usagef("write: %s", strings.Join(c.Usage(), ", or "))
		}
		configs, err := s.planned(ctx, files)
		if err != nil {
			return err
		}
		return s.printPlan(configs[0], configs[1], format)
	}
	return c
}

// planned loads the two sides of a plan, and prints their problems.
func (s streams) planned(ctx context.Context, files []string) (configs []*schema.Config, err error) {
	sources, unread, err := s.sources(ctx, files)
	if err != nil {
		var code cli.ExitError
		if !errors.As(err, &code) {
			fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
		}
		return nil, cli.ExitError(exitInvalid)
	}

	// Load each as the agent of this release does.
	embedded := make([][]schema.Source, len(sources))
	packed := make([]bool, len(sources))
	for i, source := range sources {
		embedded[i], packed[i] = schema.Configurations(source)
	}
	var findings []report.Finding
	reported := map[position.Problem]bool{}
	for i, source := range sources {
		source.Elsewhere = true
		if slices.Contains(packed, true) { // what differs must not come from this machine
			source.Environ, source.Executable = nil, ""
		}
		var config *schema.Config
		problems := unread[i]
		switch {
		case problems != nil:
		case packed[i]:
			config, problems = unpacked(source, embedded[i])
		default:
			config, problems = asAgent(source)
		}
		if problems.Err() != nil {
			err = cli.ExitError(exitInvalid)
		}
		findings = append(findings, report.Findings(source.Path, problems, reported)...)
		configs = append(configs, config)
	}

	// Print the problems.
	coloured := isTerminal(s.stderr) && readEnvironment(s.environ)["NO_COLOR"] == ""
	if wrong := report.Text(s.stderr, findings, false, coloured); wrong != nil {
		return nil, fmt.Errorf("write what was found: %w", wrong)
	}
	return configs, err
}

// unpacked loads the one configuration of manifests, as the agent would. It is nil
// if the problems hold an error.
func unpacked(source schema.Source, embedded []schema.Source) (*schema.Config, position.Problems) {
	wrong := position.Problem{Rule: position.RuleManifest, File: source.Path, Hint: "name a file with one configuration"}
	switch len(embedded) {
	case 0:
		if problems := schema.Vet(source); problems.Err() != nil {
			return nil, problems
		}
		wrong.Message = "no ConfigMap or Secret of this file holds a configuration"
		return nil, position.Problems{wrong}
	case 1:
		source.Release = carriedOut
		problems := schema.VetAsAgent(source)
		if problems.Err() != nil {
			return nil, problems
		}
		config, more := asAgent(embedded[0])
		if config == nil {
			return nil, append(problems, more.Errors()...)
		}
		return config, problems
	default:
		wrong.Message = fmt.Sprintf("the file holds %d configurations", len(embedded))
		return nil, position.Problems{wrong}
	}
}

// printPlan prints what a reload from one configuration to another does.
func (s streams) printPlan(before, after *schema.Config, format string) error {
	reloads := reconcile.Preview(before, after)
	changed, err := podRelease().Reload(before, after)
	if err != nil {
		return err
	}
	if format == "json" {
		err = writeJSON(s.stdout, planJSON(reloads, changed))
	} else {
		if _, err = fmt.Fprint(s.stdout, reconcile.Describe(reloads)); err == nil {
			err = pods.WriteReload(s.stdout, changed)
		}
	}
	switch {
	case err != nil:
		return err
	case len(reloads) == 0:
		return nil
	default:
		return cli.ExitError(exitChanges)
	}
}

// planDocument is a plan for programs. Version changes with its shape.
type planDocument struct {
	Version int          `json:"version"`
	Changed bool         `json:"changed"`
	Reloads []planReload `json:"reloads"`
}

type planReload struct {
	Pool    string       `json:"pool,omitempty"` // none is the agent as a whole
	Fate    string       `json:"fate,omitempty"`
	Changes []planChange `json:"changes"`

	Pod []patch.Change `json:"pod,omitempty"` // what changes in the Pods of its next jobs
}

type planChange struct {
	Key    string `json:"key"`
	From   string `json:"from"`
	To     string `json:"to"`
	Effect string `json:"effect"`
}

func planJSON(reloads []reconcile.Reload, changed []pods.Changes) planDocument {
	byPool := map[string][]patch.Change{}
	for _, c := range changed {
		byPool[c.Pool] = c.Changes
	}

	document := planDocument{Version: 1, Changed: len(reloads) > 0, Reloads: []planReload{}}
	for _, r := range reloads {
		out := planReload{Pool: r.Pool, Fate: string(r.Fate), Changes: []planChange{}, Pod: byPool[r.Pool]}
		for _, c := range r.Changes {
			out.Changes = append(out.Changes, planChange{Key: c.Key, From: c.From, To: c.To, Effect: string(c.Effect)})
		}
		document.Reloads = append(document.Reloads, out)
	}
	return document
}
