package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Change is one key that [Edit] sets.
type Change struct {
	Key     string // of the top level, not empty
	Value   any    // a string, a bool or an int
	Comment string // sentences to stand above the key if the file does not have it yet
}

// Edit sets keys in the text of a configuration file, one after another, and
// returns the new text. Whatever it does not have to touch stays byte for byte:
// comments, order, indents, line ends, a byte order mark. JSON stays JSON. A value
// takes the place of the one before it; a new key goes to the end. A key that has
// the value already is left as it is, so that a second edit changes nothing.
//
// Content may be empty. It must be one YAML document that holds a mapping; the
// values in it are not judged. The error is of type [Problems], with no file in
// it, and quotes nothing of the content: the content is not YAML, or the old value
// is not a plain one (a list, a mapping, something with an anchor or a tag). The
// result is read again before it is handed out, and an edit that would change
// anything else is refused in the same way.
func Edit(content []byte, changes []Change) ([]byte, error) {
	for _, change := range changes {
		p, err := readPage(content)
		if err != nil {
			return nil, err
		}
		if content, err = p.set(change); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// Texts returns the text of every key at the top level of a configuration file
// whose value is one word, number or text. The values are not judged, and may be
// secrets. The error is that of [Edit].
func Texts(content []byte) (map[string]string, error) {
	p, err := readPage(content)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for key, value := range p.pairs() {
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind == yaml.ScalarNode {
			texts[key.Value] = value.Value
		}
	}
	return texts, nil
}

// page is the text of a file beside what the parser makes of it.
type page struct {
	whole []byte     // with its byte order mark
	text  []byte     // without
	root  *yaml.Node // a mapping; nil if the document is empty
	lines []int      // offsets in text at which lines begin, as the parser counts them
}

func readPage(content []byte) (*page, error) {
	text, broken := unreadable("", content)
	if broken != nil {
		return nil, Problems{*broken}
	}
	p := &page{whole: content, text: text}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		return p, nil
	case err != nil:
		return nil, Problems{explainSyntax("", text, err)}
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, notEdited(&second, "", "the file must be one document", "remove the line --- and what follows it")
	case !errors.Is(err, io.EOF):
		return nil, Problems{explainSyntax("", text, err)}
	}
	root := first.Content[0]
	switch {
	case root.Kind == yaml.MappingNode:
		p.root = root
	case root.Kind != yaml.ScalarNode || root.Value != "" || root.ShortTag() != "!!null":
		return nil, notEdited(root, "", "the file must be a mapping of keys to values", "write lines such as: deploy_target: docker")
	}
	return p, nil
}

func notEdited(n *yaml.Node, path, message, hint string) Problems {
	return Problems{{Rule: RuleSyntax, Line: n.Line, Column: n.Column, Path: path, Message: message, Hint: hint}}
}

// pairs goes through the top level.
func (p *page) pairs() func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if p.root == nil {
			return
		}
		for i := 0; i+1 < len(p.root.Content); i += 2 {
			if !yield(p.root.Content[i], p.root.Content[i+1]) {
				return
			}
		}
	}
}

