package schema

import (
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// maxVariables limits the variables of containers that are checked in one file. Aliases in
// the file may multiply these variables.
const maxVariables = 20_000

// podSpec returns the spec of the Pods that an object creates, and nil for an object without
// Pods.
func (m *manifests) podSpec(o resource) *yaml.Node {
	path := []string{"spec", "template", "spec"}
	switch o.kind {
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job":
	case "CronJob":
		path = append([]string{"spec", "jobTemplate"}, path...)
	case "Pod":
		path = []string{"spec"}
	default:
		return nil
	}
	n := o.node
	for _, name := range path {
		_, n = m.get(n, name)
	}
	return n
}

// container is one container of the agent, with the variables that its manifest sets.
type container struct {
	names  map[string]*yaml.Node // names of all variables of the agent
	values map[string]*yaml.Node // values of the variables with a literal value, which may be empty
	open   bool                  // settings may come from other sources too
	image  *yaml.Node            // of the container; may be nil
}

// containers returns the containers of an object that have a variable of the agent.
func (m *manifests) containers(o resource) []container {
	spec := m.podSpec(o)
	_, list := m.get(spec, "containers")
	if list == nil || list.Kind != yaml.SequenceNode {
		return nil
	}

	var all []container
	for _, n := range list.Content {
		_, variables := m.get(n, "env")
		if variables == nil || variables.Kind != yaml.SequenceNode {
			continue
		}
		c := container{names: map[string]*yaml.Node{}, values: map[string]*yaml.Node{}, open: m.mounts(spec)}
		_, from := m.get(n, "envFrom")
		_, c.image = m.get(n, "image")
		for _, variable := range variables.Content {
			if m.variables++; m.variables > maxVariables {
				return nil
			}
			m.variable(&c, variable)
		}
		c.open = c.open || from != nil || c.names[prefix+"CONFIG"] != nil
		for name := range c.names {
			if strings.HasPrefix(name, prefix) { // other names may belong to the service
				all = append(all, c)
				break
			}
		}
	}
	return all
}

func (m *manifests) variable(c *container, n *yaml.Node) {
	_, name := m.get(n, "name")
	if name == nil || !strings.HasPrefix(name.Value, prefix) &&
		name.Value != defaultImage && name.Value != overrideImage {
		return
	}
	if c.names[name.Value] != nil {
		m.warn(position.RuleDuplicateKey, name, position.SafeName(name.Value),
			"is set twice; the last value is used", "keep one of the two")
		delete(c.values, name.Value)
	}
	c.names[name.Value] = name

	_, value := m.get(n, "value")
	_, from := m.get(n, "valueFrom") // the value is read when the container starts
	switch {
	case from != nil:
		c.open = true
	case value == nil: // the value is empty
	case value.Kind != yaml.ScalarNode, strings.Contains(value.Value, "$("): // it names another variable
		c.open = true
	case value.ShortTag() == "!!null":
	case value.ShortTag() != "!!str":
		m.report(position.RuleValue, value, position.SafeName(name.Value), "must be text",
			"put it in quotes: an API server accepts only text")
	default:
		c.values[name.Value] = value
	}
}

// mounts reports whether a Pod mounts a volume that may contain a configuration.
func (m *manifests) mounts(spec *yaml.Node) bool {
	_, volumes := m.get(spec, "volumes")
	return volumes != nil && slices.ContainsFunc(volumes.Content, func(volume *yaml.Node) bool {
		_, scratch := m.get(volume, "emptyDir")
		return scratch == nil
	})
}

// vetContainer checks the variables of one container. It does not check values that are not
// in the manifest, and it does not require a complete configuration, because other settings
// may come from a file. It checks rules across several keys only if all settings are literal
// variables.
func (m *manifests) vetContainer(o resource, c container) {
	d, err := define()
	if err != nil {
		m.report(position.RuleInternal, nil, "", err.Error(), "")
		return
	}
	reportAt := func(p position.Problem, n *yaml.Node) {
		p.File, p.Line, p.Column = m.source.Path, n.Line, n.Column
		m.problems = append(m.problems, p)
	}
	names, environ := map[string]string{}, map[string]string{}
	for name := range c.names {
		names[name] = "set"
	}
	for name, value := range c.values {
		environ[name] = value.Value
	}

	// The names, also of variables whose values are not in the manifest.
	unused := map[string]bool{}
	for _, p := range d.unknownVariables(names) {
		for name, n := range c.names {
			if position.SafeName(name) == p.Path {
				reportAt(p, n)
				unused[p.Path] = unused[p.Path] || p.Rule == position.RuleUnused
			}
		}
	}

	// The values, as an agent would load them.
	spec := m.podSpec(o)
	_, problems := Load(Source{
		Environ: environ, Elsewhere: true, TerminationGrace: m.graceOf(spec),
		Release: m.source.Release, vetted: m.source.vetted,
		ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	})
	for _, p := range problems {
		n := c.values[p.Path]
		several := (p.Rule == position.RuleCredentials || p.Rule == position.RuleTimes) &&
			p.Path != d.variableOf("shutdown_timeout")
		switch {
		case n == nil, several && c.open:
		case p.Rule == position.RuleUnknownVariable, p.Rule == position.RuleUnused && unused[p.Path]: // reported above
		case p.Rule == position.RuleMissingFile: // it may exist on the agent's machine
		default:
			reportAt(p, n)
		}
	}

	// An image of the runner that no Pod uses.
	if name := d.variableOf("runner_image"); d.ignoresRunnerImage(c) {
		reportAt(position.Problem{Severity: position.Warning, Rule: position.RuleUnused, Path: name,
			Message: "has no effect: Pods copy the runner from the image of this container",
			Hint: "remove it, or set " + d.variableOf("kubernetes.image") +
				" to use another image of the agent's release"}, c.values[name])
	}

	// A token, which should be in a Secret.
	token := d.variableOf("token")
	isPlaceholder := func(p position.Problem) bool { return p.Rule == position.RulePlaceholder && p.Path == token }
	if n := c.values[token]; n != nil && strings.TrimSpace(n.Value) != "" &&
		!slices.ContainsFunc(problems, isPlaceholder) {
		reportAt(position.Problem{Severity: position.Warning, Rule: position.RuleReadableToken, Path: token,
			Message: "many users can read a token in a manifest",
			Hint:    "put it into a Secret, and refer to the Secret in valueFrom"}, n)
	}
}

// ignoresRunnerImage reports whether a container of the agent has PULUMI_AGENT_IMAGE with another image
// than its own. The agent then copies the runner from its own image; see runtime/kube/doc.go.
func (d *definition) ignoresRunnerImage(c container) bool {
	set := c.values[d.variableOf("runner_image")]
	return set != nil && set.Value != "" && c.image != nil && c.image.Value != set.Value
}
