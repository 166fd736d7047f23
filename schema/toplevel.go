package schema

import (
	"bytes"
	"fmt"
)

// TopLevelScalar returns the value of a top-level key of a configuration file as
// text. It is for files that Load rejects: everything else in the file may be
// invalid. The value is empty if the key is missing or has no scalar value.
//
// If the file as a whole is no YAML document, each line is parsed as a document of
// its own. A line such as "key: value" in the first column is one, whatever stands
// in the lines before and after it.
func TopLevelScalar(content []byte, key string) string {
	if t, _, _ := parse("", content); t != nil {
		return t.scalar(key)
	}
	for line := range bytes.Lines(content) {
		if line[0] == ' ' || line[0] == '\t' || !bytes.Contains(line, []byte(key)) {
			continue
		}
		t, _, _ := parse("", line)
		if value := t.scalar(key); value != "" {
			return value
		}
	}
	return ""
}

// scalar returns the value of a key as text, empty if it has no scalar value.
func (t table) scalar(key string) string {
	switch data := t[key].data.(type) {
	case nil, table, []value:
		return ""
	default:
		return fmt.Sprint(data)
	}
}
