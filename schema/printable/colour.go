package printable

import "regexp"

// Colour is a colour or a style of a terminal: the number in its escape sequence.
type Colour string

// The colours.
const (
	Bold   Colour = "1"
	Faint  Colour = "2"
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
	Cyan   Colour = "36"
)

// Paint returns a text in the colour. An empty text stays empty.
func (c Colour) Paint(text string) string {
	if text == "" {
		return ""
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// Paints are the colours of the parts of a text that match.
type Paints []struct {
	Part   *regexp.Regexp
	Colour Colour
}

// Paint returns a text with each part in its colour. A part must not match inside another one.
func (p Paints) Paint(text string) string {
	for _, one := range p {
		text = one.Part.ReplaceAllStringFunc(text, one.Colour.Paint)
	}
	return text
}
