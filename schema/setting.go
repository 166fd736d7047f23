package schema

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Setting is one key of a configuration in force.
type Setting struct {
	Pool   string // name; empty for what concerns the whole agent
	Key    string // with dots: ecs.cluster
	Value  string // as it would stand in the file, in YAML's flow form; [secret] for a secret; empty is unset
	Origin Origin
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
	settings := make([]Setting, 0, len(l.fields)*(1+len(l.pools)))
	process := l.process
	process.set(value{data: short(c.HealthThreshold)}.unless(process, "health_threshold"), "health_threshold")
	if c.MaxConcurrentWorkflows == 0 {
		process.set(value{data: ""}, "max_concurrent_workflows")
	}
	for i := range l.fields {
		f := &l.fields[i]
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
	t := s.whole
	t["working_directory"] = value{data: s.pool.WorkingDirectory}.unless(t, "working_directory")
	t["token"] = value{at: t["token"].at, data: ""}
	named := map[string]string{"token_file": "", "ca_file": s.pool.CA, "oidc_token_file": s.pool.OIDCSum}
	if !s.pool.Token.Empty() {
		if _, inline := s.places["token"]; inline && (s.pool.TokenFile == "" || !s.above("token_file") || s.above("token")) {
			t["token"] = value{at: s.places["token"], data: s.pool.Token.Reveal()}
		} else {
			named["token_file"] = s.pool.Token.Reveal()
		}
	}
	if _, inline := s.places["pod_template"]; s.pool.PodTemplate != nil && t["pod_template"].data == nil && !inline {
		if s.pool.PodTemplateFile == "" {
			t["pod_template_file"] = value{data: DefaultPodTemplateFile}
		}
		content, _ := json.Marshal(s.pool.PodTemplate)
		named["pod_template_file"] = string(content)
	}
	exclusive := slices.Concat(groups()...)
	for i := range s.fields {
		f := &s.fields[i]
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

// unless returns the value that t has for the key, if that says anything.
func (v value) unless(t table, key string) value {
	if there := t[key]; there.data != nil && there.data != "" {
		return there
	}
	return v
}

// plainKey reports whether the field is a key of a file that holds one value and
// has an effect.
func (f *Field) plainKey() bool {
	return !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored && f.Kind != KindMapping && f.Kind != KindMappings
}

func (f *Field) setting(pool string, t table, named string) Setting {
	v, _ := t.get(strings.Split(f.Key, ".")...)
	text, _ := json.Marshal(f.meaning(v))
	s := Setting{Pool: pool, Key: f.Key, Origin: v.at, Reload: f.Reload, same: secret.New(string(text) + "\x00" + named)}
	switch {
	case v.data == nil || v.data == "":
	case f.Secret:
		s.Value = secret.Mark
	default:
		s.Value = flow(masked(v.data))
	}
	return s
}

// meaning is the value as it is used, so that two spellings of one value are the
// same.
func (f *Field) meaning(v value) any {
	switch text, _ := v.data.(string); {
	case f.Kind == KindDuration && v.data != "":
		d, _ := duration(v.data)
		return d
	case f.Kind == KindQuantity && v.data != "":
		n, _ := cores(v.data)
		return n
	case f.Key == "docker.memory":
		n, _ := size(text)
		return n
	case f.Key == "service_url":
		return strings.TrimRight(text, "/")
	case f.Key == "enabled_workflow_types":
		kinds := reader{table{f.Key: v}}.list(f.Key)
		slices.Sort(kinds)
		return slices.Compact(kinds)
	default:
		return v.plain()
	}
}

// masked hides where people write secrets: the values of environment variables
// and the command lines in a Pod template, and whatever looks like a token.
func masked(data any) any {
	switch data := data.(type) {
	case table:
		shown := table{}
		_, named := data["name"]
		for key, v := range data {
			text, isText := v.data.(string)
			switch {
			case isText && named && key == "value" && text != "":
				v.data = secret.Mark
			case key == "command" || key == "args":
				v.data = []value{{data: secret.Mark}}
			default:
				v.data = masked(v.data)
			}
			shown[key] = v
		}
		return shown
	case []value:
		shown := make([]value, len(data))
		for i, v := range data {
			shown[i] = value{data: masked(v.data)}
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
	case []value:
		parts := make([]string, len(data))
		for i, v := range data {
			parts[i] = flow(v.data)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case table:
		parts := make([]string, 0, len(data))
		for _, key := range data.sortedKeys() {
			parts = append(parts, flowText(key)+": "+flow(data[key].data))
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
		case first(text[0]) && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(text)):
			return text
		case digit(rune(text[0])) && slices.Contains([]string{"ms", "s", "m", "h", "k", "g", "t", "Ki", "Mi", "Gi", "Ti"}, unit):
			return text
		}
	}
	return strconv.Quote(text)
}
