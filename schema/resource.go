package schema

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

// resource is one object of the API.
type resource struct {
	kind string
	node *yaml.Node
}

// get returns a value of a mapping and its key, and nil if there is none.
func (m *manifests) get(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n = target(n); n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].Value != name {
			continue
		}
		if key == nil {
			key, value = n.Content[i], target(n.Content[i+1])
			continue
		}
		m.report(position.RuleDuplicateKey, n.Content[i], name,
			fmt.Sprintf("duplicate key; first set on line %d", key.Line), "keep one of the two")
	}
	return key, value
}

// target returns what an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (m *manifests) text(n *yaml.Node, path ...string) string {
	for _, name := range path {
		_, n = m.get(n, name)
	}
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// collect gathers the objects of a document, those of lists one by one.
func (m *manifests) collect(n *yaml.Node) {
	if len(m.objects) >= maxObjects {
		if !m.full {
			m.full = true
			m.report(position.RuleSize, n, "",
				fmt.Sprintf("the file holds, or unfolds to, more than %d objects", maxObjects), "split it")
		}
		return
	}
	n = target(n)
	o := resource{m.text(n, "kind"), n}
	m.objects = append(m.objects, o)
	if _, items := m.get(n, "items"); strings.HasSuffix(o.kind, "List") && items != nil &&
		items.Kind == yaml.SequenceNode {
		for _, item := range items.Content {
			m.collect(item)
		}
	}
}

// section is a mapping of an object that holds files.
type section struct {
	name    string
	encoded bool // in base64
}

func (o resource) sections() []section {
	switch o.kind {
	case "ConfigMap":
		return []section{{"data", false}, {"binaryData", true}}
	case "Secret":
		return []section{{"stringData", false}, {"data", true}}
	default:
		return nil
	}
}

