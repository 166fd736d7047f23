package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// bare matches what needs no quotes, if YAML does not take it for something else.
var bare = regexp.MustCompile(`^[A-Za-z/]([A-Za-z0-9_./:@+-]*[A-Za-z0-9_/-])?$`)

// asScalar returns how a value is written on one line, and what the parser makes
// of that.
func asScalar(value any) (string, *yaml.Node, error) {
	switch value := value.(type) {
	case bool, int:
		written := fmt.Sprint(value)
		tag := map[bool]string{true: "!!bool", false: "!!int"}[written == "true" || written == "false"]
		return written, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: written}, nil
	case string:
		want := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
		if !utf8.ValidString(value) {
			return "", nil, position.Problems{{Rule: position.RuleValue, Message: "the value is not UTF-8", Hint: "write it as plain text"}}
		}
		// Older parsers than ours read these words as true and false.
		words := []string{"y", "n", "yes", "no", "on", "off"}
		read := yaml.Node{Kind: yaml.ScalarNode, Value: value}
		if bare.MatchString(value) && read.ShortTag() == "!!str" && !slices.Contains(words, strings.ToLower(value)) {
			return value, want, nil
		}
		return inQuotes(value), want, nil
	default:
		return "", nil, fmt.Errorf("set a value of type %T: only text, true and false, and whole numbers can be set", value)
	}
}

// asJSON returns how a value is written in JSON.
func asJSON(n *yaml.Node) string {
	if n.ShortTag() == "!!str" {
		return inQuotes(n.Value)
	}
	return n.Value
}

// inQuotes returns a text in double quotes, as JSON and YAML both read it.
func inQuotes(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string always encodes
	// JSON leaves some characters as they are that YAML does not allow.
	var out strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if r >= 0x7F && r < 0xA0 || r == '\uFEFF' || r == '\uFFFE' || r == '\uFFFF' {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}
