package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

const rootStackType = "pulumi:pulumi:Stack"

// removeDangling removes references to resources that are gone, because a refresh removes a resource even
// if others depend on it. Resources may refer only to resources before them, except to a parent.
func removeDangling(resources []*resource) {
	before := map[string]bool{}
	for i, r := range resources {
		var changes []field
		if kept := onlyIn(r.dependencies, before); len(kept) < len(r.dependencies) {
			changes = append(changes, field{"dependencies", encodeOrRemove(kept)})
		}
		if kept := onlyIn(r.replaceWith, before); len(kept) < len(r.replaceWith) {
			changes = append(changes, field{"replaceWith", encodeOrRemove(kept)})
		}
		if r.deletedWith != "" && !before[r.deletedWith] {
			changes = append(changes, field{"deletedWith", nil})
		}
		changes = append(changes, r.withoutPropertyDependencies(before)...)
		resources[i] = r.changed(changes...)
		before[r.urn] = true
	}
	for i, r := range resources {
		if r.parent != "" && !before[r.parent] {
			resources[i] = r.changed(field{"parent", nil})
		}
	}
}

func (r *resource) withoutPropertyDependencies(existing map[string]bool) []field {
	kept := map[string][]string{}
	for property, all := range r.propertyDependencies {
		if some := onlyIn(all, existing); len(some) > 0 {
			kept[property] = some
		}
	}
	switch {
	case maps.EqualFunc(kept, r.propertyDependencies, slices.Equal):
		return nil
	case len(kept) == 0:
		return []field{{"propertyDependencies", nil}}
	}
	return []field{{"propertyDependencies", encode(kept)}}
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
		var changes []field
		for _, f := range []struct{ name, urn string }{
			{"urn", r.urn}, {"parent", r.parent}, {"deletedWith", r.deletedWith}, {"viewOf", r.viewOf},
		} {
			if urn, ok := names[f.urn]; ok && f.urn != "" {
				changes = append(changes, field{f.name, encode(urn)})
			}
		}
		if end := strings.LastIndex(r.provider, "::"); end >= 0 {
			if urn, ok := names[r.provider[:end]]; ok {
				changes = append(changes, field{"provider", encode(urn + r.provider[end:])})
			}
		}
		if urns := replaceAll(r.dependencies, names); !slices.Equal(urns, r.dependencies) {
			changes = append(changes, field{"dependencies", encode(urns)})
		}
		replaced := map[string][]string{}
		for property, urns := range r.propertyDependencies {
			replaced[property] = replaceAll(urns, names)
		}
		if !maps.EqualFunc(replaced, r.propertyDependencies, slices.Equal) {
			changes = append(changes, field{"propertyDependencies", encode(replaced)})
		}
		// The list stays if one of its aliases is contested.
		if len(r.aliases) > 0 && !slices.ContainsFunc(r.aliases, unnamed) {
			changes = append(changes, field{"aliases", nil})
		}
		resources[i] = r.changed(changes...)
	}
}

// replaceAll returns the list with the names of its URNs.
func replaceAll(list []string, names map[string]string) []string {
	replaced := slices.Clone(list)
	for i, urn := range list {
		if name, ok := names[urn]; ok {
			replaced[i] = name
		}
	}
	return replaced
}

// snippet is a snippet of a deployment, with its references: URNs by name.
type snippet struct {
	fields     object
	references map[string]string
}

func parseSnippet(text []byte) (s snippet, err error) {
	if s.fields, err = parseObject(text); err == nil {
		err = s.fields.decode(map[string]func([]byte) error{"references": into(&s.references)})
	}
	return s, err
}

// replaceSnippetAliases replaces aliases by URNs in the references of snippets.
func replaceSnippetAliases(body object, names map[string]string) object {
	if len(names) == 0 || body.get("snippets") == nil {
		return body
	}
	snippets, err := listOf(parseSnippet)(body.get("snippets"))
	if err != nil {
		panic(err) // parseBody and parseEntry have accepted them
	}
	text := appendList(nil, snippets, func(s snippet) []byte {
		for name, urn := range s.references {
			s.references[name] = cmp.Or(names[urn], urn)
		}
		if len(s.references) > 0 {
			s.fields = s.fields.with(field{"references", encode(s.references)})
		}
		return s.fields.appendTo(nil)
	})
	return body.with(field{"snippets", text})
}