// set returns the text with one change in it. Where a text can be put in more
// than one way, the first one counts that changes nothing else.
func (p *page) set(change Change) ([]byte, error) {
	written, want, err := asScalar(change.Value)
	if err != nil {
		return nil, err
	}
	var key, old *yaml.Node
	for k, v := range p.pairs() {
		if k.Kind != yaml.ScalarNode || k.Value != change.Key {
			continue
		}
		if old != nil {
			return nil, notEdited(k, change.Key, fmt.Sprintf("duplicate key; first set on line %d", key.Line), "keep one of the two")
		}
		key, old = k, v
	}
	var ways [][]edit
	switch {
	case old == nil && p.flow():
		ways = p.intoFlow(change.Key, want)
	case old == nil:
		ways = p.append(change, written)
	case alike(old, want):
		return p.whole, nil
	case old.Kind == yaml.SequenceNode || old.Kind == yaml.MappingNode:
		return nil, notEdited(old, change.Key, "is a list or a mapping, which is not replaced", "remove it, and begin again")
	case p.flow() && key.Style&yaml.DoubleQuotedStyle != 0:
		ways = p.replace(old, asJSON(want))
	default:
		ways = p.replace(old, written)
	}
	for _, way := range ways {
		text := p.apply(way)
		if after, err := readPage(text); err == nil && p.differsOnly(after, change.Key, want) {
			return text, nil
		}
	}
	at := &yaml.Node{Line: 1, Column: 1}
	if old != nil {
		at = old
	}
	return nil, notEdited(at, change.Key, "cannot be set without harm to the rest of the file", "set it by hand")
}

// differsOnly reports whether another page differs in the value of one key and
// in nothing else.
func (p *page) differsOnly(after *page, key string, want *yaml.Node) bool {
	var before, now []*yaml.Node
	for k, v := range p.pairs() {
		if k.Value != key || k.Kind != yaml.ScalarNode {
			before = append(before, k, v)
		}
	}
	found := 0
	for k, v := range after.pairs() {
		if k.Value == key && k.Kind == yaml.ScalarNode && alike(v, want) {
			found++
			continue
		}
		now = append(now, k, v)
	}
	return found == 1 && slices.EqualFunc(before, now, sameNode)
}

// alike compares two scalars by type and text, whatever their quotes.
func alike(a, b *yaml.Node) bool {
	return a.Kind == yaml.ScalarNode && b.Kind == yaml.ScalarNode && a.Anchor == "" && a.Value == b.Value && a.ShortTag() == b.ShortTag()
}

// sameNode compares two nodes with all that is in them, and follows no alias: those
// of the same name mean the same where the anchors are the same.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Anchor == b.Anchor && a.Value == b.Value && a.ShortTag() == b.ShortTag() &&
		slices.EqualFunc(a.Content, b.Content, sameNode)
}

// edit puts text in place of what stands between two offsets.
type edit struct {
	from, to int
	text     string
}

// apply returns the whole text with edits in it, which are in order and apart.
func (p *page) apply(edits []edit) []byte {
	mark := len(p.whole) - len(p.text)
	out := slices.Clone(p.whole[:mark])
	at := 0
	for _, e := range edits {
		out = append(out, p.text[at:e.from]...)
		out = append(out, e.text...)
		at = e.to
	}
	return append(out, p.text[at:]...)
}

// flow reports whether the top level is written in brackets.
func (p *page) flow() bool { return p.root != nil && p.root.Style&yaml.FlowStyle != 0 }

// intoFlow puts a key first into a mapping in brackets, in the notation of JSON,
// which YAML reads as well.
func (p *page) intoFlow(key string, want *yaml.Node) [][]edit {
	at := p.offset(p.root) + 1
	if at > len(p.text) || p.text[at-1] != '{' {
		return nil
	}
	entry := inQuotes(key) + ": " + asJSON(want)
	switch {
	case len(p.root.Content) == 0:
	case p.root.Content[0].Line > p.root.Line:
		entry = p.newline() + strings.Repeat(" ", p.root.Content[0].Column-1) + entry + ","
	default:
		entry += ", "
	}
	return [][]edit{{{at, at, entry}}}
}

