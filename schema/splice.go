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
)

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
		entry = p.newline + strings.Repeat(" ", p.root.Content[0].Column-1) + entry + ","
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
	newline := p.newline
	var b strings.Builder
	for _, line := range wrap(change.Comment, 100-len(indent)-len("# ")) {
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
			return "", nil, position.Problems{{Rule: position.RuleValue, Message: "the value is not UTF-8",
				Hint: "write it as plain text"}}
		}
		// Older parsers than ours read these words as true and false.
		words := []string{"y", "n", "yes", "no", "on", "off"}
		read := yaml.Node{Kind: yaml.ScalarNode, Value: value}
		if bare.MatchString(value) && read.ShortTag() == "!!str" && !slices.Contains(words, strings.ToLower(value)) {
			return value, want, nil
		}
		return inQuotes(value), want, nil
	default:
		return "", nil, fmt.Errorf("set a value of type %T: only text, true and false, and whole numbers can be set",
			value)
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
