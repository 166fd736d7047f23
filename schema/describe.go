package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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
	t, problems, ok := position.Parse("", []byte("v: "+f.Default), "")
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

// sentence says what a value of the field must be.
func (f *Field) sentence() string {
	switch {
	case f.must != "":
		return f.must
	case f.Kind == KindDuration && f.Seconds:
		return "a duration such as 30s, 5m or 1h, or a whole number of seconds"
	case f.Kind == KindDuration:
		return "a duration such as 30s, 5m or 1h"
	case f.Kind == KindBool:
		return "true or false"
	case f.Kind == KindInt:
		return "a whole number" + position.Bounds(f.Min, f.Max)
	case f.Kind == KindList:
		return "a list"
	case f.Kind == KindMapping, f.Kind == KindTree:
		return "a mapping of keys to values"
	case len(f.Choices) > 0:
		return "one of " + strings.Join(f.Choices, ", ")
	default:
		return "text"
	}
}

// words writes a list of words: a, b and c.
func words(list []string, and string) string {
	last := len(list) - 1
	if last <= 0 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:last], ", ") + " " + and + " " + list[last]
}

// entrySentence says what one entry of the list must be.
func (f *Field) entrySentence() string {
	switch {
	case f.each != "":
		return f.each
	case len(f.Choices) > 0:
		return "one of " + strings.Join(f.Choices, ", ")
	default:
		return "text"
	}
}

// outOfBounds says what is wrong with a duration or a quantity, if anything is.
func (f *Field) outOfBounds(data any) string {
	if f.Kind == KindQuantity {
		const most = 1024
		if n, ok := cores(data); !ok || n < 0 || n == 0 && data != "" || n > most {
			return "must be " + f.sentence()
		}
		return ""
	}
	length, ok := duration(data)
	switch {
	case !ok:
		return "must be " + f.sentence()
	case data == "":
		return ""
	case length < f.Shortest:
		return "must be at least " + short(f.Shortest)
	case length > f.Longest:
		return "must be at most " + short(f.Longest)
	default:
		return ""
	}
}

// short writes a duration as a person would: 1h, not 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// hint guesses from a wrong value what its writer tried. It may only quote words
// of the schema and numbers.
func (f *Field) hint(v position.Value, entry bool) string {
	if v.At.Variable != "" && f.Kind == KindList {
		hints := map[string]string{",": "put commas between the entries", " ": "put blanks between the entries"}
		return hints[f.Separator]
	}
	switch data := v.Data.(type) {
	case nil:
		return "give it a value, or remove it"
	case string:
		if f.Kind == KindList && !entry {
			return "write a list, such as [" + f.example() + "]"
		}
		return f.hintForText(data)
	case bool, float64:
		if f.quotesHelp(data) {
			return "put the value in quotes"
		}
	case int:
		switch {
		case f.Kind == KindDuration && !f.Seconds && data > 0:
			return fmt.Sprintf("write the unit: %ds", data)
		case f.quotesHelp(data):
			return "put the value in quotes"
		}
	case []position.Value:
		if f.Kind == KindText {
			return "write one value, without brackets or dashes"
		}
	case position.Mapping:
		if f.Kind == KindMappings {
			return "begin each pool with a dash and its name, such as - name: prod"
		}
	}
	return ""
}

// example is one entry of the list.
func (f *Field) example() string {
	if len(f.Choices) > 0 {
		return f.Choices[0]
	}
	return "entry"
}

// quotesHelp reports whether a number or a boolean would be right as a text.
func (f *Field) quotesHelp(data any) bool {
	if f.Kind != KindText && f.Kind != KindList || len(f.Choices) > 0 {
		return false
	}
	right, err := regexp.MatchString(f.Pattern, fmt.Sprint(data))
	return err == nil && right
}

func (f *Field) hintForText(text string) string {
	switch f.Kind {
	case KindBool:
		if slices.Contains([]string{"yes", "on", "no", "off", "y", "n", "true", "false"}, strings.ToLower(text)) {
			return "write true or false, in small letters and without quotes"
		}
	case KindInt:
		if _, err := strconv.Atoi(text); err == nil {
			return "remove the quotes"
		}
	case KindDuration:
		if _, err := strconv.Atoi(text); err == nil {
			return "write the unit after the number, such as s for seconds"
		}
	case KindText, KindList:
		if best := position.Closest(text, slices.Clone(f.Choices)); best != "" {
			return fmt.Sprintf("did you mean %s?", best)
		}
	}
	return ""
}
