package effective

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// InUse returns the settings of a configuration without those that apply only to a
// deploy_target that their pool does not have.
func InUse(c *schema.Config) (inUse []schema.Setting) {
	targets := map[string]string{}
	for _, p := range c.Pools {
		targets[p.Name] = p.DeployTarget
	}
	for _, s := range c.Settings() {
		if s.Pool == "" || s.AppliesTo(targets[s.Pool]) {
			inUse = append(inUse, s)
		}
	}
	return inUse
}

// layout is a configuration in the layout of a file.
type layout struct {
	common []schema.Setting // at the top level
	pools  []pool           // empty if there is only one pool, with the default name
}

type pool struct {
	name     string
	settings []schema.Setting
}

// layoutOf moves settings to the top level if all pools have them with the same
// value and origin. A setting of the pools stays there if the whole agent has a setting
// with the same key.
func layoutOf(settings []schema.Setting) layout {
	var l layout
	taken := map[string]bool{} // keys of the settings of the whole agent
	for _, setting := range settings {
		n := len(l.pools)
		switch {
		case setting.Pool == "":
			l.common = append(l.common, setting)
			taken[setting.Key] = true
		case n == 0 || l.pools[n-1].name != setting.Pool:
			l.pools = append(l.pools, pool{setting.Pool, []schema.Setting{setting}})
		default:
			l.pools[n-1].settings = append(l.pools[n-1].settings, setting)
		}
	}
	if len(l.pools) == 0 {
		return l
	}

	var shared []schema.Setting
	inShared := map[string]bool{}
	for _, setting := range l.pools[0].settings {
		if !taken[setting.Key] && l.everywhere(setting) {
			shared = append(shared, setting)
			inShared[setting.Key] = true
		}
	}
	for i := range l.pools {
		own := l.pools[i].settings
		l.pools[i].settings = slices.DeleteFunc(own, func(s schema.Setting) bool { return inShared[s.Key] })
	}

	// A key of the whole agent may stay with the pools as well. If the agent's setting is a
	// default, remove it: in a file, the key at the top level would set a limit for all pools.
	l.common = slices.DeleteFunc(l.common, func(s schema.Setting) bool {
		sameKey := func(own schema.Setting) bool { return own.Key == s.Key }
		return s.Origin == position.Origin{} && slices.ContainsFunc(l.pools[0].settings, sameKey)
	})
	l.common = append(shared, l.common...)
	if len(l.pools) == 1 && l.pools[0].name == schema.DefaultPool && len(l.pools[0].settings) == 0 {
		l.pools = nil
	}
	return l
}

// everywhere reports whether all pools have the setting with the same value and origin.
func (l layout) everywhere(setting schema.Setting) bool {
	for _, pool := range l.pools {
		if !slices.ContainsFunc(pool.settings, func(s schema.Setting) bool {
			return s.Key == setting.Key && s.Value == setting.Value && s.Origin == setting.Origin && s.Same(setting)
		}) {
			return false
		}
	}
	return true
}

// shownValue returns the value in YAML. The mark of a secret is quoted, because it
// would be a list otherwise.
func shownValue(s schema.Setting) string {
	if s.Value == secret.Mark {
		return `"` + secret.Mark + `"`
	}
	return s.Value
}

// outputLine is a line of the output. Its origin is empty if it has no value.
type outputLine struct{ text, origin string }

// widest is the length in characters of the longest line whose comment is in the same
// column as the others.
const widest = 60

// YAML returns settings as a configuration file. With origins, each value has a
// comment that names the file and line, the variable, or the default it comes from.
// The comments are in one column.
func YAML(settings []schema.Setting, origins bool) ([]byte, error) {
	l := layoutOf(settings)
	lines, err := settingLines(l.common, "")
	if err != nil {
		return nil, err
	}
	if len(l.pools) > 0 {
		lines = append(lines, outputLine{text: "pools:"})
	}
	for _, pool := range l.pools {
		lines = append(lines, outputLine{text: "  - name: " + pool.name})
		own, err := settingLines(pool.settings, "    ")
		if err != nil {
			return nil, err
		}
		lines = append(lines, own...)
	}

	column := 0
	for _, line := range lines {
		if n := utf8.RuneCountInString(line.text); n <= widest && line.origin != "" {
			column = max(column, n)
		}
	}
	var b bytes.Buffer
	for _, line := range lines {
		b.WriteString(line.text)
		if origins && line.origin != "" {
			b.WriteString(strings.Repeat(" ", max(0, column-utf8.RuneCountInString(line.text))) + "  # " + line.origin)
		}
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}

func settingLines(settings []schema.Setting, indent string) ([]outputLine, error) {
	var lines []outputLine
	mapping := ""
	for _, setting := range settings {
		if setting.Value == "" {
			continue
		}

		outer, key, inner := "", setting.Key, indent
		if before, after, nested := strings.Cut(setting.Key, "."); nested {
			outer, key, inner = before, after, indent+"  "
			if outer != mapping {
				lines = append(lines, outputLine{text: indent + outer + ":"})
			}
		}
		mapping = outer

		origin := printable.Text(setting.Origin.String())
		if !strings.HasPrefix(setting.Value, "{") || setting.Value == "{}" {
			lines = append(lines, outputLine{inner + key + ": " + shownValue(setting), origin})
			continue
		}
		lines = append(lines, outputLine{inner + key + ":", origin})
		block, err := blockForm(setting.Value)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", setting.Key, err)
		}
		for line := range strings.Lines(block) {
			lines = append(lines, outputLine{text: inner + "  " + strings.TrimSuffix(line, "\n")})
		}
	}
	return lines, nil
}

// blockForm returns a mapping in YAML's flow form as a block.
func blockForm(flow string) (string, error) {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(flow), &node); err != nil {
		return "", err
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	unfold(&node)
	if err := encoder.Encode(&node); err != nil {
		return "", err
	}
	return b.String(), nil
}

// unfold removes the flow form from all nodes of a tree that have content.
func unfold(n *yaml.Node) {
	if len(n.Content) > 0 {
		n.Style &^= yaml.FlowStyle
	}
	for _, inner := range n.Content {
		unfold(inner)
	}
}

// Data returns the same as YAML, as values for encoding/json. With origins, each
// value is an object of value and origin.
func Data(settings []schema.Setting, origins bool) map[string]any {
	l := layoutOf(settings)
	data := settingData(l.common, origins)
	var pools []any
	for _, pool := range l.pools {
		own := settingData(pool.settings, origins)
		own["name"] = pool.name
		pools = append(pools, own)
	}
	if pools != nil {
		data["pools"] = pools
	}
	return data
}

func settingData(settings []schema.Setting, origins bool) map[string]any {
	data := map[string]any{}
	for _, setting := range settings {
		if setting.Value == "" {
			continue
		}
		var v any
		if err := yaml.Unmarshal([]byte(shownValue(setting)), &v); err != nil {
			v = setting.Value
		}
		if origins {
			v = map[string]any{"value": v, "origin": setting.Origin.String()}
		}
		in, key := data, setting.Key
		if outer, inner, nested := strings.Cut(setting.Key, "."); nested {
			if data[outer] == nil {
				data[outer] = map[string]any{}
			}
			in, key = data[outer].(map[string]any), inner
		}
		in[key] = v
	}
	return data
}
