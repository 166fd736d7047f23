package position

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFile is the size of the largest file that is read, in bytes.
const MaxFile = 1 << 20

// CheckText returns the content of a file without its byte order mark. It returns a
// problem if the content is too long, not UTF-8, or has characters that YAML
// forbids: the parser would report these without a position.
func CheckText(file string, content []byte) ([]byte, *Problem) {
	if len(content) > MaxFile {
		return nil, &Problem{
			Rule: RuleSize, File: file,
			Message: fmt.Sprintf("the file is larger than %d KiB", MaxFile>>10),
			Hint:    "name a configuration file; no configuration is that long",
		}
	}
	if bytes.HasPrefix(content, []byte{0xFE, 0xFF}) || bytes.HasPrefix(content, []byte{0xFF, 0xFE}) {
		return nil, &Problem{
			Rule: RuleSyntax, File: file, Line: 1, Column: 1,
			Message: "the file is in UTF-16", Hint: "save it as UTF-8",
		}
	}
	content = bytes.TrimPrefix(content, []byte("\uFEFF"))
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		message := ""
		switch {
		case r == utf8.RuneError && size == 1:
			message = "the file is not UTF-8 from here on"
		case r == 0:
			message = "there is a NUL byte"
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7F && r < 0xA0 && r != 0x85, r == '\uFEFF':
			message = "there is an invisible control character"
		}
		if message != "" {
			line, column := lineColumn(content, i)
			return nil, &Problem{
				Rule: RuleSyntax, File: file, Line: line, Column: column,
				Message: message, Hint: "write the file as plain UTF-8 text",
			}
		}
		i += size
	}
	return content, nil
}

// lineColumn returns the line and column of an offset, both from 1, the column in
// characters.
func lineColumn(content []byte, offset int) (line, column int) {
	before := content[:offset]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[begin:])
}

// translation is a message in place of one of the parser.
type translation struct{ parser, message, hint string }

// translations returns our messages for those of the parser, of which the first
// that matches counts. The parser's own text is not shown: it names anchors, which
// may be a secret after a star.
func translations() []translation {
	return []translation{
		{"found character that cannot start any token",
			"a value begins with a character that YAML keeps for itself",
			"put the value in quotes"},
		{"mapping values are not allowed",
			"there is a second colon, or a wrong indent",
			"put a value with a colon and a blank in quotes, and give keys of one mapping the same indent"},
		{"unexpected end of stream", "a quotation mark is opened and not closed", "close it"},
		{"did not find expected ',' or",
			"a list or mapping in brackets is not closed, or lacks a comma",
			"close it, and put commas between its entries"},
		{"could not find expected ':'",
			"this line has no colon after its key",
			"write it as key: value, with a blank after the colon"},
		{"did not find expected key",
			"this line is no key of the mapping before it",
			"give keys of one mapping the same indent"},
		{"did not find expected '-' indicator",
			"this line is no entry of the list before it",
			"begin each entry with a dash, at one indent"},
		{"unknown anchor", "an alias has no anchor", "put a value that begins with a star in quotes"},
		{"did not find expected alphabetic or numeric character",
			"an alias or an anchor has no name",
			"put a value that begins with a star or an ampersand in quotes"},
		{"found unknown escape character",
			"a backslash in double quotes begins an escape that YAML does not know",
			"use single quotes, or write the backslash twice"},
		{"found incompatible YAML document",
			"the directive %YAML names a version that is not read",
			"remove that line"},
		{"anchor", "an anchor contains itself", "write the value out"},
	}
}

// syntaxProblem returns the problem for an error of the parser.
func syntaxProblem(file string, content []byte, err error) Problem {
	text := err.Error()
	p := Problem{
		Rule: RuleSyntax, File: file,
		Message: "this is not YAML", Hint: "look at indents, quotes and brackets here and on the line before",
	}
	for _, t := range translations() {
		if strings.Contains(text, t.parser) {
			p.Message, p.Hint = t.message, t.hint
			break
		}
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	p.Line = min(failingLine(lines, text), len(lines))
	line := lines[p.Line-1]
	indent := len(line) - len(bytes.TrimLeft(line, " \t"))
	p.Column = indent + 1
	if colon := bytes.Index(line, []byte(": ")); colon >= 0 && strings.Contains(p.Hint, "quotes") {
		p.Column = utf8.RuneCount(line[:colon]) + 3
	}
	if tab := bytes.IndexByte(line[:indent], '\t'); tab >= 0 {
		p.Column, p.Message, p.Hint = tab+1, "a tab cannot indent", "use blanks"
	}
	return p
}

// failingLine returns the first line with which the file is no YAML: the one after
// the longest run of whole lines that parse by themselves. The parser often names
// the line where the broken mapping began, or one too few; failingLine returns its
// line only for long files, in which the search would take long.
func failingLine(lines [][]byte, text string) int {
	const longest = 32 << 10
	named := 1
	if _, after, ok := strings.Cut(text, "line "); ok {
		number, _, _ := strings.Cut(after, ":")
		if n, err := strconv.Atoi(number); err == nil {
			named = max(n, 1)
		}
	}
	whole := bytes.Join(lines, nil)
	if len(lines) > 500 || len(whole) > longest {
		return named
	}
	end := len(whole)
	for n := len(lines) - 1; n > 0; n-- {
		end -= len(lines[n])
		var node yaml.Node
		if len(bytes.TrimSpace(lines[n-1])) > 0 && yaml.Unmarshal(whole[:end], &node) == nil {
			return n + 1
		}
	}
	return 1
}
