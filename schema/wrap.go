package schema

import (
	"strings"
	"unicode/utf8"
)

// cut shortens a text to a width in columns, at a blank if it can.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	short := string([]rune(text)[:width-1])
	if end := strings.LastIndexByte(short, ' '); end > width/2 {
		short = short[:end]
	}
	return strings.TrimRight(short, " ,;:") + "…"
}

// beside puts a text to the right of a name, in lines of at most width columns of
// which the first has the name in it.
func beside(name, text string, column, width int) []string {
	lines := wrap(text, width-column)
	for i, line := range lines {
		lines[i] = padded(name, column) + line
		name = ""
	}
	return lines
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// wrap breaks a text into lines of at most width columns, at blanks. A longer
// word has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line, columns := "", 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if line != "" && columns+1+n > width {
			lines = append(lines, line)
			line, columns = "", 0
		}
		if line != "" {
			line += " "
			columns++
		}
		line += word
		columns += n
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