// append puts a key behind all others, and below what comments follow them. If
// the last value ends with the file, so that a further line would be part of it,
// the key goes before all others.
func (p *page) append(change Change, written string) [][]edit {
	indent, first := "", -1
	if p.root != nil && len(p.root.Content) > 0 {
		indent = strings.Repeat(" ", p.indent())
		first = p.offset(p.root.Content[0]) - (p.root.Content[0].Column - 1)
	}
	newline := p.newline()
	var b strings.Builder
	for _, line := range wrapped(change.Comment, 100-len(indent)-len("# ")) {
		b.WriteString(indent + "# " + line + newline)
	}
	name, _, _ := asScalar(change.Key)
	b.WriteString(indent + name + ": " + written + newline)
	entry := b.String()

	end := p.end()
	line := ""
	if end > 0 && !endsLine(p.text[:end]) {
		line = newline
	}
	ways := [][]edit{{{end, end, line + entry}}}
	if change.Comment != "" && end > 0 {
		ways = append([][]edit{{{end, end, line + newline + entry}}}, ways...)
	}
	if first >= 0 {
		ways = append(ways, []edit{{first, first, entry}})
	}
	return ways
}

// indent returns the blanks before each key. A key may have a question mark
// before it, and the whole mapping an anchor.
func (p *page) indent() int { return min(p.root.Column, p.root.Content[0].Column) - 1 }

// end returns the offset behind the last line of the document: the end of the
// text, or the line of three dots.
func (p *page) end() int {
	p.findLines()
	for i, from := range p.lines {
		to := len(p.text)
		if i+1 < len(p.lines) {
			to = p.lines[i+1]
		}
		if rest, ok := bytes.CutPrefix(p.text[from:to], []byte("...")); ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			return from
		}
	}
	return len(p.text)
}

func endsLine(text []byte) bool {
	return len(text) > 0 && (text[len(text)-1] == '\n' || text[len(text)-1] == '\r')
}

// newline returns how lines of the text end.
func (p *page) newline() string {
	at := bytes.IndexByte(p.text, '\n')
	switch {
	case at > 0 && p.text[at-1] == '\r':
		return "\r\n"
	case at < 0 && bytes.IndexByte(p.text, '\r') >= 0:
		return "\r"
	default:
		return "\n"
	}
}

// replace puts a value in place of another, and leaves the comment behind it.
func (p *page) replace(old *yaml.Node, written string) [][]edit {
	from := p.offset(old)
	rest := p.text[from:]
	switch {
	case old.Anchor != "" || old.Style&yaml.TaggedStyle != 0:
		return nil
	case old.Kind == yaml.AliasNode:
		return [][]edit{{{from, from + len("*") + len(old.Value), written}}}
	case old.Style&yaml.DoubleQuotedStyle != 0:
		return [][]edit{{{from, from + doubleQuotesLength(rest), written}}}
	case old.Style&yaml.SingleQuotedStyle != 0:
		return [][]edit{{{from, from + singleQuotesLength(rest), written}}}
	case old.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return p.replaceBlock(from, written)
	case old.Value == "":
		colon := bytes.TrimRight(p.text[:from], " \t")
		if !bytes.HasSuffix(colon, []byte(":")) {
			return nil
		}
		if len(colon) == from {
			written = " " + written
		}
		return [][]edit{{{from, from, written}}}
	default:
		return [][]edit{{{from, from + plainLength(rest, old.Value), written}}}
	}
}

