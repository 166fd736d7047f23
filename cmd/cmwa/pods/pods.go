package pods

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Release describes the agent for which Pods are computed.
type Release struct {
	Schema  schema.Release
	Options kube.Options // Image and RunnerDirectory
}

// Choose returns the pool with this name. If the name is empty, it returns the only pool.
func Choose(specs []runtime.PoolSpec, name string) (runtime.PoolSpec, error) {
	var names []string
	for _, spec := range specs {
		if spec.Name == name || name == "" && len(specs) == 1 {
			return spec, nil
		}
		names = append(names, spec.Name)
	}
	switch {
	case len(specs) == 0:
		return runtime.PoolSpec{}, errors.New("no pool has deploy_target kubernetes")
	case name == "":
		return runtime.PoolSpec{}, cli.Usagef("several pools run Pods: name one with --pool: %s",
			strings.Join(names, ", "))
	default:
		return runtime.PoolSpec{}, cli.Usagef("there is no pool %q that runs Pods: the pools are %s",
			name, strings.Join(names, ", "))
	}
}

// Pools returns the pools of a file that run Pods, sorted by name. If the file contains Pod
// templates and no configuration, each template gives one pool with default settings. The
// problems are those that an agent of this release reports on any machine. If one is an
// error, Pools returns no pools.
func (r Release) Pools(source schema.Source) (specs []runtime.PoolSpec, problems position.Problems) {
	source.Elsewhere, source.Release = true, r.Schema

	embedded, packed := schema.Configurations(source)
	templates := schema.Templates(source)
	type agent struct {
		config *schema.Config
		image  string // empty if unknown
	}
	var agents []agent
	if packed || len(templates) > 0 {
		if problems = schema.VetAsAgent(source); problems.Err() != nil {
			return nil, problems
		}
		for _, one := range embedded {
			config, more := schema.Load(one)
			problems = append(problems, more.Errors()...)
			agents = append(agents, agent{config, one.Image})
		}
	} else {
		agents = make([]agent, 1)
		agents[0].config, problems = schema.Load(source)
	}
	if problems.Err() != nil {
		return nil, problems
	}

	for _, a := range agents {
		for _, spec := range reconcile.Want(a.config, 1).Pools {
			if spec.Identity.Target == "kubernetes" {
				settings := &spec.Tuning.Instance.Kubernetes
				settings.Image = cmp.Or(settings.Image, a.image)
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

// templatePool returns a pool with default settings and this template.
func templatePool(template map[string]any) runtime.PoolSpec {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // it was decoded from YAML or JSON
	}
	spec := runtime.PoolSpec{Name: schema.DefaultPool, Identity: runtime.Identity{Target: "kubernetes"}}
	spec.Tuning.Instance.Kubernetes.Template = text
	return spec
}

// Changes contains the changes in the Pods of one pool.
type Changes struct {
	File    string         `json:"file,omitempty"`
	Pool    string         `json:"pool"`
	Changes []patch.Change `json:"changes"`
}

// Templates returns, for each pool that runs Pods, the changes that its template makes in
// the Pod of a job. It returns nothing if the file has an error.
func (r Release) Templates(source schema.Source) ([]Changes, error) {
	specs, _ := r.Pools(source)
	var all []Changes
	for _, spec := range specs {
		changes, err := kube.TemplateChanges(spec, r.Options)
		if err != nil {
			return nil, err
		}
		all = append(all, Changes{source.Path, spec.Name, append([]patch.Change{}, changes...)})
	}
	return all, nil
}

// Reload returns the changes that a reload makes in the Pods of pools. It considers each
// pool name that both configurations have, even if the reload replaces the pool. It omits
// pools without changes.
func (r Release) Reload(before, after *schema.Config) ([]Changes, error) {
	old := map[string]runtime.PoolSpec{}
	for _, spec := range reconcile.Want(before, 1).Pools {
		old[spec.Name] = spec
	}
	var all []Changes
	for _, spec := range reconcile.Want(after, 1).Pools {
		previous, exists := old[spec.Name]
		if !exists || previous.Identity.Target != "kubernetes" || spec.Identity.Target != "kubernetes" {
			continue
		}
		changes, err := kube.Changes(previous, spec, r.Options)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", spec.Name, err)
		}
		if len(changes) > 0 {
			all = append(all, Changes{Pool: spec.Name, Changes: changes})
		}
	}
	slices.SortFunc(all, func(a, b Changes) int { return strings.Compare(a.Pool, b.Pool) })
	return all, nil
}

// WriteTemplates writes the changes that [Release.Templates] returns.
func WriteTemplates(w io.Writer, all []Changes) error {
	return write(w, all, func(c Changes, pools string) string {
		if len(c.Changes) == 0 {
			return c.File + ": " + pools + ": no template changes the Pod of a job"
		}
		return c.File + ": " + pools + ": the template changes the Pod of a job"
	})
}

// WriteReload writes the changes that [Release.Reload] returns.
func WriteReload(w io.Writer, all []Changes) error {
	return write(w, all, func(_ Changes, pools string) string { return pools + ": Pods of the next jobs" })
}

// write writes one paragraph per pool: a heading, and a line for each change. Pools of one
// file with the same changes share a paragraph.
func write(w io.Writer, all []Changes, heading func(c Changes, pools string) string) error {
	type paragraph struct{ file, text string }
	var order []paragraph
	alike := map[paragraph][]Changes{}
	for _, c := range all {
		p := paragraph{file: c.File}
		for _, change := range c.Changes {
			p.text += "  " + change.String() + "\n"
		}
		if alike[p] == nil {
			order = append(order, p)
		}
		alike[p] = append(alike[p], c)
	}

	for _, p := range order {
		var names []string
		for _, c := range alike[p] {
			names = append(names, c.Pool)
		}
		pools := "pool " + names[0]
		if len(names) > 1 {
			pools = "pools " + strings.Join(names, ", ")
		}
		if _, err := io.WriteString(w, heading(alike[p][0], pools)+"\n"+p.text); err != nil {
			return err
		}
	}
	return nil
}
