package schema

import (
	"fmt"
	"maps"
	"slices"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
)

// ofTheAgent is what a template must leave to the agent, and what a container
// beside the agent's needs, as far as JSON Schema can say it.
const ofTheAgent = `{
	"$comment": "What belongs to the agent.",
	"properties": {
		"apiVersion": {"const": "v1"},
		"kind": {"const": "Pod"},
		"status": {"maxProperties": 0},
		"$patch": false,
		"$retainKeys": false,
		"metadata": {
			"type": "object",
			"properties": {
				"name": false, "generateName": false, "namespace": false,
				"uid": {"type": "null"}, "resourceVersion": {"type": "null"}, "generation": {"type": "null"}, "creationTimestamp": {"type": "null"},
				"deletionTimestamp": {"type": "null"}, "deletionGracePeriodSeconds": {"type": "null"}, "selfLink": {"type": "null"}, "managedFields": {"type": "null"},
				"labels": {
					"type": "object",
					"properties": {"app.kubernetes.io/component": false, "app.kubernetes.io/name": false, "$patch": false, "$retainKeys": false},
					"patternProperties": {"^cmwa": false}
				},
				"annotations": {
					"type": "object",
					"properties": {"$patch": false, "$retainKeys": false},
					"patternProperties": {"^cmwa": false}
				},
				"$patch": false,
				"$retainKeys": false
			}
		},
		"spec": {
			"type": "object",
			"properties": {
				"restartPolicy": {"const": "Never"},
				"ephemeralContainers": {"maxItems": 0},
				"$patch": false,
				"$retainKeys": false,
				"containers": {
					"type": "array",
					"items": {
						"if": {"properties": {"name": {"const": "pulumi-workflow"}}},
						"then": {"properties": {"command": false, "args": false, "$patch": false, "$retainKeys": false, "restartPolicy": {"const": null}, "image": {"type": "string", "minLength": 1}}},
						"else": {"properties": {"name": {"not": {"pattern": "^pulumi-workflow-"}}}, "anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]}
					}
				},
				"initContainers": {
					"type": "array",
					"items": {
						"properties": {"name": {"not": {"pattern": "^pulumi-workflow(-|$)"}}},
						"anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]
					}
				},
				"volumes": {
					"type": "array",
					"items": {"properties": {"name": {"not": {"pattern": "^pulumi-workflow(-|$)"}}}}
				}
			}
		}
	}
}`

// steering is what the keys may be that say how a mapping is merged, by pattern.
func steering() []member {
	return []member{
		{"^[$]patch$", ordered{{"enum", []any{"replace", "delete"}}}},
		{"^[$]retainKeys$", ordered{{"type", "array"}, {"items", ordered{{"type", "string"}}}}},
		{"^[$](setElementOrder|deleteFromPrimitiveList)/", ordered{{"type", "array"}}},
	}
}

// podMapping translates a mapping of a Pod. It is part of a patch, and so nothing
// is required but what a new entry of a list must have.
func (x *export) podMapping(name string, t *podType) (ordered, error) {
	var properties ordered
	var needed []string
	for _, key := range slices.Sorted(maps.Keys(t.fields)) {
		o, err := x.podValue(t.fields[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		properties = append(properties, member{key, nullable(o)})
		if t.fields[key].need {
			needed = append(needed, key)
		}
	}
	o := ordered{{"type", "object"}, {"properties", properties}, {"patternProperties", ordered(steering())}, {"additionalProperties", false}}
	if !slices.Contains(laidOver(), name) && len(needed) > 0 {
		o = append(o, member{"anyOf", []any{ordered{{"required", []string{"$patch"}}}, ordered{{"required", needed}}}})
	}
	return o, nil
}

// laidOver returns the mappings that are there before the template.
func laidOver() []string { return []string{podDefinition, "#ObjectMeta", "#PodSpec"} }

// podValue translates one value of a Pod: every declaration of it must hold.
func (x *export) podValue(f *podField) (ordered, error) {
	switch f.kind {
	case podOpen:
		return ordered{}, nil
	case podMapping:
		return x.name(f.ref)
	case podList:
		items, err := x.podValue(f.entry)
		return ordered{{"type", "array"}, {"items", items}}, err
	case podMap:
		values, err := x.podValue(f.entry)
		o := ordered{{"type", "object"}, {"patternProperties", append(ordered(steering()), member{"^[^$]|^$", nullable(values)})}, {"additionalProperties", false}}
		if err == nil && f.keys != "" {
			var key ordered
			if key, err = x.name(f.keys); err == nil {
				o = append(o, member{"propertyNames", ordered{{"anyOf", []any{ordered{{"pattern", "^[$]"}}, key}}}})
			}
		}
		return o, err
	}
	var exprs []ast.Expr
	for _, text := range f.from {
		expr, err := parser.ParseExpr("", text)
		if err != nil {
			return nil, err
		}
		exprs = append(exprs, expr)
	}
	return x.both(exprs...)
}
