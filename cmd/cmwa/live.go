package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// loadLive loads the configuration that the running agent has in force, and the file that
// would replace it. The agent must not send tokens. It reports only the path of its file
// and the digest of its configuration. loadLive reads that file itself, and accepts it if
// the digests are equal. The digest covers variables and token files.
func (s stdio) loadLive(
	ctx context.Context, c *client, names []string,
) (before, after *schema.Config, findings []report.Finding, err error) {
	d, err := c.fetch(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if d.Agent.Version != cli.Version() {
		fmt.Fprintf(s.stderr, "cmwa: warning: the agent has version %s and this program %s: "+
			"they may treat some keys differently\n", printable.Text(d.Agent.Version), cli.Version())
	}
	if before, err = inForceHere(d, c.environ); err != nil {
		return nil, nil, nil, err
	}

	files, err := input.Reader{Environ: c.environ, Stdin: s.stdin}.Read(ctx, names)
	if err != nil {
		return nil, nil, nil, err
	}
	problems := files.Unread[0]
	if problems == nil {
		after, problems = asAgent(files.Sources[0])
	}
	return before, after, report.Findings(files.Sources[0].Path, problems, map[position.Problem]bool{}), nil
}

// asAgent loads a source as the agent of this release does. The configuration is
// nil if that agent refuses it.
func asAgent(source schema.Source) (*schema.Config, position.Problems) {
	source.Release = carriedOut
	return schema.Load(source)
}

// inForceHere loads the configuration that an agent has in force from the files of this
// machine.
func inForceHere(d status.Document, environ environment) (*schema.Config, error) {
	executable, _ := os.Executable()
	source := schema.Source{Environ: environ, Executable: executable}
	if path := d.Config.Path; path != "" {
		if !filepath.IsAbs(path) {
			return nil, errors.New("/status has no path of a configuration file: is this a cmwa agent?")
		}
		var err error
		paths := schema.SearchPaths{Config: path, Executable: executable, Environ: environ}
		if source, err = schema.Find(paths); err != nil {
			return nil, fmt.Errorf("the file of the agent, %s, cannot be read here: "+
				"run this where the agent runs, as its user", printable.QuoteName(path))
		}
	}

	outcome := schema.Evaluate(source)
	switch here, _ := os.Getwd(); {
	case outcome.Config != nil && outcome.Digest == d.Config.Digest:
		return outcome.Config, nil
	case d.Config.Rejection != nil:
		return nil, errors.New("the agent refused the last edit of its file, so no file has the configuration in " +
			"force: undo that edit first (cmwa status prints why it was refused), or compare two files with " +
			"cmwa plan OLD NEW")
	case d.Agent.Directory != "" && d.Agent.Directory != here:
		return nil, fmt.Errorf("the file, as it is read here, differs from the configuration in force: "+
			"run this as the agent's user, with its PULUMI_AGENT_ variables, and in its working directory %s",
			printable.QuoteName(d.Agent.Directory))
	default:
		return nil, errors.New("the file, as it is read here, differs from the configuration in force: " +
			"run this as the agent's user, with its PULUMI_AGENT_ variables; if the file was saved just now, " +
			"wait a second")
	}
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
