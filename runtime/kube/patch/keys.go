package patch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// checkKeys returns an error if elements of a list in a patch have no merge key or one of a
// wrong type, or if two elements have the same key in a list that the Pod already has.
// Unknown fields are detected later, when the result is decoded.
func checkKeys(path string, fields map[string]any, schema strategicpatch.LookupPatchMeta) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasPrefix(name, "$") {
			continue // a directive
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		switch value := fields[name].(type) {
		case map[string]any:
			if below, _, err := schema.LookupPatchMetadataForStruct(name); err == nil {
				if err := checkKeys(at, value, below); err != nil {
					return err
				}
			}
		case []any:
			below, meta, err := schema.LookupPatchMetadataForSlice(name)
			if err != nil {
				continue
			}
			if err := checkList(at, value, below, meta.GetPatchMergeKey(),
				slices.Contains(existing, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// existing are the lists that a Pod without a template has. In these lists, the merge
// treats two elements with the same key as one. In other lists, duplicates are allowed:
// ports for TCP and UDP, or a variable that is set again.
var existing = []string{"containers", "initContainers", "volumes", "volumeMounts"}

// checkList checks the elements of one list. Key is its merge key; empty for a list that a
// patch replaces. If unique is true, elements with the same key are an error.
func checkList(path string, list []any, schema strategicpatch.LookupPatchMeta, key string, unique bool) error {
	seen := map[any]int{}
	for i, element := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		fields, ok := element.(map[string]any)
		switch {
		case !ok && key != "":
			return fmt.Errorf("%s is not a mapping", at)
		case !ok:
			continue
		}
		if err := checkKeys(at, fields, schema); err != nil {
			return err
		}

		value, hasKey := fields[key]
		_, directive := fields["$patch"]
		if key == "" || directive && !hasKey {
			continue
		}
		switch value.(type) {
		case string:
			ok = key != "containerPort"
		case float64:
			ok = key == "containerPort"
		default:
			ok = false
		}
		switch {
		case !hasKey:
			return fmt.Errorf("%s has no %s, which is the merge key of this list", at, key)
		case !ok:
			return fmt.Errorf("%s.%s has a wrong type", at, key)
		}
		if before, twice := seen[value]; twice && unique && !directive {
			return fmt.Errorf("%s has the same %s as element %d: %v", at, key, before, value)
		}
		seen[value] = i
	}
	return nil
}

// applyDirectives applies the directives in those parts of a patch that the Pod does not have,
// and removes these directives from the patch. Base is the Pod as JSON. The merge applies the
// remaining directives.
func applyDirectives(fields, base map[string]any, schema strategicpatch.LookupPatchMeta) {
	for name, value := range fields {
		// Drop a directive for a list that the Pod does not have.
		directive, list, named := strings.Cut(name, "/")
		ofList := directive == "$setElementOrder" || directive == "$deleteFromPrimitiveList"
		if named && ofList && base[list] == nil {
			delete(fields, name)
			continue
		}

		// If the Pod has the field, the merge applies the directives for it: continue with
		// the fields below it.
		switch value := value.(type) {
		case map[string]any:
			existing, exists := base[name].(map[string]any)
			if below, _, err := schema.LookupPatchMetadataForStruct(name); exists && err == nil {
				applyDirectives(value, existing, below)
				continue
			}
		case []any:
			existing, exists := base[name].([]any)
			below, meta, err := schema.LookupPatchMetadataForSlice(name)
			if exists && err == nil && meta.GetPatchMergeKey() != "" {
				applyListDirectives(value, existing, below, meta.GetPatchMergeKey())
				continue
			}
		}

		// The Pod does not have the field: apply its directives here.
		if strings.HasPrefix(name, "$") {
			continue
		}
		settled, kept := withoutDirectives(value)
		if fields[name] = settled; !kept {
			delete(fields, name)
		}
	}
}

// applyListDirectives does what applyDirectives does, for the elements of a list that the
// Pod has.
func applyListDirectives(list, base []any, schema strategicpatch.LookupPatchMeta, key string) {
	for i, element := range list {
		fields, _ := element.(map[string]any)
		if fields["$patch"] != nil {
			continue // a directive for the list
		}
		same := slices.IndexFunc(base, func(one any) bool {
			existing, _ := one.(map[string]any)
			return existing[key] == fields[key]
		})
		if same >= 0 {
			applyDirectives(fields, base[same].(map[string]any), schema)
		} else {
			list[i], _ = withoutDirectives(element)
		}
	}
}

// withoutDirectives applies and removes the directives in a new value. Kept is false if the
// value must be removed: a directive deletes it, or it is only a directive for its list.
func withoutDirectives(value any) (result any, kept bool) {
	switch value := value.(type) {
	case map[string]any:
		directive, _ := value["$patch"].(string)
		if directive == "delete" || directive == "replace" && len(value) == 1 {
			return nil, false
		}
		for key, inner := range value {
			inner, kept := withoutDirectives(inner)
			if value[key] = inner; !kept || strings.HasPrefix(key, "$") {
				delete(value, key)
			}
		}
		return value, true
	case []any:
		list := make([]any, 0, len(value))
		for _, element := range value {
			if element, kept := withoutDirectives(element); kept {
				list = append(list, element)
			}
		}
		return list, true
	default:
		return value, true
	}
}
