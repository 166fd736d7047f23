package patch

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	sigsjson "sigs.k8s.io/json"
)

// Merge returns the Pod with the fields of a strategic merge patch merged. It does not
// change the Pod, and may change the fields.
//
//  1. Merge keys are checked first: strategicpatch panics on a key that is a list,
//     and takes two elements with one key for one.
//  2. Directives are carried out where they meet nothing in the Pod: strategicpatch
//     drops a new mapping with $patch: replace, and leaves $retainKeys in one.
//  3. The merge is done under a recover, for what the check does not know.
//  4. The result is decoded strictly: the merge accepts unknown fields and wrong
//     types.
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

	// 2. Carry out directives in what is new.
	settle(fields, base, schema)
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
	wrong, err := sigsjson.UnmarshalStrict(text, result)
	if err := errors.Join(append([]error{err}, wrong...)...); err != nil {
		return nil, fmt.Errorf("the merged Pod is not valid: %w", err)
	}
	return result, nil
}

// merge applies a strategic merge patch.
func merge(plain, change []byte) (merged []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("cannot be merged: %v", reason)
		}
	}()
	return strategicpatch.StrategicMergePatch(plain, change, corev1.Pod{})
}
