package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/pods"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

func podCommand(s streams) command.Command {
	pool, image, format := "", "pulumi/pulumi", "yaml"
	formats := command.OneOf("yaml", "json")
	return command.Command{
		Name: "pod", Help: "print the Pod that a job would get, with the Pod template merged",
		Forms: []command.Form{{
			command.Optional(command.String(&image, "job-image", command.Image, "image that the job names")),
			command.Optional(command.String(&pool, "pool", command.Name, "pool of the job, where several run Pods")),
			command.Optional(
				command.String(&format, "format", formats, "yaml or json"),
				command.String(&format, "o", formats, "the same as --format"),
			),
			command.Argument("[FILE]", command.File),
		}},
		Long: "FILE is named as for cmwa vet: a configuration, a Pod template, or Kubernetes manifests that hold either. Without\n" +
			"a FILE, the configuration is taken that cmwa run would take. No cluster is asked.\n" +
			"\n" +
			"The word example stands for what each job has of its own. Values of environment variables, commands of containers\n" +
			"that are not the agent's, and tokens are masked. A Pod without a namespace is created in that of the agent.\n" +
			"kubectl takes the output: cmwa pod | kubectl create --dry-run=server -f -\n" +
			"\n" +
			"Problems go to standard error. Exit code 0: printed; 1: there is an error in FILE, or no pool that runs Pods;\n" +
			"2: FILE cannot be read or the command line is wrong.",
		Run: func(ctx context.Context, flags *flag.FlagSet, args []string) error {
			files, err := command.Interspersed(flags, args)
			switch {
			case err != nil:
				return err
			case len(files) > 1:
				return cli.Usagef("pod takes one FILE, and these are %d", len(files))
			case format != "yaml" && format != "json":
				return cli.Usagef("there is no format %q: write yaml or json", format)
			}
			return s.pod(ctx, files, pool, image, format)
		},
	}
}

// pod is cmwa pod.
func (s streams) pod(ctx context.Context, files []string, pool, image, format string) error {
	// Read the file and print its problems.
	sources, unread, err := s.sources(ctx, files)
	if err != nil {
		return err
	}
	specs, problems := []runtime.PoolSpec(nil), unread[0]
	if problems == nil {
		specs, problems = podRelease().Pools(sources[0])
	}
	findings := report.Findings(sources[0].Path, problems, map[position.Problem]bool{})
	if err := report.Text(s.stderr, findings, false, false); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	switch {
	case unread[0] != nil:
		return cli.ExitError(exitUnread)
	case problems.Err() != nil:
		return cli.ExitError(cli.ExitFailure)
	}

	// Print the Pod.
	spec, err := pods.Choose(specs, pool)
	if err != nil {
		return err
	}
	document, err := kube.Preview(spec, image, podOptions())
	switch {
	case err != nil:
		return err
	case format == "json":
		return writeJSON(s.stdout, document)
	default:
		return writeYAML(s.stdout, document)
	}
}

// podRelease returns what this release makes Pods with.
func podRelease() pods.Release { return pods.Release{Schema: carriedOut, Options: podOptions()} }
