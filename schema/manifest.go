package schema

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

const (
	// maxObjects bounds the objects in them, which aliases may multiply.
	maxObjects = 1_000
	// maxEmbedded bounds the configurations and templates in these, each of which
	// costs a load.
	maxEmbedded = 100
)

// manifests are the Kubernetes objects of one file.
type manifests struct {
	source   Source
	lines    []string
	objects  []resource
	problems position.Problems
	checked  int      // configurations, templates and containers of the agent
	others   []string // keys of data that are neither
	full     bool     // a bound was met, and said

	variables int // of containers, that were looked at
}

// Configurations returns the configurations that the manifests of a file hold, in
// its order, each as [Load] takes it. ok is false if the file holds no manifests, in
// the sense of [Vet], which also says what is wrong with them; what cannot be read
// is left out here.
//
// A configuration runs elsewhere: it has no variables, and of the files that it
// names those Pod templates are there that the manifests hold, in the same object
// or in only one other. Its lines are those of the manifest wherever the manifest
// holds it line by line; its columns begin behind the indent there.
//
// Configurations never panics, whatever the source holds, and is safe for
// concurrent use.
func Configurations(source Source) (configurations []Source, ok bool) {
	defer func() {
		if recover() != nil { // for the reason that Load has
			configurations, ok = nil, false
		}
	}()
	all, ok := heldBy(source)
	if !ok {
		return nil, false
	}
	for _, c := range all {
		if c.template {
			continue
		}
		c.source.Elsewhere = true
		c.source.ReadFile = func(name string) ([]byte, error) {
			var own, others [][]byte
			for _, t := range all {
				switch {
				case !t.template || t.name != filepath.Base(name):
				case t.object == c.object:
					own = append(own, t.source.Content)
				default:
					others = append(others, t.source.Content)
				}
			}
			switch {
			case len(own) == 1:
				return own[0], nil
			case len(own) == 0 && len(others) == 1:
				return others[0], nil
			default:
				return nil, fs.ErrNotExist
			}
		}
		configurations = append(configurations, c.source)
	}
	return configurations, true
}

// held is a configuration or a Pod template that a manifest holds.
type held struct {
	template bool
	object   int    // of the file
	name     string // of the file that the key becomes where it is mounted
	source   Source
}

// heldBy returns what the manifests of a file hold. ok is false if the file holds no
// manifests.
func heldBy(source Source) (all []held, ok bool) {
	content, broken := position.CheckText(source.Path, source.Content)
	if broken != nil {
		return nil, false
	}
	m, ok := readManifests(source, content)
	if !ok {
		return nil, false
	}
	for i, o := range m.objects {
		m.check(o, func(e *embedded) {
			one := held{e.template, i, e.key.Value, m.sourceOf(o)}
			one.source.Content, _ = e.inPlace()
			all = append(all, one)
		})
	}
	return all, true
}

// vetManifests checks what the manifests of a file hold.
func vetManifests(source Source, content []byte) (problems position.Problems, ok bool) {
	m, ok := readManifests(source, content)
	if !ok {
		return nil, false
	}
	for _, o := range m.objects {
		m.check(o, func(e *embedded) { m.problems = append(m.problems, e.vet(m.sourceOf(o))...) })
		for _, c := range m.containers(o) {
			if m.count(o.node, o.kind) {
				m.vetContainer(o, c)
			}
		}
	}
	if m.variables > maxVariables {
		m.report(position.RuleSize, nil, "",
			fmt.Sprintf("the containers of the file have more than %d variables", maxVariables), "split it")
	}
	if m.checked == 0 && len(m.problems) == 0 {
		m.report(position.RuleManifest, nil, "",
			"no ConfigMap or Secret of this file holds a configuration or a Pod template, and no container has a variable of the agent", m.wanted())
	}
	return m.problems, true
}

// count counts what is checked, and reports whether there is room for it.
func (m *manifests) count(n *yaml.Node, path string) bool {
	if m.checked++; m.checked <= maxEmbedded {
		return true
	}
	if !m.full {
		m.full = true
		m.report(position.RuleSize, n, path,
			fmt.Sprintf("the file holds more than %d configurations, Pod templates and containers of the agent",
				maxEmbedded), "split it")
	}
	return false
}

// readManifests finds the objects of a file. ok is false if there are none: if no
// document has apiVersion and kind, or the only one is a Pod without a variable of
// the agent, which is a template then.
func readManifests(source Source, content []byte) (m *manifests, ok bool) {
	m = &manifests{source: source}
	parts, more := position.Split(content)
	var documents []*yaml.Node
	for _, part := range parts {
		document, problem := part.Read(source.Path)
		if problem != nil {
			m.problems = append(m.problems, *problem)
		}
		if document != nil && document.ShortTag() != "!!null" {
			documents = append(documents, document)
		}
	}
	if !slices.ContainsFunc(documents, isManifest) || len(documents) == 1 && len(m.problems) == 0 &&
		isTemplate(documents[0]) {
		return nil, false
	}
	m.lines = strings.Split(string(content), "\n")
	if more {
		m.report(position.RuleSize, nil, "",
			fmt.Sprintf("the file holds more than %d documents", position.MaxDocuments), "split it")
	}
	for _, document := range documents {
		if isManifest(document) {
			m.collect(document)
		} else {
			m.report(position.RuleManifest, document, "",
				"is no Kubernetes manifest, as the other documents of the file are",
				"add apiVersion and kind, or move it to a file of its own")
		}
	}
	return m, true
}

func isManifest(n *yaml.Node) bool {
	var aside manifests // takes what is wrong twice
	return aside.text(n, "apiVersion") != "" && aside.text(n, "kind") != ""
}

func isTemplate(n *yaml.Node) bool {
	var aside manifests
	kind := aside.text(n, "kind")
	return podtemplate.Is(position.Mapping{"kind": position.Value{Data: kind}}) &&
		len(aside.containers(resource{kind, n})) == 0
}

// wanted says what the manifests should hold.
func (m *manifests) wanted() string {
	names := append([]string{FileName, OldFileName}, podNames...)
	for _, key := range m.others {
		if best := position.Closest(key, slices.Clone(names)); best != "" {
			return fmt.Sprintf("did you mean the key %s?", best)
		}
	}
	return "keys that are looked for are " + strings.Join(names, ", ")
}

// report places a problem at a node, or at the file as a whole.
func (m *manifests) report(rule position.Rule, n *yaml.Node, path, message, hint string) {
	p := position.Problem{Rule: rule, File: m.source.Path, Path: path, Message: message, Hint: hint}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	m.problems = append(m.problems, p)
}
