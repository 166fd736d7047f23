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

// resource is a Kubernetes object.
type resource struct {
	kind string
	node *yaml.Node
}

// get returns a key of a mapping and its value, or nil if the mapping lacks the key. It
// reports a duplicate key.
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

// target returns the node to which an alias refers, and any other node unchanged.
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

// collect adds the objects of a document, including those in lists.
func (m *manifests) collect(n *yaml.Node) {
	if len(m.objects) >= maxObjects {
		if !m.limitReached {
			m.limitReached = true
			m.report(position.RuleSize, n, "",
				fmt.Sprintf("the file contains, or expands to, more than %d objects", maxObjects), "split it")
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

// section is a mapping in a ConfigMap or a Secret whose values are the contents of files.
type section struct {
	name    string
	encoded bool // in base64
}

// sections are the sections of each kind of object.
var sections = map[string][]section{
	"ConfigMap": {{"data", false}, {"binaryData", true}},
	"Secret":    {{"stringData", false}, {"data", true}},
}

// check calls take for each configuration and template in a ConfigMap or a Secret, and
// reports those that cannot be read.
func (m *manifests) check(o resource, take func(*embedded)) {
	for _, section := range sections[o.kind] {
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
				m.warn(position.RuleOldName, key, path, "an old name", "rename it to "+FileName)
			}
			if message, hint := e.read(m.lines, section.encoded); message != "" {
				m.report(position.RuleValue, e.at, path, message, hint)
				continue
			}
			take(&e)
		}
	}
}

// sourceOf returns the source of a configuration in an object, without its content.
func (m *manifests) sourceOf(o resource) Source {
	source := Source{
		Path: m.source.Path, Mode: m.source.Mode, Release: m.source.Release, vetted: m.source.vetted,
		Elsewhere:        true,
		TerminationGrace: m.grace(m.text(o.node, "metadata", "name")),
		ReadFile:         func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	}
	if o.kind == "ConfigMap" {
		source.Mode |= 0o044 // others can read a token in it
	}
	return source
}

// grace returns the termination grace period of the Pod that uses a ConfigMap or Secret of
// this name. This Pod is that of the only workload in the file. If the file has several
// workloads, it is that of the only workload with such a volume. grace returns 0 if there is
// no such workload, and the default of the API if the Pod sets no grace period.
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

// graceOf returns the grace period of a Pod with this spec, or 0 if the period is invalid.
func (m *manifests) graceOf(spec *yaml.Node) time.Duration {
	const defaultSeconds, year = 30, 365 * 24 * 3600
	text := m.text(spec, "terminationGracePeriodSeconds")
	if text == "" {
		return defaultSeconds * time.Second
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
	line     int // line of the manifest at which text begins; 0 if its lines are not in the manifest
	indent   int // number of spaces before each line of text in the manifest
}

// read sets the text from the value, or returns the message and hint of a problem.
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

// asWritten finds the lines of the text in the manifest, and reports whether it has found
// them. The lines must be identical except for a common indentation, so that a position in
// the text corresponds to a position in the manifest.
func (e *embedded) asWritten(lines []string) bool {
	text := strings.Split(strings.TrimRight(e.text, "\n"), "\n")
	first := slices.IndexFunc(text, func(line string) bool { return strings.TrimSpace(line) != "" })
	start := e.at.Line // index of the line below the value's indicator
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

// folded replaces the text of a folded block with the lines of the manifest if the text is
// JSON, in which line ends have no meaning.
func (e *embedded) folded(lines []string) {
	if e.at.Style&yaml.FoldedStyle == 0 {
		return
	}
	indent := 0
	var block []string
	for _, line := range lines[min(e.at.Line, len(lines)):] {
		line = strings.TrimRight(line, "\r")
		spaces := len(line) - len(strings.TrimLeft(line, " "))
		if spaces == len(line) {
			block = append(block, "")
			continue
		}
		if indent == 0 {
			indent = spaces
		}
		if spaces < indent {
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

// inPlace returns the text with empty lines before it, one for each line of the manifest
// before the text. The line numbers of the text, also those in messages, are then those of
// the manifest. If the text has a syntax error, inPlace adds no lines, because the search for
// the position of a syntax error works only in short files. lift is the number of lines that
// inPlace has not added.
func (e *embedded) inPlace() (content []byte, lift int) {
	before := max(e.line-1, 0)
	if e.broken() {
		return []byte(e.text), before
	}
	return []byte(strings.Repeat("\n", before) + e.text), 0
}

// vet checks the text, and returns the problems with their positions in the manifest.
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
		case p.Rule == position.RuleMissingFile: // it may exist on the agent's machine
			continue
		case p.Rule == position.RuleOldName && p.Path == "": // it concerns the name of the manifest
			continue
		case p.Rule == position.RuleReadableToken && e.public:
			p.Message = "many users can read a token in a ConfigMap"
			p.Hint = "put it into a Secret, and pass it in a variable or in token_file"
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

// broken reports whether the text cannot be parsed: as a template if e is a template,
// otherwise as YAML.
func (e *embedded) broken() bool {
	if e.template {
		v, _, _ := podtemplate.Parse("", []byte(e.text))
		t, _ := v.Data.(position.Mapping)
		return t == nil
	}
	var node yaml.Node
	return yaml.Unmarshal([]byte(e.text), &node) != nil
}
