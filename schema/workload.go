package schema

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
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
		if o.file == m.source.Path {
			_, n = m.get(n, name) // reports a duplicate key
		} else {
			_, n = member(n, name)
		}
	}
	return n
}

// container is one container of the agent, with the variables that its manifest sets.
type container struct {
	set    map[string]variable // by name
	absent []variable          // objects of envFrom that are not in the manifests
	open   bool                // settings may come from other sources too
	image  *yaml.Node          // of the container; may be nil
}

// variable is a variable of the agent in a container.
type variable struct {
	file    string     // that contains the two nodes
	name    *yaml.Node // where the variable is named
	value   *yaml.Node // the value; nil if it is empty, unknown or invalid
	unknown string     // where the cluster takes the value from; empty if the value is known
}

// containers returns the containers of an object that have a variable of the agent. It reports
// duplicate variables and values that are not text.
func (m *manifests) containers(o resource) []container {
	spec := m.podSpec(o)
	_, list := m.get(spec, "containers")
	if list == nil || list.Kind != yaml.SequenceNode {
		return nil
	}

	var all []container
	for _, n := range list.Content {
		c := container{set: map[string]variable{}, open: m.mounts(spec)}
		_, from := m.get(n, "envFrom")
		_, c.image = m.get(n, "image")
		_, list := m.get(n, "env")
		for _, object := range sequence(from) {
			m.addAll(&c, o, object)
		}
		own := map[string]bool{} // variables of env, which override those of envFrom
		for _, one := range sequence(list) {
			m.add(&c, o, one, own)
		}
		if m.variables > maxVariables {
			return nil
		}
		c.open = c.open || from != nil || c.set[prefix+"CONFIG"].name != nil
		for name := range c.set {
			if strings.HasPrefix(name, prefix) { // other names may belong to the service
				all = append(all, c)
				break
			}
		}
	}
	return all
}

func isOfAgent(name string) bool {
	return strings.HasPrefix(name, prefix) || name == defaultImage || name == overrideImage
}

// addAll adds the variables of one entry of envFrom.
func (m *manifests) addAll(c *container, o resource, n *yaml.Node) {
	kind, name := "ConfigMap", m.text(n, "configMapRef", "name")
	if name == "" {
		kind, name = "Secret", m.text(n, "secretRef", "name")
	}
	source, found := m.configMap(o, name)
	if kind == "Secret" || !found {
		c.absent = append(c.absent, variable{file: o.file, name: n, unknown: fmt.Sprintf("the %s %s", kind,
			printable.QuoteName(name))})
		return
	}
	_, data := member(source.node, "data")
	if data == nil || data.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(data.Content); i += 2 {
		key := data.Content[i]
		name := m.text(n, "prefix") + key.Value
		if m.variables++; isOfAgent(name) && m.variables <= maxVariables {
			v := variable{file: source.file, name: key}
			m.setValue(&v, name, target(data.Content[i+1]))
			c.set[name] = v
		}
	}
}

// add adds the variable of one entry of env.
func (m *manifests) add(c *container, o resource, n *yaml.Node, own map[string]bool) {
	_, name := m.get(n, "name")
	if m.variables++; name == nil || !isOfAgent(name.Value) || m.variables > maxVariables {
		return
	}
	if own[name.Value] {
		m.reportAt(position.Warning, position.RuleDuplicateKey, variable{file: o.file, name: name}, name.Value,
			"is set twice; the last value is used", "keep one of the two")
	}
	own[name.Value] = true

	v := variable{file: o.file, name: name}
	_, value := m.get(n, "value")
	_, from := m.get(n, "valueFrom")
	if from != nil {
		m.setFrom(&v, o, name.Value, from)
	} else {
		m.setValue(&v, name.Value, value)
	}
	c.open = c.open || v.unknown != ""
	c.set[name.Value] = v
}

// setValue sets the value of a variable to that of a node, which may be nil.
func (m *manifests) setValue(v *variable, name string, value *yaml.Node) {
	switch {
	case value == nil || value.ShortTag() == "!!null": // the value is empty
	case value.Kind != yaml.ScalarNode, strings.Contains(value.Value, "$("):
		v.unknown = "other variables"
	case value.ShortTag() != "!!str":
		m.reportAt(position.Error, position.RuleValue, variable{file: v.file, name: value}, name, "must be text",
			"put it in quotes: an API server accepts only text")
	default:
		v.value = value
	}
}

// setFrom sets the value of a variable from a node valueFrom.
func (m *manifests) setFrom(v *variable, o resource, name string, from *yaml.Node) {
	_, configMap := m.get(from, "configMapKeyRef")
	_, secret := m.get(from, "secretKeyRef")
	_, field := m.get(from, "fieldRef")
	of := func(kind string, n *yaml.Node) string {
		return fmt.Sprintf("the key %s of the %s %s", printable.QuoteName(m.text(n, "key")), kind,
			printable.QuoteName(m.text(n, "name")))
	}
	switch {
	case configMap != nil:
		source, _ := m.configMap(o, m.text(configMap, "name"))
		_, data := member(source.node, "data")
		if key, value := member(data, m.text(configMap, "key")); key != nil {
			v.file = source.file
			v.name = key
			m.setValue(v, name, value)
			return
		}
		v.unknown = of("ConfigMap", configMap)
	case secret != nil:
		v.unknown = of("Secret", secret)
	case field != nil:
		v.unknown = "the field " + printable.QuoteName(m.text(field, "fieldPath")) + " of the Pod"
	default:
		v.unknown = "the cluster"
	}
}

