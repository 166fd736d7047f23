package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Overview returns a table of all current keys and of the variables without a key, with
// one row each. Lines longer than width columns are cut; a width of 0 cuts no line.
func Overview(width int) string {
	const gap = "  "
	keys, defaults := 0, 12
	for _, f := range fieldTable {
		if !f.OnlyVariable {
			keys = max(keys, len(f.Key))
		}
		if !f.OnlyVariable && f.current() && width == 0 {
			defaults = max(defaults, utf8.RuneCountInString(f.DefaultText()))
		}
	}
	var b strings.Builder
	row := func(key, value, class, meaning string) {
		remaining := 0
		if width > 0 {
			value = printable.Fit(value, defaults)
			remaining = max(20, width-keys-defaults-len("next job")-3*len(gap))
		}
		line := fmt.Sprintf("%-*s%s%s%s%-8s%s%s", keys, key, gap, padded(value, defaults), gap, class,
			gap, printable.Fit(meaning, remaining))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("KEY", "DEFAULT", "CHANGES", "MEANING")
	for _, f := range fieldTable {
		if !f.OnlyVariable && f.current() {
			row(f.Key, f.DefaultText(), f.Reload.String(), f.headline())
		}
	}

	b.WriteString("\nVARIABLES WITHOUT A KEY\n")
	for _, f := range fieldTable {
		if f.OnlyVariable {
			b.WriteString(printable.Fit(f.Variable+gap+f.headline(), width) + "\n")
		}
	}
	b.WriteString("\nA CHANGE TAKES EFFECT\n")
	for _, c := range classes {
		writeLines(&b, columnText(c.String(), c.Meaning(), classColumn, width))
	}
	return b.String()
}

// Names returns the names that [Explain] accepts: keys including old ones, in the order
// of the schema, then variables, then the rules of [Vet]. Explain also accepts a key of an
// entry of pools as a name such as pools.token, which is not in the list.
func Names() []string {
	var keys, variables, rules []string
	for _, f := range fieldTable {
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
	return slices.Concat(keys, variables, rules)
}

// Explain returns the documentation of a key, a variable or a rule, wrapped to width
// columns, or not wrapped with a width of 0. The error for an unknown name suggests a
// known one.
func Explain(name string, width int) (string, error) {
	name = strings.TrimSuffix(name, ":")
	rule := ""
	for _, info := range position.Rules() {
		if string(info.Rule) == name {
			rule = ruleExplanation(info, width)
		}
	}

	// A key or a variable, which may have the name of a rule.
	for _, f := range fieldTable {
		if f.Key == name || f.Variable == name && name != "" {
			text := explanation(f, width)
			if rule != "" {
				text += "\nThe rule of this name:\n\n" + rule
			}
			return text, nil
		}
	}
	if rule != "" {
		return rule, nil
	}

	// A key in an entry of pools.
	if inner, ok := strings.CutPrefix(name, poolsPrefix); ok {
		for _, f := range fieldTable {
			if f.Pool && f.Key == inner && f.current() {
				f.Key = name
				return explanation(f, width), nil
			}
		}
	}
	return "", unknownName(name)
}

func unknownName(name string) error {
	names := Names()
	last := name[strings.LastIndexByte(name, '.')+1:]
	var within []string // keys with the same last part, such as pull_image for docker.pull_image
	for _, key := range names {
		if strings.HasSuffix(key, "."+name) || key == last {
			within = append(within, key)
		}
	}
	best := position.Closest(name, slices.DeleteFunc(slices.Clone(names), func(known string) bool {
		return strings.HasPrefix(known, prefix) != strings.HasPrefix(strings.ToUpper(name), prefix)
	}))
	switch {
	case len(within) > 0:
		return fmt.Errorf("unknown key %q: did you mean %s?", name, strings.Join(within, " or "))
	case best != "":
		return fmt.Errorf("unknown key %q: did you mean %s?", name, best)
	default:
		return fmt.Errorf("unknown key %q: cmwa explain lists all keys", name)
	}
}

func (f Field) location() string {
	switch {
	case f.OnlyVariable:
		return "only in the variable"
	case strings.HasPrefix(f.Key, poolsPrefix):
		return "in an entry of pools"
	case f.Pool:
		return "at the top level for all pools, or in an entry of pools"
	default:
		return "at the top level"
	}
}

// factColumn is the column at which the facts start, after their names.
const factColumn = 14

func explanation(f Field, width int) string {
	name := f.Key
	if f.OnlyVariable {
		name = f.Variable
	}
	var b strings.Builder
	b.WriteString(name + "\n\n")
	writeLines(&b, printable.Wrap(f.Doc, "  ", "  ", width))
	b.WriteString("\n")
	fact := func(name, text string) {
		writeLines(&b, columnText("  "+name, text, factColumn, width))
	}

	// A key without effect has no other facts.
	switch {
	case f.Old != "":
		fact("old name of", f.Old)
		return b.String()
	case f.Unused != "":
		fact("no effect", f.Unused)
		return b.String()
	case f.Ignored:
		fact("no effect", "you need not remove it")
		return b.String()
	}

	base, inPool := strings.CutPrefix(f.Key, poolsPrefix)
	fact("value", f.ValueText())
	switch {
	case f.Required:
		fact("default", "none: the key is required")
	case inPool && f.DefaultText() != "":
		fact("default", "the value of the top level, whose default is "+f.DefaultText())
	default:
		fact("default", f.DefaultText())
	}
	if f.Variable != "" && !inPool {
		fact("variable", f.variableWithText())
	}
	if f.Secret {
		fact("secret", "the value is never shown")
	}
	if f.Reload != "" {
		fact("changes", f.Reload.String()+": "+f.Reload.Meaning())
	}
	fact("where", f.location())
	for _, other := range fieldTable {
		if other.Old == base && !inPool {
			fact("old name", other.Key)
		}
	}

	b.WriteString(innerKeys(f, base, width))
	if example := f.Example(); example != "" {
		b.WriteString("\n")
		for line := range strings.Lines(example) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

// innerKeys returns a list of the keys in a mapping whose key is base.
func innerKeys(f Field, base string, width int) string {
	var b strings.Builder
	longest := 0
	for _, inner := range fieldTable {
		if strings.HasPrefix(inner.Key, base+".") {
			longest = max(longest, len(inner.Key))
		}
	}
	for _, inner := range fieldTable {
		if strings.HasPrefix(inner.Key, base+".") {
			line := fmt.Sprintf("%-*s  %s", longest, inner.Key, inner.headline())
			b.WriteString(printable.Fit("  "+line, width) + "\n")
		}
	}

	// The keys of the top level that an entry of pools may set.
	if f.Kind == KindMappings {
		var shared []string
		for _, inner := range fieldTable {
			if inner.Pool && inner.plainTop() {
				shared = append(shared, inner.Key)
			}
		}
		b.WriteString("\n")
		list := "An entry may also set: " + strings.Join(shared, ", ") + "."
		writeLines(&b, printable.Wrap(list, "  ", "  ", width))
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

func writeLines(b *strings.Builder, lines []string) {
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
}

// columnText returns lines of at most width columns with a text in the second column and
// a name in the first column of the first line. With a width of 0 it returns one line.
func columnText(name, text string, column, width int) []string {
	return printable.Wrap(text, padded(name, column), padded("", column), width)
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
