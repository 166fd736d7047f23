package patch

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Document is a Pod as JSON values: mappings, lists, strings, numbers and booleans. A value
// that may be secret is a [secret.Masked]: it prints as a mark instead of its text, and two of
// them are equal if their texts are equal.
type Document map[string]any

// NewDocument returns a Pod as a document, without its status, masked by [secret.Mask].
func NewDocument(pod *corev1.Pod, public ...string) (Document, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("write the Pod as JSON: %w", err)
	}
	var data map[string]any
	if err := utiljson.Unmarshal(text, &data); err != nil { // whole numbers are int64
		return nil, fmt.Errorf("read the Pod as JSON: %w", err)
	}
	delete(data, "status")
	return secret.Mask(data, public...).(map[string]any), nil
}
