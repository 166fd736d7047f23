package schema

import (
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Meaning says in words when a changed value takes effect.
func (c Class) Meaning() string {
	switch c {
	case ReloadLive:
		return "at once, without touching jobs"
	case ReloadJob:
		return "for jobs claimed from then on"
	case ReloadDrain:
		return "by a new pool beside the old one, which finishes its jobs and claims no more"
	case ReloadRebind:
		return "at once: the new listener is opened, and then the old one closed"
	case ReloadRestart:
		return "when the agent is started again"
	default:
		return ""
	}
}

// Takes says what a value of the key is, with its bounds.
func (f Field) Takes() string {
	text := f.sentence()
	switch f.Kind {
	case KindDuration:
		text += ", from " + short(f.Shortest) + " to " + short(f.Longest)
	case KindList:
		if each := f.entrySentence(); each != "text" {
			text += ", each " + each
		} else {
			text += " of texts"
		}
	case KindMapping:
		text = "a mapping of keys"
	case KindTree:
		text = "a part of a Pod"
	case KindAny:
		text = "anything"
	}
	if f.Empty {
		text += "; or nothing"
	}
	return text
}

// Usually is the default in words of the file; "unset" for the empty text.
func (f Field) Usually() string {
	switch f.Default {
	case "":
		return ""
	case `""`:
		return "unset"
	case "[]":
		return "none"
	}
	return defaultOf(f)
}

// defaultOf writes the default as it would stand in a file.
func defaultOf(f Field) string {
	t, problems, ok := position.Parse("", []byte("v: "+f.Default))
	if !ok || len(problems) > 0 {
		return f.Default
	}
	return flow(t["v"].Data)
}

// InVariable says how a list or a quantity is written in the key's variable, if
// not as in a file.
func (f Field) InVariable() string {
	switch {
	case f.Separator == ",":
		return "commas between the entries"
	case f.Separator == " ":
		return "blanks between the entries"
	case f.Unit != "":
		return "a number alone meaning " + f.Unit
	default:
		return ""
	}
}

// plainTop reports whether a key stands at the top level today.
func (f Field) plainTop() bool {
	return !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored && !strings.Contains(f.Key, ".")
}

// facts is everything but the meaning, in brackets.
func (f Field) facts() string {
	facts := []string{f.Takes()}
	if f.Required {
		facts = append(facts, "required")
	}
	if usual := f.Usually(); usual != "" {
		facts = append(facts, "default "+usual)
	}
	if f.Secret {
		facts = append(facts, "secret")
	}
	if f.Variable != "" {
		facts = append(facts, strings.TrimSuffix(f.Variable+" with "+f.InVariable(), " with "))
	}
	if f.Reload != "" {
		facts = append(facts, string(f.Reload))
	}
	return "[" + strings.Join(facts, "; ") + "]"
}

// classColumn is how many columns a list gives to the names of classes.
const classColumn = 9

func classes() []Class {
	return []Class{ReloadLive, ReloadJob, ReloadDrain, ReloadRebind, ReloadRestart}
}

// headline is the beginning of the documentation, as far as it can stand alone.
func (f Field) headline() string {
	text := f.Doc
	for _, end := range []string{". ", "; ", ": ", ", each as "} {
		text, _, _ = strings.Cut(text, end)
	}
	return strings.TrimSuffix(text, ".")
}

// listed is what a field goes by in a list: its key, or the variable where there
// is no key.
func (f Field) listed() string {
	if f.OnlyVariable {
		return f.Variable
	}
	return f.Key
}

func lowerFirst(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToLower(text[:1]) + text[1:]
}
