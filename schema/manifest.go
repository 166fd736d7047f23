package schema

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

const (
	// maxObjects limits the objects of a file, which aliases may multiply.
	maxObjects = 1_000
	// maxEmbedded limits the configurations, templates and containers of the agent in the
	// objects, because the check of each of them takes time.
	maxEmbedded = 100
)

// manifests are the Kubernetes objects of one file.
type manifests struct {
	source   Source
	lines    []string
	objects  []resource
	known    []resource // objects, and those of the other files in the directory
	problems position.Problems
	checked  int      // number of configurations, templates and containers of the agent
	others   []string // keys of data that are neither a configuration nor a template

	limitReached bool // a limit was reached and reported
	variables    int  // number of checked variables of containers
}

// Configurations returns the configurations in the manifests of a file, in the order of
// the file, as arguments of [Load]. ok is false if the file has no manifests as [Vet]
// defines them. Vet also reports the problems of manifests; Configurations omits what
// cannot be read.
//
// A configuration is for another machine: its variables are those of the container that uses
// it, as far as their values are in the manifests. Containers that use one file with different
// variables are different configurations, and so is a container with variables and no file. The
// only files that a configuration can read are Pod templates: a template in the same object, or
// in another object if exactly one template of the file has the name. If the manifest contains
// the text of the configuration line by line, the line numbers of the configuration are those of
// the manifest; columns are counted after the indentation.
//
// Configurations never panics, and is safe for concurrent use.
func Configurations(source Source) (configurations []Source, ok bool) {
	defer func() {
		if recover() != nil { // for the same reason as in runRecovering
			configurations, ok = nil, false
		}
	}()
	all, ok := manifestFiles(source)
	if !ok {
		return nil, false
	}
	for _, c := range all {
		if c.template {
			continue
		}
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

// manifestFile is a configuration or a Pod template in a manifest.
type manifestFile struct {
	template bool
	object   int    // index in the file
	name     string // of the file that the key becomes when it is mounted
	source   Source
}

// manifestFiles returns the configurations and templates in the manifests of a file. ok is
// false if the file has no manifests.
func manifestFiles(source Source) (all []manifestFile, ok bool) {
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
			setups := m.setups(o)
			if e.template {
				setups = setups[:1]
			}
			var before []Source
			for _, s := range setups {
				s.source.Content, _ = e.inPlace()
				if !slices.ContainsFunc(before, s.source.hasVariablesOf) {
					before = append(before, s.source)
					all = append(all, manifestFile{e.template, i, e.key.Value, s.source})
				}
			}
		})
		if m.podSpec(o) != nil && !m.hasFile(o) {
			for _, c := range m.containers(o) {
				if m.count(o.node, o.kind) {
					all = append(all, manifestFile{object: i, source: m.sourceIn(c)})
				}
			}
		}
	}
	return all, true
}

// hasVariablesOf reports whether two sources have the same variables.
func (s Source) hasVariablesOf(other Source) bool {
	return maps.Equal(s.Environ, other.Environ) && slices.Equal(s.Unknown, other.Unknown)
}

// hasFile reports whether the manifests contain a configuration file that a workload uses.
func (m *manifests) hasFile(workload resource) bool {
	for _, o := range m.known {
		for _, section := range sections[o.kind] {
			_, files := member(o.node, section.name)
			file, _ := member(files, FileName)
			old, _ := member(files, OldFileName)
			if (file != nil || old != nil) && slices.Contains(m.users(o), workload) {
				return true
			}
		}
	}
	return false
}

// vetManifests checks the configurations, templates and containers in the manifests of a
// file. ok is false if the file has no manifests.
func vetManifests(source Source, content []byte) (problems position.Problems, ok bool) {
	m, ok := readManifests(source, content)
	if !ok {
		return nil, false
	}
	for _, o := range m.objects {
		m.check(o, func(e *embedded) {
			for _, s := range m.setups(o) {
				m.problems = append(m.problems, e.vet(s)...)
			}
		})
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
			"no ConfigMap or Secret of this file contains a configuration or a Pod template, "+
				"and no container has a variable of the agent", m.hintForMissing())
	}
	return m.problems, true
}

// count adds one to the number of checks, and reports whether it is within the limit.
func (m *manifests) count(n *yaml.Node, path string) bool {
	if m.checked++; m.checked <= maxEmbedded {
		return true
	}
	if !m.limitReached {
		m.limitReached = true
		m.report(position.RuleSize, n, path,
			fmt.Sprintf("the file contains more than %d configurations, Pod templates and containers of the agent",
				maxEmbedded), "split it")
	}
	return false
}

// readManifests returns the objects of a file. ok is false if there are none: if no
// document has apiVersion and kind, or if the only document is a Pod template, which is a Pod
// without a variable of the agent.
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
			fmt.Sprintf("the file contains more than %d documents", position.MaxDocuments), "split it")
	}
	for _, document := range documents {
		if isManifest(document) {
			m.collect(document)
		} else {
			m.report(position.RuleManifest, document, "",
				"is not a Kubernetes manifest, but other documents of the file are",
				"add apiVersion and kind, or move it to another file")
		}
	}
	m.known = m.objects
	if source.Objects != nil {
		for _, o := range source.Objects.all {
			if o.file != source.Path {
				m.known = append(m.known, o)
			}
		}
	}
	return m, true
}

func isManifest(n *yaml.Node) bool {
	var scratch manifests // collects problems that are dropped here and reported elsewhere
	return scratch.text(n, "apiVersion") != "" && scratch.text(n, "kind") != ""
}

func isTemplate(n *yaml.Node) bool {
	var scratch manifests
	kind := scratch.text(n, "kind")
	return podtemplate.Is(position.Mapping{"kind": position.Value{Data: kind}}) &&
		len(scratch.containers(resource{kind: kind, node: n})) == 0
}

// hintForMissing returns the hint for manifests without a configuration or template.
func (m *manifests) hintForMissing() string {
	names := append([]string{FileName, OldFileName}, podNames...)
	for _, key := range m.others {
		if best := position.Closest(key, slices.Clone(names)); best != "" {
			return fmt.Sprintf("did you mean the key %s?", best)
		}
	}
	return "these keys are checked: " + strings.Join(names, ", ")
}

// report adds an error at a node, or about the whole file without a node; warn adds a warning.
func (m *manifests) report(rule position.Rule, n *yaml.Node, path, message, hint string) {
	p := position.Problem{Rule: rule, File: m.source.Path, Path: path, Message: message, Hint: hint}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	m.problems = append(m.problems, p)
}

func (m *manifests) warn(rule position.Rule, n *yaml.Node, path, message, hint string) {
	m.report(rule, n, path, message, hint)
	m.problems[len(m.problems)-1].Severity = position.Warning
}
