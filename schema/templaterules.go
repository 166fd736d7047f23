package schema

import (
	"fmt"
	"path"
	"slices"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

// TemplateRule is a part of a Pod for the jobs whose names match all four patterns. A pattern
// has the form of [path.Match]; an empty one matches every name.
type TemplateRule struct {
	Organization, Project, Stack, Operation string

	Patch map[string]any // must not be changed
}

// matchKeys are the keys of match in a rule.
var matchKeys = []string{"organization", "project", "stack", "operation"}

// maxPattern is the limit of a pattern in bytes.
const maxPattern = 256

// readTemplateRules checks pod_template_rules, and sets the rules of the pool if they are valid.
func (s *scope) readTemplateRules() {
	const key = "pod_template_rules"
	if !s.valid(key) {
		return
	}
	var rules []TemplateRule
	var problems position.Problems
	entries, _ := s.values[key].Data.([]position.Value)
	for i, entry := range entries {
		rule, more := templateRule(entry, fmt.Sprintf("%s.%d", s.path(key), i))
		rules, problems = append(rules, rule), append(problems, more...)
	}
	s.load.report(problems...)
	if problems.Err() == nil {
		s.pool.PodTemplateRules = rules
	}
}

func templateRule(v position.Value, at string) (rule TemplateRule, problems position.Problems) {
	refuse := func(rule position.Rule, at position.Origin, path, message, hint string) {
		problems = append(problems, position.NewError(rule, at, path, message, hint))
	}
	unknown := func(t position.Mapping, path string, known ...string) {
		for key, v := range t {
			if !slices.Contains(known, key) {
				hint := ""
				if best := position.Closest(key, slices.Clone(known)); best != "" {
					hint = fmt.Sprintf("did you mean %q?", best)
				}
				refuse(position.RuleUnknownKey, v.Key, position.Join(path, position.SafeName(key)), "unknown key", hint)
			}
		}
	}
	fields, ok := v.Data.(position.Mapping)
	if !ok {
		refuse(position.RuleValue, v.At, at, "must be a mapping with match and patch", "")
		return rule, problems
	}
	unknown(fields, at, "match", "patch")

	// The patterns.
	path := position.Join(at, "match")
	match, ok := fields["match"].Data.(position.Mapping)
	if !ok && fields["match"].Data != nil {
		refuse(position.RuleValue, fields["match"].At, path, "must be a mapping of names to patterns", "")
	}
	unknown(match, path, matchKeys...)
	for i, into := range []*string{&rule.Organization, &rule.Project, &rule.Stack, &rule.Operation} {
		key := matchKeys[i]
		v, set := match[key]
		text, isText := v.Data.(string)
		if set && (!isText || !isPattern(text)) {
			refuse(position.RuleValue, v.At, position.Join(path, key), "must be a name or a pattern such as web-*", "")
		}
		*into = text
	}

	// The patch.
	path = position.Join(at, "patch")
	patch, ok := fields["patch"].Data.(position.Mapping)
	if !ok {
		origin := fields["patch"].At
		if origin == (position.Origin{}) {
			origin = v.At
		}
		refuse(position.RuleValue, origin, path, "must be a part of a Pod", "")
		return rule, problems
	}
	problems = append(problems, podtemplate.Check(fields["patch"], path)...)
	rule.Patch = patch.Plain()
	return rule, problems
}

// isPattern reports whether text is a pattern that some name can match.
func isPattern(text string) bool {
	_, err := path.Match(text, "")
	return err == nil && text != "" && len(text) <= maxPattern
}
