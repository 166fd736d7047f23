package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/command"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema"
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
		specs, problems = podPools(sources[0])
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
	spec, err := choosePool(specs, pool)
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

// choosePool returns the pool of a name, or the only one if the name is empty.
func choosePool(specs []runtime.PoolSpec, name string) (runtime.PoolSpec, error) {
	var names []string
	for _, spec := range specs {
		if spec.Name == name || name == "" && len(specs) == 1 {
			return spec, nil
		}
		names = append(names, spec.Name)
	}
	switch {
	case len(specs) == 0:
		return runtime.PoolSpec{}, errors.New("no pool has deploy_target kubernetes, so no job gets a Pod")
	case name == "":
		return runtime.PoolSpec{}, cli.Usagef("several pools run Pods: name one with --pool: %s", strings.Join(names, ", "))
	default:
		return runtime.PoolSpec{}, cli.Usagef("there is no pool %q that runs Pods: the pools are %s",
			name, strings.Join(names, ", "))
	}
}

// podPools returns the pools of a file that run Pods, sorted by name. A Pod template
// by itself is that of a pool with default settings. Problems are those that the
// agent of this release finds, wherever it runs; the list is empty if one is an error.
func podPools(source schema.Source) (specs []runtime.PoolSpec, problems position.Problems) {
	source.Elsewhere = true
	embedded, packed := schema.Configurations(source)
	templates := schema.Templates(source)
	configs := []*schema.Config{nil}
	switch {
	case packed, len(templates) > 0:
		source.Release = carriedOut
		if problems = schema.VetAsAgent(source); problems.Err() != nil {
			return nil, problems
		}
		configs = nil
		for _, one := range embedded {
			config, more := asAgent(one)
			problems = append(problems, more.Errors()...)
			configs = append(configs, config)
		}
	default:
		configs[0], problems = asAgent(source)
	}
	if problems.Err() != nil {
		return nil, problems
	}
	for _, config := range configs {
		for _, spec := range reconcile.Want(config, 1).Pools {
			if spec.Identity.Target == "kubernetes" {
				specs = append(specs, spec)
			}
		}
	}
	if len(embedded) == 0 {
		for _, template := range templates {
			specs = append(specs, templatePool(template))
		}
	}
	slices.SortStableFunc(specs, func(a, b runtime.PoolSpec) int { return strings.Compare(a.Name, b.Name) })
	return specs, problems
}

// templatePool returns a pool with default settings and a template.
func templatePool(template map[string]any) runtime.PoolSpec {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // it was read from YAML or JSON
	}
	spec := runtime.PoolSpec{Name: schema.DefaultPool, Identity: runtime.Identity{Target: "kubernetes"}}
	spec.Tuning.Place.Kubernetes.Template = text
	return spec
}

// podChanges is what changes in the Pods of a pool.
type podChanges struct {
	File    string        `json:"file,omitempty"`
	Pool    string        `json:"pool"`
	Changes []kube.Change `json:"changes"`
}

// templateChanges returns what the templates of a file change in the Pods of jobs.
func templateChanges(source schema.Source) ([]podChanges, error) {
	specs, _ := podPools(source)
	var all []podChanges
	for _, spec := range specs {
		changes, err := kube.TemplateChanges(spec, podOptions())
		if err != nil {
			return nil, err
		}
		all = append(all, podChanges{source.Path, spec.Name, append([]kube.Change{}, changes...)})
	}
	return all, nil
}

// reloadedPods returns what a reload changes in the Pods of the pools that stay, in
// place or as new ones.
func reloadedPods(before, after *schema.Config) ([]podChanges, error) {
	old := map[string]runtime.PoolSpec{}
	for _, spec := range reconcile.Want(before, 1).Pools {
		old[spec.Name] = spec
	}
	var all []podChanges
	for _, spec := range reconcile.Want(after, 1).Pools {
		was, there := old[spec.Name]
		if !there || was.Identity.Target != "kubernetes" || spec.Identity.Target != "kubernetes" {
			continue
		}
		changes, err := kube.Changes(was, spec, podOptions())
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", spec.Name, err)
		}
		if len(changes) > 0 {
			all = append(all, podChanges{Pool: spec.Name, Changes: changes})
		}
	}
	slices.SortFunc(all, func(a, b podChanges) int { return strings.Compare(a.Pool, b.Pool) })
	return all, nil
}

// writePodChanges writes what changes in the Pods of pools, those with the same
// changes together.
func writePodChanges(w io.Writer, pods []podChanges, heading func(pod podChanges, pools string) string) error {
	var texts []string
	alike := map[string][]podChanges{}
	for _, pod := range pods {
		text := pod.File + "\x00"
		for _, c := range pod.Changes {
			text += "  " + c.String() + "\n"
		}
		if alike[text] == nil {
			texts = append(texts, text)
		}
		alike[text] = append(alike[text], pod)
	}
	for _, text := range texts {
		pools := "pool " + alike[text][0].Pool
		for i, pod := range alike[text][1:] {
			if i == 0 {
				pools = "pools" + strings.TrimPrefix(pools, "pool")
			}
			pools += ", " + pod.Pool
		}
		_, lines, _ := strings.Cut(text, "\x00")
		if _, err := io.WriteString(w, heading(alike[text][0], pools)+"\n"+lines); err != nil {
			return err
		}
	}
	return nil
}
