package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// planLive is cmwa plan --live: what the running agent would do if its file said
// what another file says. Tokens must not travel to find that out. So the agent
// only names its file and the digest of what it has in force; the file is read
// here, and counts if it comes to that digest. The digest covers the variables
// and the files of tokens too, so nothing that differs can go unnoticed.
func (s streams) planLive(ctx context.Context, c *client, name, format string) error {
	d, err := c.fetch(ctx)
	if err != nil {
		return s.noPlan(err)
	}
	if d.Agent.Version != cli.Version() {
		fmt.Fprintf(s.stderr, "cmwa: warning: the agent is of release %s and this program of %s: "+
			"they may not understand each key alike\n", report.Printable(d.Agent.Version), cli.Version())
	}
	before, err := inForceHere(d, c.environ)
	if err != nil {
		return s.noPlan(err)
	}
	sources, unread, err := s.sources(ctx, []string{name})
	if err != nil {
		return s.noPlan(err)
	}
	after, problems := (*schema.Config)(nil), unread[0]
	if problems == nil {
		after, problems = asAgent(sources[0])
	}
	findings := report.Findings(sources[0].Path, problems, map[position.Problem]bool{})
	if err := report.Text(s.stderr, findings, false, false); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	if after == nil {
		return cli.ExitError(exitInvalid)
	}
	return s.printPlan(before, after, format)
}

// asAgent loads a source as the agent of this release does. The configuration is
// nil exactly if that agent refuses it.
func asAgent(source schema.Source) (*schema.Config, position.Problems) {
	source.Release = carriedOut
	return schema.Load(source)
}

// noPlan says why there is no plan.
func (s streams) noPlan(err error) error {
	var code cli.ExitError
	if !errors.As(err, &code) {
		fmt.Fprintf(s.stderr, "cmwa: %v\n", err)
	}
	return cli.ExitError(exitInvalid)
}

// inForceHere loads what an agent has in force from the files of this machine.
func inForceHere(d status.Document, environ environment) (*schema.Config, error) {
	executable, _ := os.Executable()
	source := schema.Source{Environ: environ, Executable: executable}
	if path := d.Config.Path; path != "" {
		if !filepath.IsAbs(path) {
			return nil, errors.New("the agent does not tell where its file is: it is no agent")
		}
		var err error
		if source, err = schema.Find(schema.Places{Config: path, Executable: executable, Environ: environ}); err != nil {
			return nil, fmt.Errorf("the file of the agent, %s, cannot be read here: "+
				"run this where the agent runs, as its user", report.QuoteName(path))
		}
	}
	outcome := schema.Evaluate(source)
	switch here, _ := os.Getwd(); {
	case outcome.Config != nil && outcome.Digest == d.Config.Digest:
		return outcome.Config, nil
	case d.Config.Rejection != nil:
		return nil, errors.New("the agent refuses its file as it is now, so that what it has in force is in no file: " +
			"cmwa status tells why; undo that edit first, or compare two files with cmwa plan OLD NEW")
	case d.Agent.Directory != "" && d.Agent.Directory != here:
		return nil, fmt.Errorf("the file on disk, as it is read here, is not what the agent has in force: "+
			"run this as the agent's user, with its PULUMI_AGENT_ variables, and in its working directory %s",
			report.QuoteName(d.Agent.Directory))
	default:
		return nil, errors.New("the file on disk, as it is read here, is not what the agent has in force: " +
			"run this as the agent's user, with its PULUMI_AGENT_ variables; if the file was saved just now, wait a second")
	}
}

// dryRun is cmwa run --dry-run: the start of an agent up to the point where it
// would begin to act.
func dryRun(config string, s streams) error {
	source, err := find(config, readEnvironment(s.environ))
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