// doubleQuotesLength returns the length of the text in double quotes at the beginning.
func doubleQuotesLength(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// singleQuotesLength does the same for single quotes, of which two in a row are one.
func singleQuotesLength(text []byte) int {
	for i := 1; i < len(text); i++ {
		if text[i] != '\'' {
			continue
		}
		if i++; i == len(text) || text[i] != '\'' {
			return i
		}
	}
	return len(text)
}

// plainLength returns the length of the text without quotes at the beginning, of which
// the parser made a value: it may have folded its lines, but leaves what is no
// blank as it is.
func plainLength(text []byte, value string) int {
	at := 0
	for _, word := range strings.Fields(value) {
		found := bytes.Index(text[at:], []byte(word))
		if found < 0 {
			return len(text)
		}
		at += found + len(word)
	}
	return at
}

// replaceBlock replaces a text that stands indented below its key. Empty lines
// and comments behind it stay, and so does a comment beside the key.
func (p *page) replaceBlock(from int, written string) [][]edit {
	p.findLines()
	next, _ := slices.BinarySearch(p.lines, from+1)
	header := from + 1
	outer, indent := p.indent(), 0
	for ; header < len(p.text) && strings.IndexByte("+-0123456789", p.text[header]) >= 0; header++ {
		if digit := int(p.text[header] - '0'); digit >= 1 && digit <= 9 {
			indent = outer + digit
		}
	}
	edits := []edit{{from, header, written}}
	begin, end := len(p.text), len(p.text)
	if next < len(p.lines) {
		begin, end = p.lines[next], p.lines[next]
	}
	for i := next; i < len(p.lines); i++ {
		to := len(p.text)
		if i+1 < len(p.lines) {
			to = p.lines[i+1]
		}
		line := p.text[p.lines[i]:to]
		blanks := len(line) - len(bytes.TrimLeft(line, " "))
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if indent == 0 {
			indent = max(blanks, outer+1)
		}
		if blanks < indent {
			break
		}
		end = to
	}
	return [][]edit{append(edits, edit{begin, end, ""})}
}

// findLines notes where lines begin. The parser takes more than a line feed for
// the end of one.
func (p *page) findLines() {
	if p.lines != nil {
		return
	}
	p.lines = []int{0}
	for i, r := range string(p.text) {
		ends := r == '\n' || r == '\u0085' || r == '\u2028' || r == '\u2029' ||
			r == '\r' && !bytes.HasPrefix(p.text[i+1:], []byte("\n"))
		if ends {
			p.lines = append(p.lines, i+utf8.RuneLen(r))
		}
	}
}

// offset returns where a node begins in the text. The parser counts columns in
// characters.
func (p *page) offset(n *yaml.Node) int {
	p.findLines()
	if n.Line < 1 || n.Line > len(p.lines) {
		return len(p.text)
	}
	at := p.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(p.text[at:])
		at += size
	}
	return at
}

// bare matches what needs no quotes, if YAML does not take it for something else.
var bare = regexp.MustCompile(`^[A-Za-z/]([A-Za-z0-9_./:@+-]*[A-Za-z0-9_/-])?$`)

// asScalar returns how a value is written on one line, and what the parser makes
// of that.
func asScalar(value any) (string, *yaml.Node, error) {
	switch value := value.(type) {
	case bool, int:
		written := fmt.Sprint(value)
		tag := map[bool]string{true: "!!bool", false: "!!int"}[written == "true" || written == "false"]
		return written, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: written}, nil
	case string:
		want := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
		if !utf8.ValidString(value) {
			return "", nil, Problems{{Rule: RuleValue, Message: "the value is not UTF-8", Hint: "write it as plain text"}}
		}
		// Older parsers than ours read these words as true and false.
		words := []string{"y", "n", "yes", "no", "on", "off"}
		read := yaml.Node{Kind: yaml.ScalarNode, Value: value}
		if bare.MatchString(value) && read.ShortTag() == "!!str" && !slices.Contains(words, strings.ToLower(value)) {
			return value, want, nil
		}
		return inQuotes(value), want, nil
	default:
		return "", nil, fmt.Errorf("set a value of type %T: only text, true and false, and whole numbers can be set", value)
	}
}

// asJSON returns how a value is written in JSON.
func asJSON(n *yaml.Node) string {
	if n.ShortTag() == "!!str" {
		return inQuotes(n.Value)
	}
	return n.Value
}

// inQuotes returns a text in double quotes, as JSON and YAML both read it.
func inQuotes(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string always encodes
	// JSON leaves some characters as they are that YAML does not allow.
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if r >= 0x7F && r < 0xA0 || r == '\uFEFF' || r == '\uFFFE' || r == '\uFFFF' {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// wrapped breaks sentences into lines of at most so many characters. A word that is
// longer has a line of its own.
func wrapped(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= width {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}
