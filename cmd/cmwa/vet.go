package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// exitUnread is vet's code for a file that it cannot read.
const exitUnread = 2

func vetCommand(s streams) command.Command {
	format, withPods := "text", false
	return command.Command{
		Name: "vet", Help: "tell everything that is wrong with configurations, Pod templates and manifests that hold them",
		Forms: []command.Form{{
			command.Optional(command.String(&format, "format", command.OneOf(vetFormats()...),
				"how to tell what is wrong: "+strings.Join(vetFormats(), ", "))),
			command.Optional(command.Bool(&withPods, "pod",
				"tell, too, what each Pod template changes in the Pod of a job; with text and json")),
			command.Argument("[FILE...]", command.File),
		}},
		Long: "A FILE is a configuration, a Pod template in YAML or JSON, or Kubernetes manifests: of these the keys\n" +
			"pulumi-workflow-agent.yaml and worker-pod.json of each ConfigMap and Secret are checked, and the PULUMI_AGENT_\n" +
			"variables of containers, as far as their values are in the manifest. What a FILE is, its content says. The FILE -\n" +
			"is standard input. Without any FILE, the configuration is checked that cmwa run would take.\n" +
			"\n" +
			"Nothing is printed if nothing is wrong. The exit code is 0 if there is no error, though there may be warnings; 1 if\n" +
			"there is one; and 2 if a FILE cannot be read or the command line is wrong. No format shows what a key is set to,\n" +
			"but for harmless words and numbers that text shows on a terminal.\n" +
			"\n" +
			"With --pod, vet also prints what each Pod template changes in the Pod that a job would get without it: with format\n" +
			"json as pods. cmwa pod prints the whole Pod.\n" +
			"\n" +
			"Columns count characters.",
		Run: func(ctx context.Context, flags *flag.FlagSet, args []string) error {
			files, err := command.Interspersed(flags, args)
			if err != nil {
				return err
			}
			write, ok := s.vetFormat(format)
			if !ok {
				return cli.Usagef("--format must be one of %s", strings.Join(vetFormats(), ", "))
			}
			if withPods && format != "text" && format != "json" {
				return cli.Usagef("--pod has no format %s: write text or json", format)
			}
			return s.vet(ctx, files, withPods, write)
		},
	}
}

// vetFormats are the values of --format.
func vetFormats() []string { return []string{"text", "json", "sarif", "github"} }

// vetDocument is what vet finds, for programs.
type vetDocument struct {
	report.Document
	Pods []pods.Changes `json:"pods,omitempty"` // with --pod
}

// vetFormat returns the function that writes findings, and with --pod what templates
// change, in a format.
func (s streams) vetFormat(name string) (func([]report.Finding, []pods.Changes) error, bool) {
	switch name {
	case "text":
		environ := readEnvironment(s.environ)
		terminal := isTerminal(s.stdout)
		coloured := terminal && environ["NO_COLOR"] == "" && environ["TERM"] != "dumb"
		return func(all []report.Finding, changed []pods.Changes) error {
			if err := report.Text(s.stdout, all, terminal, coloured); err != nil {
				return err
			}
			return pods.WriteTemplates(s.stdout, changed)
		}, true
	case "json":
		return func(all []report.Finding, changed []pods.Changes) error {
			return writeJSON(s.stdout, vetDocument{report.NewDocument(all), changed})
		}, true
	case "sarif":
		return func(all []report.Finding, _ []pods.Changes) error {
			return report.SARIF(s.stdout, all, cli.Version())
		}, true
	case "github":
		return func(all []report.Finding, _ []pods.Changes) error { return report.GitHub(s.stdout, all) }, true
	default:
		return nil, false
	}
}

// vet is cmwa vet: read, check, and write all at once, in the order of the
// command line.
func (s streams) vet(
	ctx context.Context, files []string, withPods bool, write func([]report.Finding, []pods.Changes) error,
) error {
	sources, unread, err := s.sources(ctx, files)
	if err != nil {
		return err
	}

	// Check.
	var findings []report.Finding
	var changed []pods.Changes
	reported := map[position.Problem]bool{}
	for i, source := range sources {
		if err := ctx.Err(); err != nil {
			return cli.ExitError(exitUnread)
		}
		problems := unread[i]
		if problems == nil {
			source.Release = carriedOut
			problems = schema.Vet(source)
			if withPods && problems.Err() == nil {
				more, err := podRelease().Templates(source)
				if err != nil {
					return err
				}
				changed = append(changed, more...)
			}
		}
		more := report.Findings(cmp.Or(source.Path, schema.FileName), problems, reported)
		if isTerminal(s.stdout) {
			excerpt(source, more)
		}
		findings = append(findings, more...)
	}

	// Write, and count for a person at a terminal.
	if err := write(findings, changed); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	errs := 0
	for _, f := range findings {
		if f.Severity == position.Error {
			errs++
		}
	}
	if isTerminal(s.stderr) && len(findings) > 0 {
		fmt.Fprintf(s.stderr, "%s, %s in %s\n",
			several(errs, "error"), several(len(findings)-errs, "warning"), several(len(sources), "file"))
	}
	switch {
	case len(unread) > 0:
		return cli.ExitError(exitUnread)
	case errs > 0:
		return cli.ExitError(cli.ExitFailure)
	default:
		return nil
	}
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// excerpt adds what may be shown of the lines of one file.
func excerpt(source schema.Source, findings []report.Finding) {
	problems := make(position.Problems, len(findings))
	for i, f := range findings {
		if f.File == source.Path { // and not a file that it names
			problems[i] = f.Problem
		}
	}
	for i, e := range schema.Excerpts(source.Content, problems) {
		findings[i].Excerpt = e
	}
}
