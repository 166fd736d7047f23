package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func configCommand(s streams) command {
	config, format, origin := "", "yaml", false
	return command{
		name: "config", help: "print the configuration as cmwa run would use it",
		forms: []form{{
			optional(stringFlag(&config, "config", aFile, "configuration file; otherwise the one that cmwa run would find")),
			optional(boolFlag(&origin, "origin", "say where each value comes from: file and line, variable, or default")),
			optional(stringFlag(&format, "format", oneOf("yaml", "json"), "yaml or json")),
		}},
		long: "The file, with the variables over it and the defaults below. Secrets are masked, and keys that are unset left out.\n" +
			"What all pools have in common stands at the top level. Wrong values are told as by cmwa run: exit code 2.",
		run: func(_ context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("config takes no argument %q: name a file with --config", args[0])
			}
			if format != "yaml" && format != "json" {
				return cli.Usagef("there is no format %q: write yaml or json", format)
			}
			c, warnings, err := load(config, readEnvironment(s.environ))
			if err != nil {
				return cli.Usage(err)
			}
			for _, warning := range warnings {
				fmt.Fprintf(s.stderr, "cmwa: warning: %v\n", warning)
			}
			e := effectiveOf(c.Settings())
			if format == "json" {
				return writeJSON(s.stdout, e.json(origin))
			}
			text, err := e.yaml(origin)
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}

// effective is a configuration in force, in the shape of a file.
type effective struct {
	common []schema.Setting // what stands at the top level
	pools  []effectivePool  // none if there is one pool and it has no name of its own
}

type effectivePool struct {
	name     string
	settings []schema.Setting
}

// effectiveOf puts what all pools have in common to the top level. Where they
// agree on a value and not on where it comes from, each keeps its own. A key that
// the whole agent has, too, is not theirs to put there.
func effectiveOf(settings []schema.Setting) effective {
	var e effective
	taken := map[string]bool{}
	for _, setting := range settings {
		n := len(e.pools)
		switch {
		case setting.Pool == "":
			e.common = append(e.common, setting)
			taken[setting.Key] = true
		case n == 0 || e.pools[n-1].name != setting.Pool:
			e.pools = append(e.pools, effectivePool{setting.Pool, []schema.Setting{setting}})
		default:
			e.pools[n-1].settings = append(e.pools[n-1].settings, setting)
		}
	}
	if len(e.pools) == 0 {
		return e
	}
	var shared []schema.Setting
	inShared := map[string]bool{}
	for _, setting := range e.pools[0].settings {
		if !taken[setting.Key] && e.everywhere(setting) {
			shared = append(shared, setting)
			inShared[setting.Key] = true
		}
	}
	for i := range e.pools {
		e.pools[i].settings = slices.DeleteFunc(e.pools[i].settings, func(s schema.Setting) bool { return inShared[s.Key] })
	}
	// What only the pools set has no default of the whole agent: none is no limit.
	e.common = slices.DeleteFunc(e.common, func(s schema.Setting) bool {
		return s.Origin == position.Origin{} && slices.ContainsFunc(e.pools[0].settings, func(own schema.Setting) bool { return own.Key == s.Key })
	})
	e.common = append(shared, e.common...)
	if len(e.pools) == 1 && e.pools[0].name == schema.DefaultPool && len(e.pools[0].settings) == 0 {
		e.pools = nil
	}
	return e
}

// everywhere reports whether all pools have the setting, and from the same place.
func (e effective) everywhere(setting schema.Setting) bool {
	for _, pool := range e.pools {
		if !slices.ContainsFunc(pool.settings, func(s schema.Setting) bool {
			return s.Key == setting.Key && s.Value == setting.Value && s.Origin == setting.Origin && s.Same(setting)
		}) {
			return false
		}
	}
	return true
}

// shownValue is the value as it stands in the output: the mark of a secret alone
// would be a list.
func shownValue(s schema.Setting) string {
	if s.Value == secret.Mark {
		return `"` + secret.Mark + `"`
	}
	return s.Value
}

// configLine is one line of the output; origin is empty where there is no value.
type configLine struct{ text, origin string }

// yaml writes the configuration as a file, with origins as comments in one column.
func (e effective) yaml(origins bool) ([]byte, error) {
	lines, err := settingLines(e.common, "")
	if err != nil {
		return nil, err
	}
	if len(e.pools) > 0 {
		lines = append(lines, configLine{text: "pools:"})
	}
	for _, pool := range e.pools {
		lines = append(lines, configLine{text: "  - name: " + pool.name})
		own, err := settingLines(pool.settings, "    ")
		if err != nil {
			return nil, err
		}
		lines = append(lines, own...)
	}
	const widest = 60 // beyond it, a comment stands where its line ends
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

func settingLines(settings []schema.Setting, indent string) ([]configLine, error) {
	var lines []configLine
	mapping := ""
	for _, setting := range settings {
		if setting.Value == "" {
			continue
		}
		outer, key, nested := strings.Cut(setting.Key, ".")
		inner := indent
		if !nested {
			outer, key = "", setting.Key
		} else {
			inner += "  "
		}
		if outer != mapping && nested {
			lines = append(lines, configLine{text: indent + outer + ":"})
		}
		mapping = outer
		origin := printable(setting.Origin.String())
		if !strings.HasPrefix(setting.Value, "{") || setting.Value == "{}" {
			lines = append(lines, configLine{inner + key + ": " + shownValue(setting), origin})
			continue
		}
		lines = append(lines, configLine{inner + key + ":", origin})
		block, err := blockForm(setting.Value)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", setting.Key, err)
		}
		for line := range strings.Lines(block) {
			lines = append(lines, configLine{text: inner + "  " + strings.TrimSuffix(line, "\n")})
		}
	}
	return lines, nil
}

// blockForm writes a mapping in flow form as a block.
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

// unfold takes the flow form from a tree, but for what is empty.
func unfold(n *yaml.Node) {
	if len(n.Content) > 0 {
		n.Style &^= yaml.FlowStyle
	}
	for _, inner := range n.Content {
		unfold(inner)
	}
}

// printable writes the name of a file so that it cannot end a comment.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// json returns the same as data; with origins, each value is an object with the
// value and its origin.
func (e effective) json(origins bool) map[string]any {
	data := settingData(e.common, origins)
	var pools []any
	for _, pool := range e.pools {
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
