package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// edit replaces the bytes between two offsets with a text.
type edit struct {
	from, to int
	text     string
}

// apply returns the whole text after the edits, which must be in order and must not overlap.
func (p *page) apply(edits []edit) []byte {
	bom := len(p.whole) - len(p.text)
	out := slices.Clone(p.whole[:bom])
	at := 0
	for _, e := range edits {
		out = append(out, p.text[at:e.from]...)
		out = append(out, e.text...)
		at = e.to
	}
	return append(out, p.text[at:]...)
}

// prependFlow returns the edit that adds a key at the beginning of a mapping in brackets. The
// new key is in JSON, which is also YAML.
func (p *page) prependFlow(key string, want *yaml.Node) [][]edit {
	at := p.offset(p.root) + 1
	if at > len(p.text) || p.text[at-1] != '{' {
		return nil
	}
	entry := inQuotes(key) + ": " + asJSON(want)
	switch {
	case len(p.root.Content) == 0:
	case p.root.Content[0].Line > p.root.Line:
		entry = p.newline + strings.Repeat(" ", p.root.Content[0].Column-1) + entry + ","
	default:
		entry += ", "
	}
	return [][]edit{{{at, at, entry}}}
}

// append returns candidate edits that add a key, in order of preference. They add the key
// after all other keys and the comments that follow these keys. If the file has a key, the
// last candidate adds the new key before all other keys instead, because the last value of a
// file may include any line after it.
func (p *page) append(change Change, written string) [][]edit {
	// The indentation, and the offset of the first key.
	indent, first := "", -1
	if p.root != nil && len(p.root.Content) > 0 {
		indent = strings.Repeat(" ", p.indent())
		first = p.offset(p.root.Content[0]) - (p.root.Content[0].Column - 1)
	}

	// The comment and the key.
	newline := p.newline
	var b strings.Builder
	for _, line := range printable.Wrap(change.Comment, indent+"# ", indent+"# ", 100) {
		b.WriteString(line + newline)
	}
	name, _, _ := asScalar(change.Key)
	b.WriteString(indent + name + ": " + written + newline)
	entry := b.String()

	// The candidate places for both.
	end := p.end()
	separator := ""
	if end > 0 && !endsLine(p.text[:end]) {
		separator = newline
	}
	candidates := [][]edit{{{end, end, separator + entry}}}
	if change.Comment != "" && end > 0 {
		candidates = append([][]edit{{{end, end, separator + newline + entry}}}, candidates...)
	}
	if first >= 0 {
		candidates = append(candidates, []edit{{first, first, entry}})
	}
	return candidates
}

// replace returns the edit that replaces a value and keeps the comment after it, or none if
// the value cannot be replaced.
func (p *page) replace(old *yaml.Node, written string) [][]edit {
	from := p.offset(old)
	text := p.text[from:]
	switch {
	case old.Anchor != "" || old.Style&yaml.TaggedStyle != 0:
		return nil
	case old.Kind == yaml.AliasNode:
		return [][]edit{{{from, from + len("*") + len(old.Value), written}}}
	case old.Style&yaml.DoubleQuotedStyle != 0:
		return [][]edit{{{from, from + doubleQuotesLength(text), written}}}
	case old.Style&yaml.SingleQuotedStyle != 0:
		return [][]edit{{{from, from + singleQuotesLength(text), written}}}
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
		return [][]edit{{{from, from + plainLength(text, old.Value), written}}}
	}
}

// doubleQuotesLength returns the length of the double-quoted scalar at the beginning of text.
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

// singleQuotesLength returns the length of the single-quoted scalar at the beginning of text.
// Two quotes in a row are an escaped quote.
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

// plainLength returns the length of the unquoted scalar at the beginning of text, given its
// parsed value. The parser may have folded lines, so only white space can differ.
func plainLength(text []byte, value string) int {
	at := 0
	for _, field := range strings.Fields(value) {
		found := bytes.Index(text[at:], []byte(field))
		if found < 0 {
			return len(text)
		}
		at += found + len(field)
	}
	return at
}

// replaceBlock replaces a block scalar, whose text is in indented lines below its key. It
// keeps the empty lines and comments after the text, and a comment on the line of the key.
func (p *page) replaceBlock(from int, written string) [][]edit {
	// The indicator, which may give the indentation.
	p.findLines()
	next, _ := slices.BinarySearch(p.lines, from+1)
	header := from + 1
	outer, indent := p.indent(), 0
	for ; header < len(p.text) && strings.IndexByte("+-0123456789", p.text[header]) >= 0; header++ {
		if digit := int(p.text[header] - '0'); digit >= 1 && digit <= 9 {
			indent = outer + digit
		}
	}

	// The lines of the text.
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
		spaces := len(line) - len(bytes.TrimLeft(line, " "))
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if indent == 0 {
			indent = max(spaces, outer+1)
		}
		if spaces < indent {
			break
		}
		end = to
	}
	return [][]edit{append(edits, edit{begin, end, ""})}
}

// bare matches a text that needs no quotes, unless YAML reads it as another type.
var bare = regexp.MustCompile(`^[A-Za-z/]([A-Za-z0-9_./:@+-]*[A-Za-z0-9_/-])?$`)

// asScalar returns the notation of a value on one line, and the node that the parser
// returns for this notation.
func asScalar(value any) (string, *yaml.Node, error) {
	switch value := value.(type) {
	case bool, int:
		written := fmt.Sprint(value)
		tag := map[bool]string{true: "!!bool", false: "!!int"}[written == "true" || written == "false"]
		return written, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: written}, nil
	case string:
		want := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
		if !utf8.ValidString(value) {
			return "", nil, position.Problems{{Rule: position.RuleValue, Message: "the value is not UTF-8",
				Hint: "write it as plain text"}}
		}
		// Older parsers read these texts as true and false.
		booleans := []string{"y", "n", "yes", "no", "on", "off"}
		read := yaml.Node{Kind: yaml.ScalarNode, Value: value}
		if bare.MatchString(value) && read.ShortTag() == "!!str" && !slices.Contains(booleans, strings.ToLower(value)) {
			return value, want, nil
		}
		return inQuotes(value), want, nil
	default:
		return "", nil, fmt.Errorf("set a value of type %T: only text, true and false, and whole numbers can be set",
			value)
	}
}

// asJSON returns a value in JSON.
func asJSON(n *yaml.Node) string {
	if n.ShortTag() == "!!str" {
		return inQuotes(n.Value)
	}
	return n.Value
}

// inQuotes returns a text in double quotes that is valid JSON and YAML.
func inQuotes(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string always encodes

	// Escape the characters that JSON allows and YAML does not.
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
