package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Overview returns a table of all keys and of the settings that only variables
// say, one line each, no longer than width columns.
func Overview(width int) (string, error) {
	fields, err := Fields()
	if err != nil {
		return "", err
	}
	const defaults, gap = 12, "  "
	keys := 0
	for _, f := range fields {
		if !f.OnlyVariable {
			keys = max(keys, len(f.Key))
		}
	}
	var b strings.Builder
	row := func(key, usual, class, meaning string) {
		room := max(20, width-keys-defaults-len("restart")-3*len(gap))
		line := fmt.Sprintf("%-*s%s%s%s%-7s%s%s", keys, key, gap, padded(cut(usual, defaults), defaults), gap, class,
			gap, cut(meaning, room))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("KEY", "DEFAULT", "CHANGES", "MEANING")
	for _, f := range fields {
		if !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored {
			row(f.Key, f.Usually(), string(f.Reload), f.headline())
		}
	}
	b.WriteString("\nVARIABLES WITHOUT A KEY\n")
	for _, f := range fields {
		if f.OnlyVariable {
			b.WriteString(cut(f.Variable+gap+f.headline(), width) + "\n")
		}
	}
	b.WriteString("\nCHANGES TAKE EFFECT\n")
	for _, c := range classes() {
		for _, line := range beside(string(c), c.Meaning(), classColumn, width) {
			b.WriteString(line + "\n")
		}
	}
	return b.String(), nil
}

// Names returns what [Explain] knows: keys, old ones too, in the order of the
// schema, then variables, then the rules of [Vet].
func Names() ([]string, error) {
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	var keys, variables, rules []string
	for _, f := range fields {
		if !f.OnlyVariable {
			keys = append(keys, f.Key)
		}
		if f.Variable != "" {
			variables = append(variables, f.Variable)
		}
	}
	for _, info := range position.Rules() {
		rules = append(rules, string(info.Rule))
	}
	return slices.Concat(keys, variables, rules), nil
}

// Explain returns everything about the key, the variable or the rule of a name,
// in lines of at most width columns where words allow. The error says what the name may be
// meant to be.
func Explain(name string, width int) (string, error) {
	fields, err := Fields()
	if err != nil {
		return "", err
	}
	name = strings.TrimSuffix(name, ":")
	for _, f := range fields {
		if f.Key == name || f.Variable == name && name != "" {
			return explained(f, fields, width), nil
		}
	}
	for _, info := range position.Rules() {
		if string(info.Rule) == name {
			return strings.Join([]string{name, "", "  " + info.Description + ".", "", "  a rule of cmwa vet", ""},
				"\n"), nil
		}
	}
	names, err := Names()
	if err != nil {
		return "", err
	}
	var within []string
	for _, key := range names {
		if strings.HasSuffix(key, "."+name) {
			within = append(within, key)
		}
	}
	best := position.Closest(name, slices.DeleteFunc(slices.Clone(names), func(known string) bool {
		return strings.HasPrefix(known, prefix) != strings.HasPrefix(strings.ToUpper(name), prefix)
	}))
	switch {
	case len(within) > 0:
		return "", fmt.Errorf("there is no key %q: did you mean %s?", name, strings.Join(within, " or "))
	case best != "":
		return "", fmt.Errorf("there is no key %q: did you mean %s?", name, best)
	default:
		return "", fmt.Errorf("there is no key %q: cmwa explain lists all of them", name)
	}
}

// where returns the places that may set the field.
func (f Field) where() string {
	switch {
	case f.OnlyVariable:
		return "only in the variable"
	case strings.HasPrefix(f.Key, "pools."):
		return "in an entry of pools"
	case f.Pool:
		return "at the top level for all pools, or in an entry of pools"
	default:
		return "at the top level"
	}
}

// explained returns the explanation of one field.
func explained(f Field, fields []Field, width int) string {
	var b strings.Builder
	b.WriteString(f.listed() + "\n\n")
	for _, line := range wrap(f.Doc, width-2) {
		b.WriteString("  " + line + "\n")
	}
	b.WriteString("\n")
	fact := func(name, text string) {
		for _, line := range beside(name, text, 12, width-2) {
			b.WriteString("  " + line + "\n")
		}
	}
	switch {
	case f.Old != "":
		fact("old name of", f.Old)
		return b.String()
	case f.Unused != "":
		fact("no effect", f.Unused)
		return b.String()
	case f.Ignored:
		fact("no effect", "it may stay")
		return b.String()
	}
	fact("takes", f.Takes())
	fact("default", f.Usually())
	if f.Required {
		fact("default", "none: it must be set")
	}
	if how := f.InVariable(); how != "" {
		fact("variable", f.Variable+", with "+how)
	} else {
		fact("variable", f.Variable)
	}
	if f.Secret {
		fact("secret", "the value is never shown")
	}
	if f.Reload != "" {
		fact("changes", string(f.Reload)+": "+f.Reload.Meaning())
	}
	fact("where", f.where())
	for _, other := range fields {
		if other.Old == f.Key {
			fact("old name", other.Key)
		}
	}
	b.WriteString(inner(f, fields, width))
	if example := f.Example(); example != "" {
		b.WriteString("\n")
		for line := range strings.Lines(example) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

// inner lists the keys within a mapping.
func inner(f Field, fields []Field, width int) string {
	var b strings.Builder
	longest := 0
	for _, in := range fields {
		if strings.HasPrefix(in.Key, f.Key+".") {
			longest = max(longest, len(in.Key))
		}
	}
	for _, in := range fields {
		if strings.HasPrefix(in.Key, f.Key+".") {
			b.WriteString("  " + cut(fmt.Sprintf("%-*s  %s", longest, in.Key, in.headline()), width-2) + "\n")
		}
	}
	if f.Kind == KindMappings {
		var own []string
		for _, in := range fields {
			if in.Pool && in.plainTop() {
				own = append(own, in.Key)
			}
		}
		b.WriteString("\n")
		for _, line := range wrap("An entry may also set, for itself: "+strings.Join(own, ", ")+".", width-2) {
			b.WriteString("  " + line + "\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

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
