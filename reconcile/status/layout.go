package status

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/schema/printable"
)

const (
	columns = 80 // width of the text, on every terminal
	margin  = 9  // column at which the text after a heading starts
)

// tableRow returns a row of the table of pools. The widths are the same for every
// Document, so that no row changes because another row does. The last cell, the URL of a service, is
// not shortened.
func tableRow(cells ...string) string {
	var b strings.Builder
	for i, width := range []int{24, 8, 7, 10, 0} {
		fmt.Fprintf(&b, "%-*s  ", width, printable.Fit(printable.Text(cells[i]), width))
	}
	return strings.TrimRight(b.String(), " ")
}

// paragraph returns a text in lines, the first of which starts with a heading.
func paragraph(part, heading, text string) []line {
	return wrap(part, fmt.Sprintf("%-*s", margin, heading), strings.Repeat(" ", margin), text)
}

// indented returns a text in lines that are indented by two columns.
func indented(part, text string) []line { return wrap(part, "  ", "  ", text) }

// breakLines breaks the lines that are longer than columns, so that each is one line of a terminal.
func breakLines(all []line) (broken []line) {
	for _, l := range all {
		text := []rune(l.text)
		for ; len(text) > columns; text = text[columns:] {
			broken = append(broken, line{l.part, string(text[:columns])})
		}
		broken = append(broken, line{l.part, string(text)})
	}
	return broken
}

// wrap breaks a text at spaces into lines of at most columns characters. The first line starts
// with first, and the other lines with others.
func wrap(part, first, others, text string) (lines []line) {
	for _, text := range printable.Wrap(text, first, others, columns) {
		lines = append(lines, line{part, text})
	}
	return lines
}
