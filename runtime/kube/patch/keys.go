package patch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// checkKeys returns an error for a list in a patch whose elements lack their merge
// key, have one of a wrong type, or have the same one twice where a Pod has such a
// list before. Fields that a Pod has not are left to the strict decoding.
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
			if err := checkList(at, value, below, meta.GetPatchMergeKey(), slices.Contains(existing, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// existing are the lists that a Pod without a template has. The merge takes two
// elements with one key for one there. Elsewhere, two are two: ports for TCP and
// UDP, or a variable that is set again.
var existing = []string{"containers", "initContainers", "volumes", "volumeMounts"}

// checkList checks the elements of one list. Key is empty for a list that a patch
// replaces. Unique refuses elements with the same key.
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
		value, there := fields[key]
		_, directive := fields["$patch"]
		if key == "" || directive && !there {
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
		case !there:
			return fmt.Errorf("%s has no %s, by which elements of this list are merged", at, key)
		case !ok:
			return fmt.Errorf("%s.%s is of a wrong type", at, key)
		}
		if before, twice := seen[value]; twice && unique && !directive {
			return fmt.Errorf("%s has the same %s as element %d: %v", at, key, before, value)
		}
		seen[value] = i
	}
	return nil
}

// settle removes the directives of a patch where the Pod, whose data is base, has
// nothing that they could direct, and applies them to what the patch itself has
// there. What it leaves is merged as it is.
func settle(fields, base map[string]any, schema strategicpatch.LookupPatchMeta) {
	for name, value := range fields {
		// A directive for a list that the Pod does not have.
		if list, isDirective := listOf(name); isDirective && base[list] == nil {
			delete(fields, name)
			continue
		}

		// What the Pod has, too, is merged: look inside.
		switch value := value.(type) {
		case map[string]any:
			there, exists := base[name].(map[string]any)
			if below, _, err := schema.LookupPatchMetadataForStruct(name); exists && err == nil {
				settle(value, there, below)
				continue
			}
		case []any:
			there, exists := base[name].([]any)
			below, meta, err := schema.LookupPatchMetadataForSlice(name)
			if exists && err == nil && meta.GetPatchMergeKey() != "" {
				settleList(value, there, below, meta.GetPatchMergeKey())
				continue
			}
		}

		// The rest is new, and is copied.
		if strings.HasPrefix(name, "$") {
			continue
		}
		settled, kept := withoutDirectives(value)
		if fields[name] = settled; !kept {
			delete(fields, name)
		}
	}
}

// settleList is settle for the elements of a list that the Pod has, too.
func settleList(list, base []any, schema strategicpatch.LookupPatchMeta, key string) {
	for i, element := range list {
		fields, _ := element.(map[string]any)
		if fields["$patch"] != nil {
			continue // it directs the list
		}
		same := slices.IndexFunc(base, func(one any) bool {
			there, _ := one.(map[string]any)
			return there[key] == fields[key]
		})
		if same >= 0 {
			settle(fields, base[same].(map[string]any), schema)
		} else {
			list[i], _ = withoutDirectives(element)
		}
	}
}

// listOf returns the list that a key of a patch orders, or deletes from.
func listOf(name string) (list string, isDirective bool) {
	for _, directive := range []string{"$setElementOrder/", "$deleteFromPrimitiveList/"} {
		if list, isDirective = strings.CutPrefix(name, directive); isDirective {
			return list, true
		}
	}
	return "", false
}

// withoutDirectives returns data of a patch as it is where nothing was before. Kept
// is false for what a directive deletes, and for an element that is nothing but a
// directive for its list.
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