// check goes through what a ConfigMap or a Secret holds, and hands on what is read.
func (m *manifests) check(o resource, take func(*embedded)) {
	for _, section := range o.sections() {
		_, files := m.get(o.node, section.name)
		if files == nil || files.Kind != yaml.MappingNode {
			continue
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(files.Content); i += 2 {
			key := files.Content[i]
			e := embedded{key: key, at: target(files.Content[i+1]), template: slices.Contains(podNames, key.Value),
				public: o.kind == "ConfigMap"}
			if key.Kind != yaml.ScalarNode || !e.template && key.Value != FileName && key.Value != OldFileName {
				m.others = append(m.others, key.Value)
				continue
			}
			path := position.Join(section.name, key.Value)
			if line, twice := seen[key.Value]; twice {
				m.report(position.RuleDuplicateKey, key, path,
					fmt.Sprintf("duplicate key; first set on line %d", line), "keep one of the two")
				continue
			}
			seen[key.Value] = key.Line
			if !m.count(key, path) {
				return
			}
			if key.Value == OldFileName {
				m.problems = append(m.problems,
					position.NewWarning(position.RuleOldName,
						position.Origin{File: m.source.Path, Line: key.Line, Column: key.Column}, path, "an old name",
						"rename it to "+FileName))
			}
			if message, hint := e.read(m.lines, section.encoded); message != "" {
				m.report(position.RuleValue, e.at, path, message, hint)
				continue
			}
			take(&e)
		}
	}
}

// sourceOf is what a configuration in an object is loaded with.
func (m *manifests) sourceOf(o resource) Source {
	source := Source{
		Path: m.source.Path, Mode: m.source.Mode, Release: m.source.Release, vetted: m.source.vetted,
		TerminationGrace: m.grace(m.text(o.node, "metadata", "name")),
		ReadFile:         func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	}
	if o.kind == "ConfigMap" {
		source.Mode |= 0o044 // a token in it is one that others may read
	}
	return source
}

// grace returns how long the Pod may take to end that mounts a ConfigMap or
// Secret of this name: the one workload of the file, or of several the one that
// names it among its volumes. It is 0 where there is none, and the API's default
// where it does not say.
func (m *manifests) grace(name string) time.Duration {
	var all, mounting []*yaml.Node
	for _, o := range m.objects {
		spec := m.podSpec(o)
		if spec == nil {
			continue
		}
		all = append(all, spec)
		_, volumes := m.get(spec, "volumes")
		if volumes == nil || volumes.Kind != yaml.SequenceNode {
			continue
		}
		for _, volume := range volumes.Content {
			if name != "" && (m.text(volume, "configMap", "name") == name ||
				m.text(volume, "secret", "secretName") == name) {
				mounting = append(mounting, spec)
				break
			}
		}
	}
	if len(all) > 1 {
		all = mounting
	}
	if len(all) != 1 {
		return 0
	}
	return m.graceOf(all[0])
}

// graceOf returns how long a Pod of a spec may take to end.
func (m *manifests) graceOf(spec *yaml.Node) time.Duration {
	const usual, year = 30, 365 * 24 * 3600
	text := m.text(spec, "terminationGracePeriodSeconds")
	if text == "" {
		return usual * time.Second
	}
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 || seconds > year {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// embedded is a configuration or a template within a manifest.
type embedded struct {
	key, at  *yaml.Node
	template bool
	public   bool // in a ConfigMap
	text     string
	line     int // of the manifest where text begins line by line; 0 if it does not stand there so
	indent   int // blanks before each of these lines
}

// read takes the text from the value, or says what is wrong with that.
func (e *embedded) read(lines []string, encoded bool) (message, hint string) {
	tag := e.at.ShortTag()
	if e.at.Kind != yaml.ScalarNode || tag != "!!str" && tag != "!!binary" {
		return "must be text", "write " + e.key.Value + ": | and indent the lines that follow"
	}
	e.text = e.at.Value
	if !encoded && tag == "!!str" {
		if !e.asWritten(lines) {
			e.folded(lines)
		}
		return "", ""
	}
	content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(e.text), ""))
	if err != nil {
		return "must be in base64", "put plain text under data of a ConfigMap, or stringData of a Secret"
	}
	e.text = string(content)
	return "", ""
}

// asWritten finds the lines of the text in the manifest. They must be the same,
// blank for blank behind one indent, so that a place in one is a place in the
// other.
func (e *embedded) asWritten(lines []string) bool {
	text := strings.Split(strings.TrimRight(e.text, "\n"), "\n")
	first := slices.IndexFunc(text, func(line string) bool { return strings.TrimSpace(line) != "" })
	start := e.at.Line // the index of the line after
	if e.at.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 || first < 0 || start+len(text) > len(lines) {
		return false
	}
	indent := len(strings.TrimRight(lines[start+first], "\r")) - len(text[first])
	for i, line := range text {
		written := strings.TrimRight(lines[start+i], "\r")
		if strings.TrimSpace(written+line) != "" && (indent < 0 || written != strings.Repeat(" ", indent)+line) {
			return false
		}
	}
	e.line, e.indent = start+1, indent
	return true
}

// folded takes JSON as it is written also from a block that folds lines into
// one, since the end of a line means nothing in JSON.
func (e *embedded) folded(lines []string) {
	if e.at.Style&yaml.FoldedStyle == 0 {
		return
	}
	indent := 0
	var block []string
	for _, line := range lines[min(e.at.Line, len(lines)):] {
		line = strings.TrimRight(line, "\r")
		blanks := len(line) - len(strings.TrimLeft(line, " "))
		if blanks == len(line) {
			block = append(block, "")
			continue
		}
		if indent == 0 {
			indent = blanks
		}
		if blanks < indent {
			break
		}
		block = append(block, line[indent:])
	}
	whole := strings.Join(block, "\n")
	if strings.HasPrefix(strings.TrimSpace(whole), "{") &&
		slices.Equal(strings.Fields(whole), strings.Fields(e.text)) {
		e.text, e.line, e.indent = whole, e.at.Line+1, indent
	}
}

// inPlace returns the text below as many blank lines as stand before it in the
// manifest, so that lines are right by themselves, also those that a message names.
// Text that is not YAML, or no template, is alone, and lift is how many lines are
// missing: the search for the place of such a mistake is only for short files.
func (e *embedded) inPlace() (content []byte, lift int) {
	before := max(e.line-1, 0)
	if e.broken() {
		return []byte(e.text), before
	}
	return []byte(strings.Repeat("\n", before) + e.text), 0
}

// vet checks the text, and places what is wrong in the manifest.
func (e *embedded) vet(source Source) position.Problems {
	var lift int
	source.Content, lift = e.inPlace()
	var found position.Problems
	if e.template {
		found = podtemplate.CheckFile(source.Path, source.Content)
	} else {
		_, found = Load(source)
	}
	var problems position.Problems
	for _, p := range found {
		switch {
		case p.Rule == position.RuleMissingFile: // it is elsewhere
			continue
		case p.Rule == position.RuleOldName && p.Path == "": // of the manifest's file
			continue
		case p.Rule == position.RuleReadableToken && e.public:
			p.Message = "a token in a ConfigMap may be read by many"
			p.Hint = "put it into a Secret, and hand it on as a variable or through token_file"
		}
		p.File = source.Path
		switch {
		case p.Line == 0, p.Line+lift < e.line:
			p.Line, p.Column = e.key.Line, e.key.Column
		case e.line > 0:
			p.Line += lift
			if p.Column > 0 {
				p.Column += e.indent
			}
		default:
			if strings.Contains(strings.TrimRight(e.text, "\n"), "\n") {
				p.Hint = strings.TrimPrefix(p.Hint+"; ", "; ") + fmt.Sprintf("this is line %d of the text", p.Line)
			}
			p.Line, p.Column = e.at.Line, e.at.Column
		}
		problems = append(problems, p)
	}
	return problems
}

// broken reports whether the text cannot be read.
func (e *embedded) broken() bool {
	if e.template {
		v, _, _ := podtemplate.Parse("", []byte(e.text))
		t, _ := v.Data.(position.Mapping)
		return t == nil
	}
	var node yaml.Node
	return yaml.Unmarshal([]byte(e.text), &node) != nil
}
