package state

import (
	"fmt"
	"slices"
	"strings"
)

const rootStackType = "pulumi:pulumi:Stack"

// removeDangling removes references to resources that are gone, because a refresh removes a resource even
// if others depend on it. Resources may refer only to resources before them, except to a parent.
func removeDangling(resources []*resource) {
	before := map[string]bool{}
	for i, r := range resources {
		var changes []change
		if kept := onlyIn(r.dependencies, before); len(kept) < len(r.dependencies) {
			changes = append(changes, change{"dependencies", encodeOrRemove(kept)})
		}
		if kept := onlyIn(r.replaceWith, before); len(kept) < len(r.replaceWith) {
			changes = append(changes, change{"replaceWith", encodeOrRemove(kept)})
		}
		if r.deletedWith != "" && !before[r.deletedWith] {
			changes = append(changes, change{"deletedWith", nil})
		}
		changes = append(changes, r.withoutPropertyDependencies(before)...)
		resources[i] = r.changed(changes)
		before[r.urn] = true
	}
	for i, r := range resources {
		if r.parent != "" && !before[r.parent] {
			resources[i] = r.changed([]change{{"parent", nil}})
		}
	}
}

func (r *resource) withoutPropertyDependencies(existing map[string]bool) []change {
	kept := map[string][]string{}
	same := true
	for property, all := range r.propertyDependencies {
		some := onlyIn(all, existing)
		if len(some) > 0 {
			kept[property] = some
		}
		same = same && len(some) == len(all) && len(some) > 0
	}
	switch {
	case same:
		return nil
	case len(kept) == 0:
		return []change{{"propertyDependencies", nil}}
	}
	return []change{{"propertyDependencies", encode(kept)}}
}

// newNames returns the URN of the resource for each alias, and the new URN of each resource whose parent
// has a new URN. An alias that two resources claim is left out.
func newNames(resources []*resource) map[string]string {
	owner, contested := map[string]string{}, map[string]bool{}
	for _, r := range resources {
		for _, alias := range r.aliases {
			if other, ok := owner[alias]; ok && other != r.urn {
				contested[alias] = true
			}
			owner[alias] = r.urn
		}
	}
	names := map[string]string{}
	for _, r := range resources {
		for _, alias := range r.aliases {
			if !contested[alias] {
				names[alias] = r.urn
			}
		}
		if parent, ok := names[r.parent]; ok {
			if moved := underParent(r.urn, parent); moved != "" {
				names[r.urn] = moved
			}
		}
	}
	return names
}

// underParent returns the URN of a resource whose parent has this URN: its type begins with the types of
// the parent. It returns the empty string if one of the two is no URN, or if the parent is the root stack.
func underParent(urn, parent string) string {
	u, p := strings.SplitN(urn, "::", 4), strings.SplitN(parent, "::", 4)
	if len(u) < 4 || len(p) < 4 || p[2] == rootStackType {
		return ""
	}
	typ := u[2][strings.LastIndexByte(u[2], '$')+1:]
	return u[0] + "::" + u[1] + "::" + p[2] + "$" + typ + "::" + u[3]
}

// replaceAliases replaces aliases by URNs, and removes the lists of aliases.
func replaceAliases(resources []*resource, names map[string]string) {
	if len(names) == 0 {
		return
	}
	unnamed := func(alias string) bool { return names[alias] == "" }
	for i, r := range resources {
		var changes []change
		for _, field := range []struct{ name, urn string }{
			{"urn", r.urn}, {"parent", r.parent}, {"deletedWith", r.deletedWith}, {"viewOf", r.viewOf},
		} {
			if urn, ok := names[field.urn]; ok && field.urn != "" {
				changes = append(changes, change{field.name, encode(urn)})
			}
		}
		if end := strings.LastIndex(r.provider, "::"); end >= 0 {
			if urn, ok := names[r.provider[:end]]; ok {
				changes = append(changes, change{"provider", encode(urn + r.provider[end:])})
			}
		}
		if dependencies, ok := replaceAll(r.dependencies, names); ok {
			changes = append(changes, change{"dependencies", encode(dependencies)})
		}
		replaced := map[string][]string{}
		found := false
		for property, all := range r.propertyDependencies {
			urns, ok := replaceAll(all, names)
			replaced[property], found = urns, found || ok
		}
		if found {
			changes = append(changes, change{"propertyDependencies", encode(replaced)})
		}
		// The list stays if one of its aliases is contested.
		if len(r.aliases) > 0 && !slices.ContainsFunc(r.aliases, unnamed) {
			changes = append(changes, change{"aliases", nil})
		}
		resources[i] = r.changed(changes)
	}
}

// replaceAll also reports whether the list contains an alias.
func replaceAll(list []string, names map[string]string) ([]string, bool) {
	found := false
	replaced := make([]string, len(list))
	for i, urn := range list {
		name, ok := names[urn]
		if !ok {
			name = urn
		}
		replaced[i], found = name, found || ok
	}
	return replaced, found
}

// parseSnippets returns the snippets, each with its references: URNs by name.
func parseSnippets(text []byte) (snippets, references []object, err error) {
	texts, err := parseList(text)
	if err != nil {
		return nil, nil, err
	}
	for _, text := range texts {
		snippet, err := parseObject(text)
		if err != nil {
			return nil, nil, err
		}
		urns, err := parseOptionalObject(snippet.get("references"))
		if err != nil {
			return nil, nil, fmt.Errorf("references: %w", err)
		}
		for _, field := range urns {
			if _, err := parseString(field.value); err != nil {
				return nil, nil, fmt.Errorf("references: %w", err)
			}
		}
		snippets, references = append(snippets, snippet), append(references, urns)
	}
	return snippets, references, nil
}

// replaceSnippetAliases replaces aliases by URNs in the references of snippets.
func replaceSnippetAliases(body object, names map[string]string) object {
	if len(names) == 0 || body.get("snippets") == nil {
		return body
	}
	snippets, references, err := parseSnippets(body.get("snippets"))
	if err != nil {
		panic(err) // parseBody and parseEntry have accepted them
	}
	for i, urns := range references {
		for k, field := range urns {
			urn, err := parseString(field.value)
			if name, ok := names[urn]; err == nil && ok {
				urns[k].value = encode(name)
			}
		}
		if len(urns) > 0 {
			snippets[i] = snippets[i].with("references", urns.appendTo(nil))
		}
	}
	return body.with("snippets", appendList(nil, snippets, func(o object) []byte { return o.appendTo(nil) }))
}
