package schema

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

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
		v, _, _ := podtemplate.Parse("", []byte(e.text))
		t, _ := v.Data.(position.Mapping)
		return t == nil
	}
	var node yaml.Node
	return yaml.Unmarshal([]byte(e.text), &node) != nil
}
