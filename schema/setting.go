package schema

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Setting is one key of a configuration in force.
type Setting struct {
	Pool   string // name; empty for what concerns the whole agent
	Key    string // with dots: ecs.cluster
	Value  string // as it would stand in the file, in YAML's flow form; [secret] for a secret; empty is unset
	Origin position.Origin
	Reload Class

	same secret.String // the value itself, and what it names
}

// Same reports whether two settings mean the same, also where they name files of
// other content, and where they are secret.
func (s Setting) Same(other Setting) bool { return s.same == other.same }

// Settings returns every key in force, in the order of the schema: those of the
// whole agent, then pool by pool, the same keys for each.
func (c *Config) Settings() []Setting { return c.settings }

func (l *load) settings(c *Config) []Setting {
	settings := make([]Setting, 0, len(l.schema.fields)*(1+len(l.pools)))
	process := l.process
	process.Set(valueOr(process, "health_threshold", short(c.HealthThreshold)), "health_threshold")
	if c.MaxConcurrentWorkflows == 0 {
		process.Set(position.Value{Data: ""}, "max_concurrent_workflows")
	}
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		if f.plainKey() && (!f.Pool || f.Key == "max_concurrent_workflows") {
			settings = append(settings, f.setting("", process, ""))
		}
	}
	inherited := map[string]Setting{}
	for _, s := range l.pools {
		settings = s.settings(settings, inherited)
	}
	return settings
}

// settings adds those of one pool. What pools inherit is the same for all of them,
// and is made once.
func (s *scope) settings(settings []Setting, inherited map[string]Setting) []Setting {
	t := s.effective
	t["working_directory"] = valueOr(t, "working_directory", s.pool.WorkingDirectory)
	t["token"] = position.Value{At: t["token"].At, Data: ""}
	named := map[string]string{"token_file": "", "ca_file": s.pool.CA, "oidc_token_file": s.pool.OIDCSum}
	if !s.pool.Token.Empty() {
		if _, inline := s.places["token"]; inline &&
			(s.pool.TokenFile == "" || !s.above("token_file") || s.above("token")) {
			t["token"] = position.Value{At: s.places["token"], Data: s.pool.Token.Reveal()}
		} else {
			named["token_file"] = s.pool.Token.Reveal()
		}
	}
	if _, inline := s.places["pod_template"]; s.pool.PodTemplate != nil && t["pod_template"].Data == nil && !inline {
		if s.pool.PodTemplateFile == "" {
			t["pod_template_file"] = position.Value{Data: DefaultPodTemplateFile}
		}
		content, _ := json.Marshal(s.pool.PodTemplate)
		named["pod_template_file"] = string(content)
	}
	exclusive := slices.Concat(groups()...)
	for i := range s.load.schema.fields {
		f := &s.load.schema.fields[i]
		if !f.plainKey() || !f.Pool || f.Key == "pools.name" {
			continue
		}
		if s.own(f.Key) || slices.Contains(exclusive, f.Key) || named[f.Key] != "" {
			settings = append(settings, f.setting(s.pool.Name, t, named[f.Key]))
			continue
		}
		setting, made := inherited[f.Key]
		if !made {
			setting = f.setting("", t, "")
			inherited[f.Key] = setting
		}
		setting.Pool = s.pool.Name
		settings = append(settings, setting)
	}
	return settings
}

// valueOr returns the value of a key, or the other text if the key is unset.
func valueOr(t position.Mapping, key, other string) position.Value {
	if v := t[key]; v.Data != nil && v.Data != "" {
		return v
	}
	return position.Value{Data: other}
}

// plainKey reports whether the field is a key of a file that holds one value and
// has an effect.
func (f *Field) plainKey() bool {
	return !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored && f.Kind != KindMapping &&
		f.Kind != KindMappings
}

func (f *Field) setting(pool string, t position.Mapping, named string) Setting {
	v, _ := t.Get(strings.Split(f.Key, ".")...)
	text, _ := json.Marshal(f.meaning(v))
	s := Setting{Pool: pool, Key: f.Key, Origin: v.At, Reload: f.Reload,
		same: secret.New(string(text) + "\x00" + named)}
	switch {
	case v.Data == nil || v.Data == "":
	case f.Secret:
		s.Value = secret.Mark
	default:
		s.Value = flow(masked(v.Data))
	}
	return s
}

// meaning is the value as it is used, so that two spellings of one value are the
// same.
func (f *Field) meaning(v position.Value) any {
	switch text, _ := v.Data.(string); {
	case f.Kind == KindDuration && v.Data != "":
		d, _ := duration(v.Data)
		return d
	case f.Kind == KindQuantity && v.Data != "":
		n, _ := cores(v.Data)
		return n
	case f.Key == "docker.memory":
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

// masked hides where people write secrets: the values of environment variables
// and the command lines in a Pod template, and whatever looks like a token.
func masked(data any) any {
	switch data := data.(type) {
	case position.Mapping:
		shown := position.Mapping{}
		_, named := data["name"]
		for key, v := range data {
			text, isText := v.Data.(string)
			switch {
			case isText && named && key == "value" && text != "":
				v.Data = secret.Mark
			case key == "command" || key == "args":
				v.Data = []position.Value{{Data: secret.Mark}}
			default:
				v.Data = masked(v.Data)
			}
			shown[key] = v
		}
		return shown
	case []position.Value:
		shown := make([]position.Value, len(data))
		for i, v := range data {
			shown[i] = position.Value{Data: masked(v.Data)}
		}
		return shown
	case string:
		if secret.ContainsToken(data) {
			return secret.Mark
		}
		return data
	default:
		return data
	}
}

// flow writes a value in YAML's flow form, on one line. Mappings are in order of
// their keys.
func flow(data any) string {
	switch data := data.(type) {
	case nil:
		return "null"
	case string:
		return flowText(data)
	case []position.Value:
		parts := make([]string, len(data))
		for i, v := range data {
			parts[i] = flow(v.Data)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case position.Mapping:
		parts := make([]string, 0, len(data))
		for _, key := range data.Keys() {
			parts = append(parts, flowText(key)+": "+flow(data[key].Data))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		text, _ := json.Marshal(data)
		return string(text)
	}
}

// flowText writes a text so that YAML reads the same text: as it is where no reader
// could take it for anything else, in double quotes otherwise.
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
