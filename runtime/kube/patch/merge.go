package patch

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	sigsjson "sigs.k8s.io/json"
)

// Merge returns the Pod with a strategic merge patch applied. It does not change the Pod,
// but may change fields.
//
//  1. Check the merge keys: strategicpatch panics on a key that is a list, and merges two
//     elements with the same key.
//  2. Apply directives to parts that the Pod does not have: strategicpatch drops a new
//     mapping that has $patch: replace, and does not remove $retainKeys from a new mapping.
//  3. Merge, and recover from panics that the check did not prevent.
//  4. Decode the result strictly: the merge accepts unknown fields and wrong types.
func Merge(pod *corev1.Pod, fields map[string]any) (*corev1.Pod, error) {
	schema, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
	if err != nil {
		return nil, err
	}
	plain, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	var base map[string]any
	if err := json.Unmarshal(plain, &base); err != nil {
		return nil, err
	}

	// 1. Check the merge keys.
	if err := checkKeys("", fields, schema); err != nil {
		return nil, err
	}

	//  2. Apply directives to new parts.
	applyDirectives(fields, base, schema)
	change, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}

	// 3. Merge.
	text, err := merge(plain, change)
	if err != nil {
		return nil, err
	}

	// 4. Decode.
	result := &corev1.Pod{}
	problems, err := sigsjson.UnmarshalStrict(text, result)
	if err := errors.Join(append([]error{err}, problems...)...); err != nil {
		return nil, fmt.Errorf("the merged Pod is not valid: %w", err)
	}
	return result, nil
}

func merge(plain, change []byte) (merged []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("cannot be merged: %v", reason)
		}
	}()
	return strategicpatch.StrategicMergePatch(plain, change, corev1.Pod{})
}
