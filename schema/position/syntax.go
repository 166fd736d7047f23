package position

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFile is the size of the largest file that is read, in bytes.
const MaxFile = 1 << 20

// CheckText returns the content of a file without its byte order mark. It returns a
// problem if the content is too long, not UTF-8, or has characters that YAML
// forbids, because the parser would report such characters without a position.
func CheckText(file string, content []byte) ([]byte, *Problem) {
	if len(content) > MaxFile {
		return nil, new(NewError(RuleSize, Origin{File: file}, "",
			fmt.Sprintf("the file is larger than %d KiB", MaxFile>>10),
			"name a configuration file; no configuration is that long"))
	}
	if bytes.HasPrefix(content, []byte{0xFE, 0xFF}) || bytes.HasPrefix(content, []byte{0xFF, 0xFE}) {
		at := Origin{File: file, Line: 1, Column: 1}
		return nil, new(NewError(RuleSyntax, at, "", "the file is in UTF-16", "save it as UTF-8"))
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
			at := Origin{File: file}
			at.Line, at.Column = lineColumn(content, i)
			return nil, new(NewError(RuleSyntax, at, "", message, "write the file as plain UTF-8 text"))
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

// translation is the message and hint that replace a message of the parser.
type translation struct{ parser, message, hint string }

// translations replace the messages of the parser; the first match is used. The text of the
// parser is not shown, because it quotes the names of aliases, and a secret that begins with
// a star is parsed as an alias.
var translations = []translation{
	{"found character that cannot start any token",
		"the value begins with a character that is reserved in YAML",
		"put the value in quotes"},
	{"mapping values are not allowed",
		secondColon,
		`check the indentation of this line, or put the value in quotes if it contains ": "`},
	{"unexpected end of stream", openQuote, closeQuote},
	{"did not find expected ',' or",
		"a list or mapping in brackets is not closed, or a comma is missing",
		"close the bracket, and separate the entries by commas"},
	{"could not find expected ':'",
		"this line has no colon after its key",
		"write key: value, with a space after the colon"},
	{"did not find expected key",
		"this line is not a key of the mapping above",
		sameIndent},
	{"did not find expected '-' indicator",
		"this line is not an entry of the list above",
		"begin each entry with a dash, and indent all entries equally"},
	{"unknown anchor", "an alias has no anchor", "put a value that begins with a star in quotes"},
	{"did not find expected alphabetic or numeric character",
		"an alias or an anchor has no name",
		"put a value that begins with a star or an ampersand in quotes"},
	{"found unknown escape character",
		"YAML does not know this escape sequence in double quotes",
		"use single quotes, or write the backslash twice"},
	{"found incompatible YAML document",
		"the directive %YAML names a version that is not supported",
		"remove that line"},
	{"anchor", "an anchor contains itself", "write out the value instead of the alias"},
}

const (
	secondColon = `unexpected ": "`
	sameIndent  = "indent all keys of one mapping equally"
	openQuote   = "the quotation mark is not closed"
	closeQuote  = "close it, or remove it"
)

func syntaxProblem(file string, content []byte, err error) Problem {
	text := err.Error()
	p := Problem{
		Rule: RuleSyntax, File: file,
		Message: "this is not YAML", Hint: "check indentation, quotes and brackets on this line and the line above",
	}
	for _, t := range translations {
		if strings.Contains(text, t.parser) {
			p.Message, p.Hint = t.message, t.hint
			break
		}
	}

	lines := bytes.SplitAfter(content, []byte("\n"))
	p.Line = min(failingLine(lines, text), len(lines))
	line := lines[p.Line-1]
	p.Column = indentOf(line) + 1
	if colon := bytes.Index(line, []byte(": ")); colon >= 0 && strings.Contains(p.Hint, "quotes") {
		p.Column = utf8.RuneCount(line[:colon]) + 3
		if second := bytes.Index(line[colon+1:], []byte(": ")); second >= 0 && p.Message == secondColon {
			p.Column = utf8.RuneCount(line[:colon+1+second]) + 1
		}
	}

	// Prefer a cause that the lines show.
	p.refine(lines)
	return p
}

// refine replaces position, message and hint of a syntax problem if the failing line, or
// the line above, shows a frequent mistake.
func (p *Problem) refine(lines [][]byte) {
	line := lines[p.Line-1]
	above := lineAbove(lines, p.Line)
	switch {
	case bytes.IndexByte(line[:indentOf(line)], '\t') >= 0:
		p.Column = bytes.IndexByte(line, '\t') + 1
		p.Message, p.Hint = "tabs are not allowed for indentation", "use spaces"
	case p.missingSpace(line, p.Line):
	case above > 0 && p.missingSpace(lines[above-1], above):
	case bytes.ContainsAny(line, CurlyQuotes):
		p.Column = utf8.RuneCount(line[:bytes.IndexAny(line, CurlyQuotes)]) + 1
		p.Message, p.Hint = "curly quotation marks are not quotes in YAML", `write straight ones: "`
	case openQuoteIn(line) >= 0:
		p.Column = utf8.RuneCount(line[:openQuoteIn(line)]) + 1
		p.Message, p.Hint = openQuote, closeQuote
	case above > 0 && hasValue.Match(lines[above-1]) && keyStart.Match(line) &&
		keyIndentOf(line) > keyIndentOf(lines[above-1]):
		p.Column = indentOf(line) + 1
		p.Message = fmt.Sprintf("the line is indented below line %d, which already has a value", above)
		p.Hint = sameIndent
	}
}

// CurlyQuotes are typographic quotation marks, which are not quotes in YAML.
const CurlyQuotes = "“”„‘’‚«»"

var (
	// keyStart matches a line that begins with a key and a colon.
	keyStart = regexp.MustCompile(`^[ \t]*(- +)*["']?[A-Za-z_][A-Za-z0-9_.-]*["']?:([ \t\r\n]|$)`)
	// hasValue matches a key whose value begins on the same line. It does not match a block
	// scalar, an alias, an anchor or a tag.
	hasValue = regexp.MustCompile(`^[ \t]*(- +)*["']?[A-Za-z_][A-Za-z0-9_.-]*["']?:[ \t]+[^#|>&*!\s]`)
	// noSpace matches a key whose value follows the colon immediately. Group 2 is the value.
	noSpace = regexp.MustCompile(`^([ \t]*(?:- +)*[A-Za-z_][A-Za-z0-9_.-]*:)([^ \t\r\n].*)`)
)

// missingSpace reports whether a line lacks the space after the colon of its key. If so, it
// sets the problem to this mistake. A URL is not a key.
func (p *Problem) missingSpace(line []byte, number int) bool {
	m := noSpace.FindSubmatch(line)
	if m == nil || bytes.HasPrefix(m[2], []byte("//")) || bytes.HasPrefix(m[2], []byte(":")) {
		return false
	}
	p.Line, p.Column = number, utf8.RuneCount(m[1])+1
	p.Message, p.Hint = "missing space after the colon", "write key: value"
	return true
}

// missingSpaceIn reports whether the first key of a file lacks the space after its colon. If
// so, it also returns the problem. YAML reads the lines of such a file as one string.
func missingSpaceIn(file string, content []byte) (Problem, bool) {
	p := Problem{Rule: RuleSyntax, File: file}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		if p.missingSpace(line, number) {
			return p, true
		}
		if len(bytes.TrimSpace(line)) > 0 && line[0] != '#' && !hasMark(line, "---") {
			return p, false
		}
	}
	return p, false
}

// lineAbove returns the number of the nearest line above a line that is neither empty nor a
// comment, or 0 if there is none.
func lineAbove(lines [][]byte, number int) int {
	for n := number - 1; n > 0; n-- {
		if text := bytes.TrimSpace(lines[n-1]); len(text) > 0 && text[0] != '#' {
			return n
		}
	}
	return 0
}

// indentOf returns the number of spaces and tabs with which a line begins.
func indentOf(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " \t")) }

