package schema

import (
	"bytes"
	"strings"
)

//go:generate go test -run ^TestTheReferenceIsThatOfTheSchema$ -update .

// referenceWidth is the longest line of the reference, in columns.
const referenceWidth = 100

// Reference returns a configuration file in which every key stands with its
// documentation, commented out, at its default or, where that is nothing, with an
// example. It is the manual.
func Reference() ([]byte, error) {
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	r := &reference{fields: fields}
	r.prose("", "Every key of "+FileName+", and the manual of it. A key that is commented out stands here at its default, or with an example where "+
		"the default is to be unset. To set one, remove the # before it, and no more: what follows # and a blank is prose. "+
		"cmwa explain KEY tells the same, and cmwa vet checks a file.")
	r.line("")
	r.prose("", "In brackets stands what a key takes, its default, its variable, and when a change takes effect in a running agent:")
	for _, c := range classes() {
		for _, line := range beside(string(c), c.Meaning(), classColumn, referenceWidth-len("#   ")) {
			r.line("#   " + line)
		}
	}
	r.prose("", "A variable that is set and not empty wins over the file, and stays as it was when the agent started. Blanks around it do not count. "+
		"Units of a duration are h, m, s and ms, as in 1h30m.")
	r.line("")
	r.prose("", "This file is generated from schema/schema.cue by go generate ./schema.")
	r.heading("What a pool may set for itself. Here it holds for all pools that do not.")
	for _, f := range fields {
		if f.Pool && f.plainTop() {
			r.key(f)
		}
	}
	r.heading("Pools.")
	for _, f := range fields {
		if f.Kind == KindMappings {
			r.key(f)
		}
	}
	r.heading("What holds for the whole agent.")
	for _, f := range fields {
		if !f.Pool && f.plainTop() && f.Kind != KindMappings {
			r.key(f)
		}
	}
	r.heading("What only variables say.")
	for _, f := range fields {
		if f.OnlyVariable {
			r.line("")
			r.prose("", f.Variable+": "+lowerFirst(f.Doc)+" ["+f.Takes()+"]")
		}
	}
	r.heading("Old names and keys without effect. cmwa vet warns of those that should be changed.")
	for _, f := range fields {
		switch {
		case f.Old != "":
			r.line("")
			r.prose("", f.Key+": an old name of "+f.Old+". "+f.Doc)
		case f.Unused != "":
			r.line("")
			r.prose("", f.Key+": without effect, because "+f.Unused+". "+f.Doc)
		case f.Ignored:
			r.line("")
			r.prose("", f.Key+": without effect. "+f.Doc)
		}
	}
	return r.Bytes(), nil
}

// reference is the file as far as it is written.
type reference struct {
	bytes.Buffer
	fields []Field
}

func (r *reference) line(text string) { r.WriteString(strings.TrimRight(text, " ") + "\n") }

// prose writes a paragraph as comment lines that begin with a prefix.
func (r *reference) prose(prefix, text string) {
	for _, line := range wrap(text, referenceWidth-len(prefix)-2) {
		r.line(prefix + "# " + line)
	}
}

func (r *reference) heading(text string) {
	r.line("")
	r.line("# " + strings.Repeat("-", 40))
	r.prose("", text)
}

func (r *reference) key(f Field) {
	r.line("")
	r.prose("", f.Doc)
	if f.Kind == KindMapping {
		r.line("#" + f.Key + ":")
		for _, inner := range r.fields {
			if strings.HasPrefix(inner.Key, f.Key+".") {
				r.prose("#  ", inner.Doc)
				r.prose("#  ", inner.facts())
				r.setting("#  ", strings.TrimPrefix(inner.Key, f.Key+"."), inner)
			}
		}
		return
	}
	r.prose("", f.facts())
	for _, inner := range r.fields {
		if key, ok := strings.CutPrefix(inner.Key, f.Key+"."); ok {
			r.prose("", key+": "+lowerFirst(inner.Doc)+" "+inner.facts())
		}
	}
	if f.Key == "token_file" {
		r.prose("", "It is set here because a configuration without any credentials is none.")
		r.setting("", f.Key, f)
		return
	}
	r.setting("#", f.Key, f)
}

// setting writes the key itself after a prefix that may comment it out.
func (r *reference) setting(prefix, key string, f Field) {
	value := defaultOf(f)
	if usual := f.Usually(); usual == "" || usual == "unset" || usual == "none" {
		value = examples()[f.Key]
	}
	r.WriteString(entry(prefix, key, value))
}
