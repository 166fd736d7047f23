package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// livePlan is the response of an agent to cmwa plan --live. Like each plan, it has a mark in place
// of a secret.
type livePlan struct {
	Reloads  []reconcile.Reload `json:"reloads"`
	Pods     []pods.Changes     `json:"pods"`
	Problems []report.Problem   `json:"problems"`
	Refused  bool               `json:"refused"`
	Error    string             `json:"error,omitempty"`
}

// planLive plans the reload from the configuration that a running agent has in force to a file. The
// agent computes the plan.
func (s stdio) planLive(ctx context.Context, c *client, names []string) (planned, error) {
	files, err := input.Reader{Environ: c.environ, Stdin: s.stdin}.Read(ctx, names)
	if err != nil {
		return planned{}, err
	}
	source := files.Sources[0]
	if problems := files.Unread[0]; problems != nil {
		findings := report.Findings(source.Path, problems, map[position.Problem]bool{})
		return planned{findings: findings, refused: true}, nil
	}

	path, err := filepath.Abs(source.Path)
	if err != nil {
		return planned{}, err
	}
	response, err := c.ask(ctx, control.Request{
		Command: control.Plan, File: &control.File{Path: path, Content: source.Content, Mode: source.Mode},
	})
	if err != nil {
		return planned{}, err
	}
	var plan livePlan
	if json.Unmarshal(response.Result, &plan) != nil {
		return planned{}, errors.New("the response is not that of a cmwa agent")
	}
	if plan.Error != "" {
		return planned{}, errors.New(printable.Text(plan.Error))
	}
	p := planned{reloads: plan.Reloads, pods: plan.Pods, refused: plan.Refused}
	for _, problem := range plan.Problems {
		if problem.File == path {
			problem.File = source.Path // as the user named it
		}
		p.findings = append(p.findings, report.Finding{Problem: problem.Position(), Checked: source.Path})
	}
	return p, nil
}

// planner returns the function with which an agent responds to cmwa plan --live.
func planner(environ environment, inForce func() *schema.Config) func(control.File) any {
	executable, _ := os.Executable()
	return func(file control.File) any {
		defer debug.FreeOSMemory() // as after a reload
		after, problems := asAgent(schema.Source{
			Path: file.Path, Content: file.Content, Mode: file.Mode, Environ: environ, Executable: executable,
			PinnedServiceURL: strings.TrimSpace(environ[pinVariable]),
		})
		plan := livePlan{Refused: after == nil}
		for _, p := range problems {
			plan.Problems = append(plan.Problems, report.NewProblem(p))
		}
		if after != nil {
			before := inForce()
			plan.Reloads = reconcile.Preview(before, after)
			var err error
			if plan.Pods, err = podRelease().Reload(before, after); err != nil {
				plan.Error = err.Error()
			}
		}
		return plan
	}
}

// asAgent loads a source as the agent of this release does. The configuration is
// nil if that agent refuses it.
func asAgent(source schema.Source) (*schema.Config, position.Problems) {
	source.Release = carriedOut
	return schema.Load(source)
}

// dryRun is cmwa run --dry-run: it loads the configuration as the agent would, and
// prints the first plan.
func dryRun(config string, s stdio) error {
	source, err := findForRun(placesOf(config, s.environ))
	if err != nil {
		return cli.Usage(err)
	}
	c, problems := asAgent(source)
	if c == nil {
		return cli.Usage(problems.Err())
	}
	for _, warning := range problems.Warnings() {
		fmt.Fprintf(s.stderr, "cmwa: warning: %v\n", warning)
	}
	_, err = io.WriteString(s.stdout, reconcile.Diff(reconcile.Want(c, 1), reconcile.Observed{}).String())
	return err
}
