package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Setting is one key of a loaded configuration.
type Setting struct {
	Pool   string // name; empty for a setting of the whole agent
	Key    string // with dots: ecs.cluster
	Value  string // as in a file, in YAML's flow form; [secret] for a secret; empty if unset
	Origin position.Origin
	Reload Class

	same secret.String // the value, and the content of the file that it names
}

// Same reports whether two settings have the same meaning. Settings that name files with
// different content differ. Same also compares secrets.
func (s Setting) Same(other Setting) bool { return s.same == other.same }

// AppliesTo reports whether the setting has an effect with a deploy_target.
func (s Setting) AppliesTo(target string) bool {
	section, _, nested := strings.Cut(s.Key, ".")
	if strings.HasPrefix(s.Key, "pod_template") {
		section, nested = "kubernetes", true
	}
	return !nested || section == target
}

// Settings returns the settings of the whole agent, then those of each pool, each in the
// order of the schema.
func (c *Config) Settings() (settings []Setting) {
	for _, p := range c.settings {
		for _, s := range p.settings {
			setting := *s
			setting.Pool = p.pool
			settings = append(settings, setting)
		}
	}
	return settings
}

// poolSettings are the settings of one pool, or of the whole agent. Pools share what they inherit:
// a thousand pools with copies would need 9 MB.
type poolSettings struct {
	pool     string     // empty for the whole agent
	settings []*Setting // without the name of the pool
}

func (l *load) settings(c *Config) []poolSettings {
	process := l.process
	process.Set(valueOr(process, "health_threshold", formatDuration(c.HealthThreshold)), "health_threshold")
	if c.MaxConcurrentWorkflows == 0 {
		process.Set(position.Value{Data: ""}, "max_concurrent_workflows")
	}
	var agent []*Setting
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		if f.plainKey() && (!f.Pool || f.Key == "max_concurrent_workflows") {
			agent = append(agent, f.setting(process, ""))
		}
	}
	all := []poolSettings{{settings: agent}}
	inherited := map[string]*Setting{}
	for _, s := range l.pools {
		all = append(all, poolSettings{s.pool.Name, s.settings(inherited)})
	}
	return all
}

// settings returns the settings of one pool. A setting that pools inherit is the same for all
// pools, and is created once.
func (s *scope) settings(inherited map[string]*Setting) []*Setting {
	// Collect values that differ from those in the file, and the content of the files that
	// settings name.
	t := s.effective
	t["working_directory"] = valueOr(t, "working_directory", s.pool.WorkingDirectory)
	t["token"] = position.Value{At: t["token"].At, Data: ""}
	named := map[string]string{"token_file": "", "ca_file": s.pool.CA, "oidc_token_file": s.pool.OIDCSum}
	if !s.pool.Token.Empty() {
		if _, inline := s.origins["token"]; inline &&
			(s.pool.TokenFile == "" || !s.fromVariable("token_file") || s.fromVariable("token")) {
			t["token"] = position.Value{At: s.origins["token"], Data: s.pool.Token.Reveal()}
		} else {
			named["token_file"] = s.pool.Token.Reveal()
		}
	}
	if _, inline := s.origins["pod_template"]; s.pool.PodTemplate != nil && t["pod_template"].Data == nil && !inline {
		if s.pool.PodTemplateFile == "" {
			t["pod_template_file"] = position.Value{Data: DefaultPodTemplateFile}
		}
		content, _ := json.Marshal(s.pool.PodTemplate)
		named["pod_template_file"] = string(content)
	}

	exclusive := slices.Concat(groups...)
	settings := make([]*Setting, 0, len(s.load.schema.fields))
	for i := range s.load.schema.fields {
		f := &s.load.schema.fields[i]
		if !f.plainKey() || !f.Pool || f.Key == "pools.name" {
			continue
		}
		if s.own(f.Key) || slices.Contains(exclusive, f.Key) || named[f.Key] != "" {
			settings = append(settings, f.setting(t, named[f.Key]))
			continue
		}
		if inherited[f.Key] == nil {
			inherited[f.Key] = f.setting(t, "")
		}
		settings = append(settings, inherited[f.Key])
	}
	return settings
}

// valueOr returns the value of a key, or other if the key is unset.
func valueOr(t position.Mapping, key, other string) position.Value {
	if v := t[key]; v.Data != nil && v.Data != "" {
		return v
	}
	return position.Value{Data: other}
}

// plainKey reports whether the field is a current key of a file, and not a mapping or a list
// of mappings.
func (f *Field) plainKey() bool {
	return !f.OnlyVariable && f.current() && f.Kind != KindMapping && f.Kind != KindMappings
}

// setting returns the setting without the name of its pool.
func (f *Field) setting(t position.Mapping, named string) *Setting {
	v, _ := t.Get(strings.Split(f.Key, ".")...)
	text, _ := json.Marshal(f.meaning(v))
	s := &Setting{Key: f.Key, Origin: v.At, Reload: f.Reload,
		same: secret.New(string(text) + "\x00" + named)}
	switch {
	case v.Data == nil || v.Data == "":
	case f.Secret:
		s.Value = secret.Mark
	default:
		s.Value = flowForm(secret.Mask(v.Plain()))
	}
	return s
}

// meaning returns the value in a form that is equal for all notations of the value.
func (f *Field) meaning(v position.Value) any {
	switch text, _ := v.Data.(string); {
	case f.Kind == KindDuration && v.Data != "":
		d, _ := duration(v.Data)
		return d
	case f.Kind == KindQuantity && v.Data != "":
		n, _ := cores(v.Data)
		return n
	case f.Key == "docker.memory", f.Key == "docker.storage_limit":
		n, _ := size(text)
		return n
	case f.Key == "service_url":
		return strings.TrimRight(text, "/")
	case f.Key == "enabled_workflow_types":
		kinds := reader{position.Mapping{f.Key: v}}.list(f.Key)
		slices.Sort(kinds)
		return slices.Compact(kinds)
	default:
		return v.Plain()
	}
}

// flowForm writes a value in YAML's flow form, on one line. Mappings are in order of
// their keys.
func flowForm(data any) string {
	switch data := data.(type) {
	case nil:
		return "null"
	case string:
		return flowText(data)
	case secret.Masked:
		return flowText(data.String())
	case []any:
		parts := make([]string, len(data))
		for i, entry := range data {
			parts[i] = flowForm(entry)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(data))
		for _, key := range slices.Sorted(maps.Keys(data)) {
			parts = append(parts, flowText(key)+": "+flowForm(data[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		text, _ := json.Marshal(data)
		return string(text)
	}
}

// flowText returns the YAML of a string: the string itself if every parser reads it as the
// same string, otherwise the string in double quotes.
func flowText(text string) string {
	first := func(r byte) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '/' }
	digit := func(r rune) bool { return r >= '0' && r <= '9' }
	other := func(r rune) bool { return r < 0x80 && first(byte(r)) || digit(r) || strings.ContainsRune("_.@=:+-", r) }
	if text != "" && strings.TrimFunc(text, other) == "" && !strings.HasSuffix(text, ":") {
		unit := strings.TrimLeft(text, "0123456789.")
		switch {
		case first(text[0]) &&
			!slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"},
				strings.ToLower(text)):
			return text
		case digit(rune(text[0])) &&
			slices.Contains([]string{"ms", "s", "m", "h", "k", "g", "t", "Ki", "Mi", "Gi", "Ti"}, unit):
			return text
		}
	}
	return strconv.Quote(text)
}
