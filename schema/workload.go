package schema

import (
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// maxVariables bounds the variables of containers that are looked at in one file,
// which aliases may multiply.
const maxVariables = 20_000

// podSpec returns the spec of the Pods that an object makes, and nil for an object
// that makes none.
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

// container is one container of the agent, with the variables that its manifest
// sets.
type container struct {
	names  map[string]*yaml.Node // of all of the agent's variables
	values map[string]*yaml.Node // of those with a literal value, which may be empty
	open   bool                  // settings may come from elsewhere too
}

// containers returns those containers of an object that have a variable of the
// agent.
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
		if _, from := m.get(n, "envFrom"); from != nil {
			c.open = true
		}
		for _, variable := range variables.Content {
			if m.variables++; m.variables > maxVariables {
				return nil
			}
			m.variable(&c, variable)
		}
		_, named := c.names[prefix+"CONFIG"]
		c.open = c.open || named
		for name := range c.names {
			if strings.HasPrefix(name, prefix) { // another may be of the service itself
				all = append(all, c)
				break
			}
		}
	}
	return all
}

// variable reads one entry of a container's variables.
func (m *manifests) variable(c *container, n *yaml.Node) {
	_, name := m.get(n, "name")
	if name == nil {
		return
	}
	if !strings.HasPrefix(name.Value, prefix) && name.Value != defaultImage && name.Value != overrideImage {
		return
	}
	if first := c.names[name.Value]; first != nil {
		at := position.Origin{File: m.source.Path, Line: name.Line, Column: name.Column}
		p := position.NewWarning(position.RuleDuplicateKey, at, position.SafeName(name.Value),
			"is set twice, and the last one counts", "keep one of the two")
		m.problems = append(m.problems, p)
		delete(c.values, name.Value)
	}
	c.names[name.Value] = name
	_, value := m.get(n, "value")
	_, from := m.get(n, "valueFrom") // is read where the container starts
	switch {
	case from != nil:
		c.open = true
	case value == nil: // empty
	case value.Kind != yaml.ScalarNode, strings.Contains(value.Value, "$("): // names another variable
		c.open = true
	case value.ShortTag() == "!!null":
	case value.ShortTag() != "!!str":
		m.report(position.RuleValue, value, position.SafeName(name.Value), "must be text",
			"put it in quotes: an API server takes nothing else")
	default:
		c.values[name.Value] = value
	}
}

// mounts reports whether a Pod mounts what may hold a configuration.
func (m *manifests) mounts(spec *yaml.Node) bool {
	_, volumes := m.get(spec, "volumes")
	return volumes != nil && slices.ContainsFunc(target(volumes).Content, func(volume *yaml.Node) bool {
		_, scratch := m.get(volume, "emptyDir")
		return scratch == nil
	})
}

// vetContainer checks the variables of one container. Values that are not in the
// manifest are left unjudged, and so is whether what is there is enough: the rest
// may come from a file. Rules across several keys count only where it cannot.
func (m *manifests) vetContainer(o resource, c container) {
	d, err := define()
	if err != nil {
		m.report(position.RuleInternal, nil, "", err.Error(), "")
		return
	}
	place := func(p position.Problem, n *yaml.Node) {
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

	// The names, also of variables whose values are elsewhere.
	for _, p := range d.unknownVariables(names) {
		for name, n := range c.names {
			if position.SafeName(name) == p.Path {
				place(p, n)
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
		case p.Rule == position.RuleUnknownVariable, p.Rule == position.RuleUnused: // reported with the names
		case p.Rule == position.RuleMissingFile: // it is elsewhere
		default:
			place(p, n)
		}
	}

	// A token, which belongs into a Secret.
	token := d.variableOf("token")
	isPlaceholder := func(p position.Problem) bool { return p.Rule == position.RulePlaceholder && p.Path == token }
	if n := c.values[token]; n != nil && strings.TrimSpace(n.Value) != "" &&
		!slices.ContainsFunc(problems, isPlaceholder) {
		place(position.Problem{Severity: position.Warning, Rule: position.RuleReadableToken, Path: token,
			Message: "a token in a manifest may be read by many",
			Hint:    "put it into a Secret, and name that in valueFrom"}, n)
	}
}
