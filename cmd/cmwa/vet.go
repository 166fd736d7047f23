package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// exitUnread is the exit code of vet and pod for a file that they cannot read.
const exitUnread = 2

type vetFlags struct {
	format      string
	pods, local bool
	strict      bool
}

func vetCommand(s stdio) command.Command {
	f := vetFlags{format: "text"}
	return command.Command{
		Name: "vet", Help: "check configurations, Pod templates and Kubernetes manifests",
		Forms: []command.Form{{
			command.Optional(command.String(&f.format, "format", command.OneOf(vetFormats()...),
				"format of the output")),
			command.Optional(command.Bool(&f.pods, "pod",
				"also print what each Pod template changes in the Pod of a job; with format text or json")),
			command.Optional(command.Bool(&f.local, "local",
				"also check that the files exist here that a configuration names: tokens, certificates, templates")),
			command.Optional(command.Bool(&f.strict, "strict",
				"make an unknown key and a file without settings an error")),
			command.Argument("[FILE...]", command.File),
		}},
		Long: `Prints every problem with its position and how to fix it, and on a terminal the number of problems.
The formats json and sarif always print a document.

FILE is a configuration, a Pod template in YAML or JSON, or Kubernetes manifests; its content
decides which. In manifests, cmwa vet checks the keys pulumi-workflow-agent.yaml and worker-pod.json
of each ConfigMap and Secret, and the PULUMI_AGENT_ variables of containers, also from a ConfigMap in
the same file or directory. A note names a variable whose value only the cluster has. FILE may also
be - for standard input, which must not be empty, or a directory: then all files in it that are one of
these are checked. Without FILE, cmwa vet checks the configuration that cmwa run would use.

No format shows the value of a key, except harmless numbers and choices in text on a terminal.
Columns count characters. "cmwa pod" prints the whole Pod of a job.

Exit code 0: no error, though there may be warnings; 1: an error; 2: a FILE cannot be read, or the
command line is wrong.`,
		Run: func(ctx context.Context, files []string) error {
			// The other formats have no place for the changes of Pods.
			if f.pods && f.format != "text" && f.format != "json" {
				return cli.Usagef("--pod needs --format text or json")
			}
			return s.vet(ctx, files, f)
		},
	}
}

func vetFormats() []string { return []string{"text", "json", "sarif", "github"} }

// vetDocument is the JSON of cmwa vet.
type vetDocument struct {
	report.Document
	Pods []pods.Changes `json:"pods,omitempty"` // with --pod
}

// vetFormat returns the function that writes findings in a format, and with --pod the
// changes of templates.
func (s stdio) vetFormat(name string) func([]report.Finding, []pods.Changes) error {
	switch name {
	case "text":
		terminal, coloured := isTerminal(s.stdout), s.coloured(s.stdout)
		return func(all []report.Finding, changed []pods.Changes) error {
			if err := report.Text(s.stdout, all, terminal, coloured); err != nil {
				return err
			}
			return pods.WriteTemplates(s.stdout, changed)
		}
	case "json":
		return func(all []report.Finding, changed []pods.Changes) error {
			return report.WriteJSON(s.stdout, vetDocument{report.NewDocument(all), changed})
		}
	case "sarif":
		return func(all []report.Finding, _ []pods.Changes) error {
			return report.SARIF(s.stdout, all, cli.Version())
		}
	default:
		return func(all []report.Finding, _ []pods.Changes) error { return report.GitHub(s.stdout, all) }
	}
}

// vet is cmwa vet. It prints the problems of all files at once, in the order of the
// command line.
func (s stdio) vet(ctx context.Context, names []string, f vetFlags) error {
	// Read the files. In a format for programs, the document also contains the error.
	write := s.vetFormat(f.format)
	files, err := input.Reader{Environ: s.environ, Stdin: s.stdin, Directories: true}.Read(ctx, names)
	switch {
	case ctx.Err() != nil:
		return cli.ExitError(exitUnread)
	case err != nil && f.format != "text":
		unread := position.Problems{{Rule: position.RuleUnreadable, Message: err.Error()}}
		if err := write(report.Findings(schema.FileName, unread, map[position.Problem]bool{}), nil); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		return err
	case err != nil:
		return err
	}

	check := schema.Vet
	if f.local {
		check = schema.VetLocal
	}
	var findings []report.Finding
	var changed []pods.Changes
	reported := map[position.Problem]bool{}
	for i, source := range files.Sources {
		if err := ctx.Err(); err != nil {
			return cli.ExitError(exitUnread)
		}
		problems := files.Unread[i]
		if source.Path == input.Stdin && len(bytes.TrimSpace(source.Content)) == 0 && problems == nil {
			problems = position.Problems{{Rule: position.RuleSyntax, File: source.Path,
				Message: "standard input is empty", Hint: "check whether the command before the pipe has failed"}}
		} else if problems == nil {
			source.Release, source.Strict = carriedOut, source.Strict || f.strict
			problems = check(source)
			if f.pods && problems.Err() == nil {
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

	if err := write(findings, changed); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	var number [position.Note + 1]int // of findings, by severity
	for _, f := range findings {
		number[f.Severity]++
	}
	errs, warnings := number[position.Error], number[position.Warning]
	if isTerminal(s.stderr) {
		if len(files.Skipped) > 0 {
			fmt.Fprintf(s.stderr, "skipped %s of other programs\n", printable.Plural(len(files.Skipped), "file"))
		}
		fmt.Fprintf(s.stderr, "%s, %s in %s\n", printable.Plural(errs, "error"),
			printable.Plural(warnings, "warning"), printable.Plural(len(files.Sources), "file"))
	}
	switch {
	case len(files.Unread) > 0:
		return cli.ExitError(exitUnread)
	case errs > 0:
		return cli.ExitError(cli.ExitFailure)
	default:
		return nil
	}
}

// excerpt adds to each finding the part of its line that may be shown.
func excerpt(source schema.Source, findings []report.Finding) {
	problems := make(position.Problems, len(findings))
	for i, f := range findings {
		if f.File == source.Path { // and not a file that the source names
			problems[i] = f.Problem
		}
	}
	for i, e := range schema.Excerpts(source.Content, problems) {
		findings[i].Excerpt = e
	}
}
