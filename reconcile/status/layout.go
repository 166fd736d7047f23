package status

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/schema/report"
)

const (
	columns = 80 // width of the text, on every terminal
	margin  = 9  // column at which the text after a heading starts
)

// tableRow returns a row of the table of pools. The widths are the same for every
// Document, so that no row changes because another row does.
func tableRow(cells ...string) string {
	var b strings.Builder
	for i, width := range []int{24, 8, 7, 10, 23} {
		fmt.Fprintf(&b, "%-*s  ", width, truncate(report.Printable(cells[i]), width))
	}
	return truncate(strings.TrimRight(b.String(), " "), columns)
}

// paragraph returns a text in lines, the first of which starts with a heading.
func paragraph(part, heading, text string) []line {
	return wrap(part, fmt.Sprintf("%-*s", margin, heading), strings.Repeat(" ", margin), text)
}

// indented returns a text in lines that are indented by two columns.
func indented(part, text string) []line { return wrap(part, "  ", "  ", text) }

// wrap breaks a text into lines of at most columns characters. It breaks at the last space in
// the second half of a line, or at the end of the line if there is none. The first line starts
// with first, and the other lines with others. Both prefixes have the same length.
func wrap(part, first, others, text string) []line {
	var lines []line
	prefix := first
	room := columns - len(others)
	remaining := []rune(report.Printable(strings.Join(strings.Fields(text), " ")))
	for {
		if len(remaining) <= room {
			return append(lines, line{part, strings.TrimRight(prefix+string(remaining), " ")})
		}
		end := room
		for i := room; i > room/2; i-- {
			if remaining[i] == ' ' {
				end = i
				break
			}
		}
		lines = append(lines, line{part, strings.TrimRight(prefix+string(remaining[:end]), " ")})
		remaining = []rune(strings.TrimLeft(string(remaining[end:]), " "))
		prefix = others
	}
}

// truncate shortens a text to at most limit characters.
func truncate(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:max(0, limit-3)]) + "..."
	}
	return text
}
