package schema

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
)

// String returns the name of the class as messages and documentation show it.
func (c Class) String() string {
	if c == ReloadJob {
		return "next job"
	}
	return string(c)
}

// Meaning returns when a changed value takes effect. The text completes the sentence
// "a change takes effect".
func (c Class) Meaning() string {
	switch c {
	case ReloadLive:
		return "at once, without affecting running jobs"
	case ReloadJob:
		return "for jobs that are claimed after the change"
	case ReloadDrain:
		return "in a new pool, while the old pool finishes its jobs and claims no more"
	case ReloadRebind:
		return "at once: the new listener is opened, then the old one is closed"
	case ReloadRestart:
		return "when the agent is restarted"
	default:
		return ""
	}
}

// classColumn is the width of the column with the names of classes.
const classColumn = 10

var classes = []Class{ReloadLive, ReloadJob, ReloadDrain, ReloadRebind, ReloadRestart}

// ValueText describes the values that the key accepts, with their bounds.
func (f Field) ValueText() string {
	text := f.sentence()
	switch f.Kind {
	case KindDuration:
		text += ", from " + formatDuration(f.Shortest) + " to " + formatDuration(f.Longest)
	case KindList:
		if each := f.entrySentence(); each != "text" {
			text += "; each entry is " + each
		} else {
			text += " of texts"
		}
	case KindMapping:
		text = "a mapping of keys"
	case KindTree:
		text = cmp.Or(f.must, "a part of a Pod")
	case KindAny:
		text = "any value"
	}
	if f.Empty {
		text += "; or empty"
	}
	return text
}

// DefaultText returns the default in the notation of a file, "unset" for the empty text,
// "none" for an empty list, and "" for a key without a default.
func (f Field) DefaultText() string {
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

// defaultOf returns the default in the notation of a file.
func defaultOf(f Field) string {
	t, problems, ok := position.Parse("", []byte("v: "+f.Default), "")
	if !ok || len(problems) > 0 {
		return f.Default
	}
	return flowForm(t["v"].Plain())
}

// VariableText describes the notation of a value in the key's variable if it differs
// from the notation in a file.
func (f Field) VariableText() string {
	switch {
	case f.Separator == ",":
		return "entries separated by commas"
	case f.Separator == " ":
		return "entries separated by spaces"
	case f.Unit != "":
		return "a number without a unit is in " + f.Unit
	default:
		return ""
	}
}

func (f Field) variableWithText() string {
	if text := f.VariableText(); text != "" {
		return f.Variable + " (" + text + ")"
	}
	return f.Variable
}

// current reports whether the field has an effect and is not an old name of another field.
func (f Field) current() bool { return f.Old == "" && f.Unused == "" && !f.Ignored }

// plainTop reports whether the field is a current key of the top level.
func (f Field) plainTop() bool {
	return !f.OnlyVariable && f.current() && !strings.Contains(f.Key, ".")
}

// facts returns everything about the field except its documentation, in brackets.
func (f Field) facts() string {
	facts := []string{f.ValueText()}
	if f.Required {
		facts = append(facts, "required")
	}
	if text := f.DefaultText(); text != "" {
		facts = append(facts, "default "+text)
	}
	if f.Secret {
		facts = append(facts, "secret")
	}
	if f.Variable != "" {
		facts = append(facts, f.variableWithText())
	}
	if f.Reload != "" {
		facts = append(facts, f.Reload.String())
	}
	return "[" + strings.Join(facts, "; ") + "]"
}

// headline returns the first sentence of the documentation, without its full stop.
func (f Field) headline() string {
	text, _, _ := strings.Cut(f.Doc, ". ")
	return strings.TrimSuffix(text, ".")
}

func lowerFirst(text string) string {
	return strings.ToLower(text[:1]) + text[1:]
}

// sentence returns the text that completes "a value of the field must be".
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

// entrySentence returns the text that completes "an entry of the field's list must be".
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

// outOfBounds returns the message about a duration or a quantity that is invalid or out
// of bounds, and "" for a valid one.
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
		return "must be at least " + formatDuration(f.Shortest)
	case length > f.Longest:
		return "must be at most " + formatDuration(f.Longest)
	default:
		return ""
	}
}

// formatDuration returns a duration without zero units: 1h, not 1h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// hint returns how to fix an invalid value, guessed from the value. It quotes nothing of
// the value except a whole number.
func (f *Field) hint(v position.Value, entry bool) string {
	if v.At.Variable != "" && f.Kind == KindList {
		hints := map[string]string{",": "separate the entries by commas", " ": "separate the entries by spaces"}
		return hints[f.Separator]
	}

	switch data := v.Data.(type) {
	case nil:
		return "give it a value, or remove it"
	case string:
		if strings.ContainsAny(data, position.CurlyQuotes) {
			return `the value has curly quotation marks: write straight ones, or none`
		}
		if f.Kind == KindList && !entry {
			example := "entry"
			if len(f.Choices) > 0 {
				example = f.Choices[0]
			}
			return "write a list, such as [" + example + "]"
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

// quotesHelp reports whether a number or a boolean would be valid as a text.
func (f *Field) quotesHelp(data any) bool {
	if f.Kind != KindText && f.Kind != KindList || len(f.Choices) > 0 {
		return false
	}
	valid, err := regexp.MatchString(f.Pattern, fmt.Sprint(data))
	return err == nil && valid
}

// days is a duration in days.
var days = regexp.MustCompile(`^([0-9]{1,4}) ?(?:d|days?)$`)

func (f *Field) hintForText(text string) string {
	switch f.Kind {
	case KindBool:
		if slices.Contains([]string{"yes", "on", "no", "off", "y", "n", "true", "false"}, strings.ToLower(text)) {
			return "write true or false, in lowercase and without quotes"
		}
	case KindInt:
		if _, err := strconv.Atoi(text); err == nil {
			return "remove the quotes"
		}
	case KindDuration:
		if _, err := strconv.Atoi(text); err == nil {
			return "write the unit after the number, such as s for seconds"
		}
		if m := days.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[1])
			return fmt.Sprintf("write days in hours: %dh", 24*n)
		}
	case KindText, KindList:
		if hint := removed[f.Key+"="+text]; hint != "" {
			return hint
		}
		if text == "k8s" && slices.Contains(f.Choices, "kubernetes") {
			return "did you mean kubernetes?"
		}
		if best := position.Closest(text, slices.Clone(f.Choices)); best != "" {
			return fmt.Sprintf("did you mean %s?", best)
		}
	}
	return ""
}
