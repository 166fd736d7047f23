package secret

import (
	"fmt"
	"slices"
	"strings"
)

// Masked is a text with a secret at its end. It prints as the part before the secret and
// [Mark]. Two of them are equal under == if and only if their texts are equal.
type Masked struct {
	shown  string
	hidden String
}

// String returns the text with a mark in place of the secret.
func (m Masked) String() string { return m.shown + m.hidden.String() }

// MarshalText implements [encoding.TextMarshaler], and with it JSON and YAML.
func (m Masked) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// shownAnnotations are the prefixes of annotations that are shown: those that the agent sets, and
// those whose values the API server checks. With a mark in place of such a value, the server
// would refuse the Pod that cmwa pod prints.
var shownAnnotations = []string{
	"cmwa.",
	"cluster-autoscaler.kubernetes.io/safe-to-evict",
	"karpenter.sh/do-not-disrupt",
	"controller.kubernetes.io/pod-deletion-cost",
	"container.apparmor.security.beta.kubernetes.io/",
	"container.seccomp.security.alpha.kubernetes.io/",
	"seccomp.security.alpha.kubernetes.io/pod",
	"scheduler.alpha.kubernetes.io/tolerations",
}

// Mask returns a copy of a decoded JSON or YAML value, such as a Pod template, with a [Masked]
// in place of each value that may be secret:
//
//  1. the value of an entry with a name: an environment variable, a header of a probe
//  2. commands and their arguments, except those of containers with a public name
//  3. annotations, and attributes and options of volumes
//  4. the query of a path: /live?key=x becomes /live?[secret]
//  5. a text that contains a token
func Mask(value any, public ...string) any {
	switch value := value.(type) {
	case map[string]any:
		return maskFields(value, public)
	case []any:
		masked := make([]any, len(value))
		for i, entry := range value {
			masked[i] = Mask(entry, public...)
		}
		return masked
	case string:
		if ContainsToken(value) { // 5.
			return hide(value)
		}
	}
	return value
}

func maskFields(fields map[string]any, public []string) map[string]any {
	masked := make(map[string]any, len(fields))
	name, named := fields["name"]
	isPublic := slices.ContainsFunc(public, func(p string) bool { return p == name })
	for key, value := range fields {
		masked[key] = Mask(value, public...)
		switch key {
		case "value": // 1.
			if named {
				masked[key] = hide(value)
			}
		case "command", "args": // 2.
			if !isPublic {
				masked[key] = hide(value)
			}
		case "annotations": // 3.
			masked[key] = maskAnnotations(value)
		case "volumeAttributes", "options": // 3., but not the options of DNS, which is a list
			if _, isMapping := value.(map[string]any); isMapping {
				masked[key] = hide(value)
			}
		case "path": // 4.
			text, _ := value.(string)
			if path, query, found := strings.Cut(text, "?"); found && !ContainsToken(path) {
				masked[key] = Masked{path + "?", New(query)}
			}
		}
	}
	return masked
}

func maskAnnotations(value any) any {
	annotations, isMapping := value.(map[string]any)
	if !isMapping {
		return hide(value)
	}
	masked := make(map[string]any, len(annotations))
	for key, value := range annotations {
		if slices.ContainsFunc(shownAnnotations, func(p string) bool { return strings.HasPrefix(key, p) }) {
			masked[key] = Mask(value)
		} else {
			masked[key] = hide(value)
		}
	}
	return masked
}

// hide masks every text, number and boolean in a value.
func hide(value any) any {
	switch value := value.(type) {
	case nil:
		return nil
	case map[string]any:
		hidden := make(map[string]any, len(value))
		for key, entry := range value {
			hidden[key] = hide(entry)
		}
		return hidden
	case []any:
		hidden := make([]any, len(value))
		for i, entry := range value {
			hidden[i] = hide(entry)
		}
		return hidden
	default:
		return Masked{hidden: New(fmt.Sprint(value))}
	}
}