// keyIndentOf returns the number of characters before the key of a line, including the
// dashes of list entries.
func keyIndentOf(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " \t-")) }

// openQuoteIn returns the offset of a quotation mark that begins a value and is not closed on
// the same line, or -1 if there is no such quotation mark.
func openQuoteIn(line []byte) int {
	opened, quote := -1, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '"' && c == '\\', quote == '\'' && bytes.HasPrefix(line[i:], []byte("''")):
			i++ // an escape
		case quote != 0 && c == quote:
			opened, quote = -1, 0
		case quote != 0:
		case (c == '"' || c == '\'') && valueMayFollow(line[:i]):
			opened, quote = i, c
		case c == '#' && (i == 0 || line[i-1] == ' '):
			return -1
		}
	}
	return opened
}

// valueMayFollow reports whether a value may begin after a text of the same line.
func valueMayFollow(before []byte) bool {
	text := bytes.TrimRight(before, " \t")
	if len(text) == 0 {
		return true
	}
	switch text[len(text)-1] {
	case '[', '{', ',':
		return true
	case ':', '-':
		return len(text) < len(before)
	default:
		return false
	}
}

// failingLine returns the first line that makes the file invalid: the line after the
// longest beginning of the file that can be parsed. The parser often names another line: the
// line where the broken mapping started, or the line above the mistake. failingLine returns the
// line that the parser names only for long files, in which the search would take too long.
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
