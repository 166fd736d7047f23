package status

import (
	"io"
	"slices"
	"strings"
)

// Changes writes one Document after another, and of each only the parts of the text
// that differ from the one before. The zero value has written nothing.
type Changes struct{ parts []line }

// Write writes the parts that are new or have changed, and names those that are gone.
// Times are absolute, since relative ones differ in every Document.
func (c *Changes) Write(w io.Writer, d Document) error {
	before, parts := c.parts, join(lines(d, absoluteTimes()))
	var b strings.Builder
	for _, p := range parts {
		if !slices.Contains(before, p) {
			b.WriteString(p.text)
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(parts, func(other line) bool { return other.part == p.part }) {
			b.WriteString("gone: " + p.part + "\n")
		}
	}
	c.parts = parts
	_, err := io.WriteString(w, b.String())
	return err
}

// join joins adjacent lines of one part into one text.
func join(lines []line) (joined []line) {
	for _, l := range lines {
		if last := len(joined) - 1; last >= 0 && joined[last].part == l.part {
			joined[last].text += l.text + "\n"
		} else {
			joined = append(joined, line{l.part, l.text + "\n"})
		}
	}
	return joined
}