// configMap returns the ConfigMap to which an object refers. ok is false if the manifests have
// none of this name, or several.
func (m *manifests) configMap(from resource, name string) (found resource, ok bool) {
	namespace := textOf(from.node, "metadata", "namespace")
	for _, o := range m.known {
		other := textOf(o.node, "metadata", "namespace")
		if name == "" || o.kind != "ConfigMap" || textOf(o.node, "metadata", "name") != name ||
			namespace != "" && other != "" && other != namespace {
			continue
		}
		if ok {
			return resource{}, false
		}
		found, ok = o, true
	}
	return found, ok
}

// environ returns the known variables of a container, and the names of the others.
func (c container) environ() (known map[string]string, unknown []string) {
	known = map[string]string{}
	for name, v := range c.set {
		switch {
		case v.value != nil:
			known[name] = v.value.Value
		case v.unknown != "":
			unknown = append(unknown, name)
		}
	}
	if d, err := define(); err == nil && len(c.absent) > 0 {
		for name := range d.byVariable {
			if _, set := c.set[name]; !set {
				unknown = append(unknown, name)
			}
		}
	}
	slices.Sort(unknown)
	return known, unknown
}

// mounts reports whether a Pod mounts a volume that may contain a configuration.
func (m *manifests) mounts(spec *yaml.Node) bool {
	_, volumes := member(spec, "volumes")
	return volumes != nil && slices.ContainsFunc(volumes.Content, func(volume *yaml.Node) bool {
		_, scratch := member(volume, "emptyDir")
		return scratch == nil
	})
}

// vetContainer checks the variables of one container. It does not check values that are not
// in the manifests, and notes their names. It does not require a complete configuration, because
// other settings may come from a file. It checks rules across several keys only if all settings
// are known variables.
func (m *manifests) vetContainer(o resource, c container) {
	d, err := define()
	if err != nil {
		m.report(position.RuleInternal, nil, "", err.Error(), "")
		return
	}
	add := func(p position.Problem, v variable, n *yaml.Node) {
		p.File, p.Line, p.Column = v.file, n.Line, n.Column
		m.problems = append(m.problems, p)
	}
	names := map[string]string{}
	for name, v := range c.set {
		names[name] = "set"
		if v.unknown != "" && d.byVariable[name] != nil {
			m.reportAt(position.Note, position.RuleUnknownValue, v, name,
				"the value is not known here; it is from "+v.unknown, "")
		}
	}
	for _, v := range c.absent {
		m.reportAt(position.Note, position.RuleUnknownValue, v, "envFrom",
			"its variables are not known here; they are from "+v.unknown, "")
	}

	// The names, also of variables whose values are not in the manifests.
	unused := map[string]bool{}
	for _, p := range d.unknownVariables(names) {
		for name, v := range c.set {
			if position.SafeName(name) == p.Path {
				add(p, v, v.name)
				unused[p.Path] = unused[p.Path] || p.Rule == position.RuleUnused
			}
		}
	}

	// The values, as an agent would load them.
	source := m.sourceIn(c)
	source.TerminationGrace = m.graceOf(m.podSpec(o))
	_, problems := Load(source)
	for _, p := range problems {
		v := c.set[p.Path]
		several := (p.Rule == position.RuleCredentials || p.Rule == position.RuleTimes) &&
			p.Path != d.variableOf("shutdown_timeout")
		switch {
		case v.value == nil, several && c.open:
		case p.Rule == position.RuleUnknownVariable, p.Rule == position.RuleUnused && unused[p.Path]: // reported above
		case p.Rule == position.RuleMissingFile: // it may exist on the agent's machine
		default:
			add(p, v, v.value)
		}
	}

	// An image of the runner that no Pod uses.
	if name := d.variableOf("runner_image"); d.ignoresRunnerImage(c) {
		add(position.Problem{Severity: position.Warning, Rule: position.RuleUnused, Path: name,
			Message: "has no effect: Pods copy the runner from the image of this container",
			Hint: "remove it, or set " + d.variableOf("kubernetes.image") +
				" to use another image of the agent's release"}, c.set[name], c.set[name].value)
	}

	// A token, which should be in a Secret.
	token := d.variableOf("token")
	isPlaceholder := func(p position.Problem) bool { return p.Rule == position.RulePlaceholder && p.Path == token }
	if v := c.set[token]; v.value != nil && strings.TrimSpace(v.value.Value) != "" &&
		!slices.ContainsFunc(problems, isPlaceholder) {
		add(position.Problem{Severity: position.Warning, Rule: position.RuleReadableToken, Path: token,
			Message: "many users can read a token in a manifest",
			Hint:    "put it into a Secret, and refer to the Secret in valueFrom"}, v, v.value)
	}
}

// reportAt adds a problem at the name of a variable.
func (m *manifests) reportAt(
	severity position.Severity, rule position.Rule, at variable, path, message, hint string,
) {
	m.problems = append(m.problems, position.Problem{
		Severity: severity, Rule: rule, File: at.file, Line: at.name.Line, Column: at.name.Column,
		Path: position.SafeName(path), Message: message, Hint: hint,
	})
}

// sourceIn returns the source of an agent in a container, without a file.
func (m *manifests) sourceIn(c container) Source {
	source := Source{
		Elsewhere: true, Release: m.source.Release, vetted: m.source.vetted,
		ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	}
	source.Environ, source.Unknown = c.environ()
	if c.image != nil {
		source.Image = c.image.Value
	}
	return source
}

// ignoresRunnerImage reports whether a container of the agent has PULUMI_AGENT_IMAGE with another image
// than its own. The agent then copies the runner from its own image; see runtime/kube/doc.go.
func (d *definition) ignoresRunnerImage(c container) bool {
	set := c.set[d.variableOf("runner_image")].value
	return set != nil && set.Value != "" && c.image != nil && c.image.Value != set.Value
}
