package main

import (
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/input"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

func podCommand(s stdio) command.Command {
	pool, image, format, work := "", "pulumi/pulumi", "yaml", runtime.Work{}
	formats := command.OneOf("yaml", "json")
	return command.Command{
		Name: "pod", Help: "print the Pod of a job, with the Pod template merged",
		Forms: []command.Form{{
			command.Optional(command.String(&image, "job-image", command.Image, "image of the job")),
			command.Optional(command.String(&pool, "pool", command.Name, "pool of the job, if several run Pods")),
			command.Optional(
				command.String(&work.Organization, "organization", command.Name, "the job's organization")),
			command.Optional(command.String(&work.Project, "project", command.Name, "the job's project")),
			command.Optional(command.String(&work.Stack, "stack", command.Name, "the job's stack")),
			command.Optional(
				command.String(&work.Operation, "operation", command.Name, "the job's operation, such as update")),
			command.Optional(
				command.String(&format, "format", formats, "format of the output"),
				command.String(&format, "o", formats, "the same as --format"),
			),
			command.Argument("[FILE]", command.File),
		}},
		Long: `FILE is a configuration, a Pod template, or Kubernetes manifests that contain either, or a directory
of these, as for cmwa vet. In manifests, the variables of the agent's container apply as far as the
manifests have their values; the others are named on standard error. Without FILE, it is the
configuration that cmwa run would use. No request is sent to a cluster.

The rules in pod_template_rules apply to the job of --organization, --project, --stack and
--operation. Without these options, only rules that match every name apply.

Values that differ from job to job are shown as "example". A Pod without a namespace is created in
the namespace of the agent. kubectl can read the output:

  cmwa pod | kubectl create --dry-run=server -f -

` + maskedHelp + ` So are the commands and annotations of the agent.

Problems go to standard error. Exit code 0: printed; 1: FILE has an error, or no pool runs Pods; 2:
FILE cannot be read, or the command line is wrong.`,
		Run: func(ctx context.Context, files []string) error { return s.pod(ctx, files, pool, image, format, work) },
	}
}

func (s stdio) pod(ctx context.Context, files []string, pool, image, format string, work runtime.Work) error {
	read, err := input.Reader{Environ: s.environ, Stdin: s.stdin, Directories: true}.Read(ctx, files)
	switch {
	case ctx.Err() != nil:
		return cli.ExitError(exitUnread)
	case err != nil:
		return err
	}
	var specs []runtime.PoolSpec
	var problems position.Problems
	for i, source := range read.Sources {
		more, wrong := []runtime.PoolSpec(nil), read.Unread[i]
		if wrong == nil {
			more, wrong = podRelease().Pools(source)
		}
		specs, problems = append(specs, more...), append(problems, wrong...)
	}
	findings := report.Findings(read.Sources[0].Path, problems, map[position.Problem]bool{})
	if err := report.Text(s.stderr, findings, false, false); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	switch {
	case len(read.Unread) > 0:
		return cli.ExitError(exitUnread)
	case problems.Err() != nil:
		return cli.ExitError(cli.ExitFailure)
	}

	spec, err := pods.Choose(specs, pool)
	if err != nil {
		return err
	}
	document, err := kube.Preview(spec, image, work, podOptions(nil))
	switch {
	case err != nil:
		return err
	case format == "json":
		return report.WriteJSON(s.stdout, document)
	default:
		return writeYAML(s.stdout, document)
	}
}

func podRelease() pods.Release { return pods.Release{Schema: carriedOut, Options: podOptions(nil)} }
