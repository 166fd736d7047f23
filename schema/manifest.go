package schema

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	// maxDocuments bounds the documents of a file with manifests.
	maxDocuments = 1_000
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
	problems Problems
	checked  int      // configurations and templates
	others   []string // keys of data that are neither
	full     bool     // a bound was met, and said
}

// resource is one object of the API.
type resource struct {
	kind string
	node *yaml.Node
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
	content, broken := unreadable(source.Path, source.Content)
	if broken != nil {
		return nil, false
	}
	m, ok := readManifests(source, content)
	if !ok {
		return nil, false
	}
	type held struct {
		template bool
		object   int
		name     string // of the file that the key becomes where it is mounted
		source   Source
	}
	var all []held
	for i, o := range m.objects {
		m.check(o, func(e *embedded) {
			one := held{e.template, i, e.key.Value, m.sourceOf(o)}
			one.source.Content, _ = e.inPlace()
			all = append(all, one)
		})
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

// vetManifests checks what the manifests of a file hold.
func vetManifests(source Source, content []byte) (problems Problems, ok bool) {
	m, ok := readManifests(source, content)
	if !ok {
		return nil, false
	}
	for _, o := range m.objects {
		m.check(o, func(e *embedded) { m.problems = append(m.problems, e.vet(m.sourceOf(o))...) })
	}
	if m.checked == 0 && len(m.problems) == 0 {
		m.report(RuleManifest, nil, "", "no ConfigMap or Secret of this file holds a configuration or a Pod template", m.wanted())
	}
	return m.problems, true
}

// readManifests finds the objects of a file. ok is false if there are none: if no
// document has apiVersion and kind, or the only one is a Pod, which is a template
// then.
func readManifests(source Source, content []byte) (m *manifests, ok bool) {
	m = &manifests{source: source}
	parts, more := split(content)
	var documents []*yaml.Node
	for _, part := range parts {
		document, problem := part.read(source.Path)
		if problem != nil {
			m.problems = append(m.problems, *problem)
		}
		if document != nil && document.ShortTag() != "!!null" {
			documents = append(documents, document)
		}
	}
	if !slices.ContainsFunc(documents, isManifest) || len(documents) == 1 && len(m.problems) == 0 && isPodManifest(documents[0]) {
		return nil, false
	}
	m.lines = strings.Split(string(content), "\n")
	if more {
		m.report(RuleSize, nil, "", fmt.Sprintf("the file holds more than %d documents", maxDocuments), "split it")
	}
	for _, document := range documents {
		if isManifest(document) {
			m.collect(document)
		} else {
			m.report(RuleManifest, document, "", "is no Kubernetes manifest, as the other documents of the file are", "add apiVersion and kind, or move it to a file of its own")
		}
	}
	return m, true
}

func isManifest(n *yaml.Node) bool {
	var aside manifests // takes what is wrong twice
	return aside.text(n, "apiVersion") != "" && aside.text(n, "kind") != ""
}

func isPodManifest(n *yaml.Node) bool {
	var aside manifests
	return isPod(table{"kind": value{data: aside.text(n, "kind")}})
}

// wanted says what the manifests should hold.
func (m *manifests) wanted() string {
	names := append([]string{FileName, OldFileName}, podNames...)
	for _, key := range m.others {
		if best := Closest(key, slices.Clone(names)); best != "" {
			return fmt.Sprintf("did you mean the key %s?", best)
		}
	}
	return "keys that are looked for are " + strings.Join(names, ", ")
}

// report places a problem at a node, or at the file as a whole.
func (m *manifests) report(rule Rule, n *yaml.Node, path, message, hint string) {
	p := Problem{Rule: rule, File: m.source.Path, Path: path, Message: message, Hint: hint}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	m.problems = append(m.problems, p)
}

// part is one document of a file as it is written.
type part struct {
	content []byte
	before  int // lines
}

// split cuts a file where its documents begin. A parser that reads one after
// another stops at the first that is broken; here each has its own say. more is
// true if there are more than maxDocuments, which are left out.
func split(content []byte) (parts []part, more bool) {
	var now part
	line, bare := 0, true // bare: nothing yet but what may stand before a document
	end := func() {
		if !bare || len(parts) == 0 {
			parts = append(parts, now)
		}
		now, bare = part{before: line}, true
	}
	for text := range bytes.Lines(content) {
		if marks(text, "---") && !bare {
			end()
		}
		now.content = append(now.content, text...)
		trimmed := bytes.TrimSpace(text)
		if len(trimmed) > 0 && trimmed[0] != '#' && text[0] != '%' && !marks(text, "...") {
			bare = false
		}
		line++
		if marks(text, "...") {
			end()
		}
		if len(parts) > maxDocuments {
			return parts[:maxDocuments], true
		}
	}
	if end(); len(parts) > maxDocuments {
		return parts[:maxDocuments], true
	}
	return parts, false
}

// marks reports whether a line is a mark that begins or ends a document.
func marks(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// read parses the document. It is nil if there is none.
func (p part) read(file string) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(p.content))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = decoder.Decode(&second); errors.Is(err, io.EOF) {
			move(&first, p.before)
			return first.Content[0], nil
		}
	}
	problem := Problem{Rule: RuleSyntax, File: file, Line: second.Line, Column: second.Column, Message: "a second document begins without a line ---", Hint: "put --- between documents, in lines that end as the others do"}
	if err != nil {
		problem = explainSyntax(file, p.content, err)
	}
	problem.Line += p.before
	return nil, &problem
}

