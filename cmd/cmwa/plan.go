package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema"
)

// Exit codes of cmwa plan beside 0 for no change. They are those that people know
// from other planners, not those of the other commands.
const (
	exitInvalid = 1
	exitChanges = 2
)

func planCommand(s streams) *ffcli.Command {
	flags := s.flags("cmwa plan")
	format := flags.String("format", "text", "text or json")
	return &ffcli.Command{
		Name: "plan", ShortUsage: "cmwa plan [--format text|json] OLD NEW",
		ShortHelp: "say what a reload from one file to another would do",
		LongHelp: "Tells, for the agent and for each pool, which keys would change, and whether that is applied now, to the next job,\n" +
			"by draining the pool and starting a new one, or needs a restart. Tokens and files that are not on this machine do not matter.\n" +
			"Exit code 0: no change; 2: changes; 1: a file cannot be read or used.",
		FlagSet: flags,
		Exec: func(_ context.Context, args []string) error {
			if len(args) != 2 || *format != "text" && *format != "json" {
				fmt.Fprintln(s.stderr, "cmwa: write: cmwa plan [--format text|json] OLD NEW")
				return exitError(exitInvalid)
			}
			before, first := s.planned(args[0])
			after, second := s.planned(args[1])
			if err := errors.Join(first, second); err != nil {
				fmt.Fprintln(s.stderr, err)
				return exitError(exitInvalid)
			}
			return s.printPlan(reconcile.Preview(before, after), *format)
		},
	}
}

// planned loads one side of a plan.
func (s streams) planned(path string) (*schema.Config, error) {
	executable, _ := os.Executable()
	source, err := schema.Find(schema.Places{Config: path, Executable: executable, Environ: readEnvironment(s.environ)})
	if err != nil {
		return nil, fmt.Errorf("cmwa: %w", err)
	}
	source.Elsewhere = true
	c, problems := schema.Load(source)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (s streams) printPlan(reloads []reconcile.Reload, format string) error {
	var err error
	if format == "json" {
		err = s.printJSON(planJSON(reloads))
	} else {
		_, err = fmt.Fprint(s.stdout, reconcile.Describe(reloads))
	}
	switch {
	case err != nil:
		return err
	case len(reloads) == 0:
		return nil
	default:
		return exitError(exitChanges)
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
}

type planChange struct {
	Key    string `json:"key"`
	From   string `json:"from"`
	To     string `json:"to"`
	Effect string `json:"effect"`
}

func planJSON(reloads []reconcile.Reload) planDocument {
	document := planDocument{Version: 1, Changed: len(reloads) > 0, Reloads: []planReload{}}
	for _, r := range reloads {
		out := planReload{Pool: r.Pool, Fate: string(r.Fate), Changes: []planChange{}}
		for _, c := range r.Changes {
			out.Changes = append(out.Changes, planChange{Key: c.Key, From: c.From, To: c.To, Effect: string(c.Effect)})
		}
		document.Reloads = append(document.Reloads, out)
	}
	return document
}

func (s streams) printJSON(document any) error {
	encoder := json.NewEncoder(s.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}
