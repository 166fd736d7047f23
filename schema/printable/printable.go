package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ellipsis is the end of a shortened text.
const ellipsis = " …"

// Text returns a text with a question mark in place of each character that could end
// a line or control a terminal, and of each invalid byte.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
}

// OneLine returns a text as one printable line. A single space replaces each line break, tab
// or series of spaces.
func OneLine(text string) string { return Text(strings.Join(strings.Fields(text), " ")) }

// Shorten returns valid UTF-8 of at most limit bytes. A text that is longer ends between two
// characters, with an ellipsis. The limit must have room for the ellipsis.
func Shorten(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}
	return strings.TrimRight(strings.ToValidUTF8(text[:limit-len(ellipsis)], ""), " ") + ellipsis
}

// Fit shortens a text to a width in columns, at a space if possible. A width of 0 does not
// shorten it.
func Fit(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	shortened := string([]rune(text)[:width-1])
	if end := strings.LastIndexByte(shortened, ' '); end > width/2 {
		shortened = shortened[:end]
	}
	return strings.TrimRight(shortened, " ,;:") + "…"
}

// Wrap breaks a text at spaces into printable lines of at most width columns. The first line
// starts with first, the others start with next. A part that is longer than a line, such as a URL, is
// not broken, so that it can be copied. With a width of 0 there is one line. An empty text has no line.
func Wrap(text, first, next string, width int) []string {
	var lines []string
	var line []rune
	prefix := first
	end := func() {
		lines = append(lines, strings.TrimRight(prefix+string(line), " "))
		prefix, line = next, nil
	}
	for field := range strings.FieldsSeq(text) {
		part := []rune(Text(field))
		if len(line) > 0 && width > 0 && utf8.RuneCountInString(prefix)+len(line)+1+len(part) > width {
			end()
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		line = append(line, part...)
	}
	if len(line) > 0 {
		end()
	}
	return lines
}

// Plural returns a number with its noun: 1 file, 2 files.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Join returns a list as text: a, b and c.
func Join(list []string, conjunction string) string {
	last := len(list) - 1
	if last <= 0 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:last], ", ") + " " + conjunction + " " + list[last]
}

// QuoteName returns the name of a file for a line of text. The name is in quotes if it
// would end the line, control the terminal or hide where the name ends.
func QuoteName(name string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ':' || r == '"' || r == utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, odd) || strings.TrimSpace(name) != name {
		return strconv.Quote(name)
	}
	return name
}

// QuoteShell returns a text without zero bytes as one word of sh and other POSIX shells, in
// quotes.
func QuoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// ShellArgument is [QuoteShell] without quotes for a text that needs none.
func ShellArgument(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return QuoteShell(text)
}
