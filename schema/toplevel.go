package schema

import (
	"bytes"
	"fmt"

	"github.com/cmwa-project/cmwa/schema/position"
)

// TopLevelScalar returns the value of a top-level key of a configuration file as
// text. It is for files that Load rejects: everything else in the file may be
// invalid. The value is empty if the key is missing or has no scalar value.
//
// If the file as a whole is no YAML document, each line is parsed as a document of
// its own. A line such as "key: value" in the first column is one, whatever stands
// in the lines before and after it.
func TopLevelScalar(content []byte, key string) string {
	if t, _, _ := position.Parse("", content); t != nil {
		return scalarOf(t, key)
	}
	for line := range bytes.Lines(content) {
		if line[0] == ' ' || line[0] == '\t' || !bytes.Contains(line, []byte(key)) {
			continue
		}
		t, _, _ := position.Parse("", line)
		if value := scalarOf(t, key); value != "" {
			return value
		}
	}
	return ""
}

// scalarOf returns the value of a key as text, empty if it has no scalar value.
func scalarOf(t position.Mapping, key string) string {
	switch data := t[key].Data.(type) {
	case nil, position.Mapping, []position.Value:
		return ""
	default:
		return fmt.Sprint(data)
	}
}
