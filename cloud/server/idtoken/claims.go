package idtoken

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Claim is a required claim of a token.
type Claim struct {
	Name    string // of a claim, or CLAIM.MEMBER for a member of a claim that is an object
	Pattern string // of its value; a star matches any characters
}

// String returns the form of [ParseIssuer].
func (c Claim) String() string { return c.Name + "=" + c.Pattern }

// maxShown limits a value of a claim in a log, in bytes.
const maxShown = 200

// check returns an error for the first required claim that is missing or does not match.
func (m Members) check(required []Claim) error {
	for _, claim := range required {
		raw, found := m.find(claim.Name)
		values := texts(raw)
		if slices.ContainsFunc(values, func(value string) bool { return matches(claim.Pattern, value) }) {
			continue
		}
		shown := "is missing"
		if found {
			shown = fmt.Sprintf("is %.*q", maxShown, values)
		}
		return &Error{
			Text: fmt.Sprintf("the claim %s of the subject token is not the one that this service requires: "+
				"see --oidc-issuer in the service's command, and its log", claim.Name),
			Detail: fmt.Sprintf("claim %s %s, and --oidc-issuer requires %s", claim.Name, shown, claim.Pattern),
		}
	}
	return nil
}

// find returns a claim by its name, or a member of a claim that is an object. It tries the
// longest name before a dot first, so that it finds a claim with dots in its name.
func (m Members) find(name string) (json.RawMessage, bool) {
	if value, found := m[name]; found {
		return value, true
	}
	for at := strings.LastIndexByte(name, '.'); at > 0; at = strings.LastIndexByte(name[:at], '.') {
		value, found := m[name[:at]]
		if !found {
			continue
		}
		inner, err := ReadMembers(value)
		if err != nil {
			return nil, false
		}
		return inner.find(name[at+1:])
	}
	return nil, false
}

// texts returns the values of a claim as texts: one value, or the elements of a list.
// Objects, nested lists and null are omitted.
func texts(raw json.RawMessage) []string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var all []string
	for _, value := range list {
		var text string
		switch {
		case len(value) == 0 || string(value) == "null" || strings.ContainsRune("[{", rune(value[0])):
		case json.Unmarshal(value, &text) == nil:
			all = append(all, text)
		default:
			all = append(all, string(value)) // a number, true or false
		}
	}
	return all
}

// matches reports whether a text matches a pattern.
func matches(pattern, text string) bool {
	// The beginning and the end are fixed.
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == text
	}
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}

	// The parts between two stars must follow in order. Find each at its first position.
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