// move puts a tree further down the file.
func move(n *yaml.Node, lines int) {
	n.Line += lines
	for _, inner := range n.Content {
		move(inner, lines)
	}
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
		m.report(RuleDuplicateKey, n.Content[i], name, fmt.Sprintf("duplicate key; first set on line %d", key.Line), "keep one of the two")
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
			m.report(RuleSize, n, "", fmt.Sprintf("the file holds, or unfolds to, more than %d objects", maxObjects), "split it")
		}
		return
	}
	n = target(n)
	o := resource{m.text(n, "kind"), n}
	m.objects = append(m.objects, o)
	if _, items := m.get(n, "items"); strings.HasSuffix(o.kind, "List") && items != nil && items.Kind == yaml.SequenceNode {
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
			e := embedded{key: key, at: target(files.Content[i+1]), template: slices.Contains(podNames, key.Value), public: o.kind == "ConfigMap"}
			if key.Kind != yaml.ScalarNode || !e.template && key.Value != FileName && key.Value != OldFileName {
				m.others = append(m.others, key.Value)
				continue
			}
			path := join(section.name, key.Value)
			if line, twice := seen[key.Value]; twice {
				m.report(RuleDuplicateKey, key, path, fmt.Sprintf("duplicate key; first set on line %d", line), "keep one of the two")
				continue
			}
			seen[key.Value] = key.Line
			if m.checked++; m.checked > maxEmbedded {
				if !m.full {
					m.full = true
					m.report(RuleSize, key, path, fmt.Sprintf("the file holds more than %d configurations and Pod templates", maxEmbedded), "split it")
				}
				return
			}
			if key.Value == OldFileName {
				m.problems = append(m.problems, warning(RuleOldName, Origin{File: m.source.Path, Line: key.Line, Column: key.Column}, path, "an old name", "rename it to "+FileName))
			}
			if message, hint := e.read(m.lines, section.encoded); message != "" {
				m.report(RuleValue, e.at, path, message, hint)
				continue
			}
			take(&e)
		}
	}
}

// sourceOf is what a configuration in an object is loaded with.
func (m *manifests) sourceOf(o resource) Source {
	source := Source{
		Path: m.source.Path, Mode: m.source.Mode, TerminationGrace: m.grace(m.text(o.node, "metadata", "name")),
		ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
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
		_, spec := m.get(o.node, "spec")
		switch o.kind {
		case "Deployment", "StatefulSet", "DaemonSet":
			_, template := m.get(spec, "template")
			_, spec = m.get(template, "spec")
		case "Pod":
		default:
			continue
		}
		all = append(all, spec)
		_, volumes := m.get(spec, "volumes")
		if volumes == nil || volumes.Kind != yaml.SequenceNode {
			continue
		}
		for _, volume := range volumes.Content {
			if name != "" && (m.text(volume, "configMap", "name") == name || m.text(volume, "secret", "secretName") == name) {
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
	const usual, year = 30, 365 * 24 * 3600
	text := m.text(all[0], "terminationGracePeriodSeconds")
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
	if strings.HasPrefix(strings.TrimSpace(whole), "{") && slices.Equal(strings.Fields(whole), strings.Fields(e.text)) {
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
func (e *embedded) vet(source Source) Problems {
	var lift int
	source.Content, lift = e.inPlace()
	var found Problems
	if e.template {
		found = CheckPod(source.Path, source.Content)
	} else {
		_, found = Load(source)
	}
	var problems Problems
	for _, p := range found {
		switch {
		case p.Rule == RuleMissingFile: // it is elsewhere
			continue
		case p.Rule == RuleOldName && p.Path == "": // of the manifest's file
			continue
		case p.Rule == RuleReadableToken && e.public:
			p.Message, p.Hint = "a token in a ConfigMap may be read by many", "put it into a Secret, and hand it on as a variable or through token_file"
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
		v, _, _ := parsePod("", []byte(e.text))
		t, _ := v.data.(table)
		return t == nil
	}
	var node yaml.Node
	return yaml.Unmarshal([]byte(e.text), &node) != nil
}
