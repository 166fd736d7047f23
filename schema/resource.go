package schema

import (
	"encoding/base64"
	"fmt"
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
	file string
}

// Objects are the Kubernetes objects of several files, such as those of a directory.
type Objects struct {
	all []resource
}

// ReadObjects returns the objects of all files that are manifests. It does not report what
// cannot be read. ReadObjects never panics.
func ReadObjects(sources []Source) *Objects {
	var objects Objects
	for _, source := range sources {
		func() {
			defer func() { _ = recover() }() // for the same reason as in runRecovering
			if m, ok := readManifests(source, source.Content); ok {
				objects.all = append(objects.all, m.objects...)
			}
		}()
	}
	return &objects
}

// member returns a key of a mapping and its value, or nil if the mapping lacks the key.
func member(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n = target(n); n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == name {
			return n.Content[i], target(n.Content[i+1])
		}
	}
	return nil, nil
}

// sequence returns the entries of a list, and nil for another node.
func sequence(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
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

// textOf is text without a report of duplicate keys, for nodes of other files.
func textOf(n *yaml.Node, path ...string) string {
	var scratch manifests
	return scratch.text(n, path...)
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
	o := resource{m.text(n, "kind"), n, m.source.Path}
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

// setup is a source of a configuration, and the container whose variables apply to it.
type setup struct {
	source    Source
	container container
}

// setups returns the sources of a configuration in an object, without its content: one for
// each container of the agent that uses the object, or one without variables.
func (m *manifests) setups(o resource) []setup {
	users := m.users(o)
	var all []setup
	for _, user := range users {
		for _, c := range m.scratch().containers(user) {
			all = append(all, setup{m.sourceIn(c), c})
		}
	}
	if len(all) == 0 {
		all = []setup{{source: m.sourceIn(container{})}}
	}
	for i := range all {
		source := &all[i].source
		source.Path, source.Mode = m.source.Path, m.source.Mode
		if o.kind == "ConfigMap" {
			source.Mode |= 0o044 // others can read a token in it
		}
		if len(users) == 1 {
			source.TerminationGrace = m.graceOf(m.podSpec(users[0]))
		}
	}
	return all
}

// scratch returns manifests with the same objects, whose problems are dropped because they are
// reported elsewhere.
func (m *manifests) scratch() *manifests { return &manifests{source: m.source, known: m.known} }

// users returns the objects whose Pods use a ConfigMap or a Secret: the only workload of the
// manifests, or all workloads with such a volume if there are several.
func (m *manifests) users(o resource) []resource {
	name := textOf(o.node, "metadata", "name")
	var all, mounting []resource
	for _, user := range m.known {
		spec := m.podSpec(user)
		if spec == nil {
			continue
		}
		all = append(all, user)
		_, volumes := member(spec, "volumes")
		for _, volume := range sequence(volumes) {
			if name != "" && (textOf(volume, "configMap", "name") == name ||
				textOf(volume, "secret", "secretName") == name) {
				mounting = append(mounting, user)
				break
			}
		}
	}
	if len(all) > 1 {
		return mounting
	}
	return all
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

// vet checks the text, and returns the problems with their positions in the manifest. The
// problems of a variable are at its value.
func (e *embedded) vet(in setup) position.Problems {
	source := in.source
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
		if v, ok := in.container.set[p.Path]; ok && p.File == "" {
			if v.value != nil && p.Rule != position.RuleUnknownVariable && p.Rule != position.RuleUnused {
				p.File, p.Line, p.Column = v.file, v.value.Line, v.value.Column
				problems = append(problems, p)
			}
			continue
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
