package schema

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

//go:generate go test -run ^TestTheReferenceIsThatOfTheSchema$ -update .

// Meaning says in words when a changed value takes effect.
func (c Class) Meaning() string {
	switch c {
	case ReloadLive:
		return "at once, without touching jobs"
	case ReloadJob:
		return "for jobs claimed from then on"
	case ReloadDrain:
		return "by a new pool beside the old one, which finishes its jobs and claims no more"
	case ReloadRebind:
		return "at once: the new port is opened, and then the old one closed"
	case ReloadRestart:
		return "when the agent is started again"
	default:
		return ""
	}
}

// Takes says what a value of the key is, with its bounds.
func (f Field) Takes() string {
	text := f.sentence()
	switch f.Kind {
	case KindDuration:
		text += ", from " + short(f.Shortest) + " to " + short(f.Longest)
	case KindList:
		if each := f.entrySentence(); each != "text" {
			text += ", each " + each
		} else {
			text += " of texts"
		}
	case KindMapping:
		text = "a mapping of keys"
	case KindTree:
		text = "a part of a Pod"
	case KindAny:
		text = "anything"
	}
	if f.Empty {
		text += "; or nothing"
	}
	return text
}

// Usually is the default in words of the file; "unset" for the empty text.
func (f Field) Usually() string {
	switch f.Default {
	case "":
		return ""
	case `""`:
		return "unset"
	case "[]":
		return "none"
	}
	return defaultOf(f)
}

// defaultOf writes the default as it would stand in a file.
func defaultOf(f Field) string {
	t, problems, ok := parse("", []byte("v: "+f.Default))
	if !ok || len(problems) > 0 {
		return f.Default
	}
	return flow(t["v"].data)
}

// InVariable says how a list or a quantity is written in the key's variable, if
// not as in a file.
func (f Field) InVariable() string {
	switch {
	case f.Separator == ",":
		return "commas between the entries"
	case f.Separator == " ":
		return "blanks between the entries"
	case f.Unit != "":
		return "a number alone meaning " + f.Unit
	default:
		return ""
	}
}

// Example returns lines of YAML that set the key, and end in a line feed. It is
// empty for what no file sets.
func (f Field) Example() string {
	if f.OnlyVariable || f.Old != "" || f.Unused != "" || f.Ignored {
		return ""
	}
	value := examples()[f.Key]
	if value == "" {
		value = defaultOf(f)
	}
	key, indent := f.Key, ""
	outer, inner, nested := strings.Cut(f.Key, ".")
	switch {
	case f.Kind == KindMapping:
		return ""
	case outer == "pools" && nested:
		return "pools:\n  - " + inner + ": " + value + "\n"
	case nested:
		key, indent = inner, "  "
	}
	var b strings.Builder
	if nested {
		b.WriteString(outer + ":\n")
	}
	if !strings.Contains(value, "\n") {
		b.WriteString(indent + key + ": " + value + "\n")
		return b.String()
	}
	b.WriteString(indent + key + ":\n")
	for line := range strings.Lines(value) {
		b.WriteString(indent + "  " + line)
	}
	return b.String()
}

// examples returns a value for each key whose default shows too little.
func examples() map[string]string {
	return map[string]string{
		"token":                             "pul-...",
		"token_file":                        "/etc/cmwa/token",
		"service_url":                       "https://pulumi.example.com",
		"ca_file":                           "/etc/cmwa/ca.pem",
		"working_directory":                 "/opt/cmwa",
		"shared_volume_directory":           "/var/lib/cmwa",
		"deploy_target":                     "kubernetes",
		"single_run":                        "true",
		"pull_image":                        "false",
		"enabled_workflow_types":            "[deployment]",
		"env_forward_allowlist":             "[AWS_PROFILE, AWS_REGION]",
		"oidc_token_file":                   "/var/run/secrets/oidc/token",
		"organization_name":                 "acme",
		"runner_pool_id":                    "3fa85f64-5717-4562-b3fc-2c963f66afa6",
		"token_expiration":                  "2h",
		"polling_interval":                  "30s",
		"polling_interval_override":         "true",
		"job_status_loop_interval":          "10s",
		"request_timeout":                   "1m",
		"request_retry_count":               "4",
		"request_retry_wait":                "5s",
		"request_retry_max_wait":            "5m",
		"circuit_breaker_failures":          "3",
		"circuit_breaker_timeout":           "5m",
		"max_concurrent_workflows":          "4",
		"docker.network":                    "builds",
		"docker.volumes":                    `["cache:/root/.cache", "/srv/ca:/ca:ro"]`,
		"docker.extra_hosts":                `["git.internal:10.0.0.5"]`,
		"docker.memory":                     "4Gi",
		"docker.cpus":                       "1.5",
		"docker.user":                       `"1000:1000"`,
		"docker.labels":                     "[team=platform]",
		"kubernetes.namespace":              "builds",
		"kubernetes.image":                  "registry.example.com/cmwa:1.2.3",
		"kubernetes.image_pull_policy":      "Always",
		"kubernetes.service_account":        "workflow-runner",
		"kubernetes.cpu":                    "500m",
		"kubernetes.memory":                 "4Gi",
		"kubernetes.keep_failed_pods":       "true",
		"pod_template":                      "spec:\n  nodeSelector:\n    kubernetes.io/arch: arm64\n",
		"pod_template_file":                 "/etc/cmwa/worker-pod.yaml",
		"ecs.cluster":                       "builds",
		"ecs.subnets":                       "[subnet-0a1b2c, subnet-3d4e5f]",
		"ecs.security_groups":               "[sg-0a1b2c]",
		"ecs.launch_type":                   "EC2",
		"ecs.assign_public_ip":              "true",
		"ecs.task_definition_template_file": "/etc/cmwa/task.json",
		"pools":                             "- name: linux\n  token_file: /etc/cmwa/linux\n- name: arm\n  token_file: /etc/cmwa/arm\n  deploy_target: kubernetes\n",
		"pools.name":                        "linux",
		"http_server_port":                  "9090",
		"health_threshold":                  "5m",
		"syslog":                            "true",
		"log_level":                         "debug",
		"log_format":                        "json",
		"shutdown_timeout":                  "15m",
	}
}

// referenceWidth is the longest line of the reference, in columns.
const referenceWidth = 100

// Reference returns a configuration file in which every key stands with its
// documentation, commented out, at its default or, where that is nothing, with an
// example. It is the manual.
func Reference() ([]byte, error) {
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	r := &reference{fields: fields}
	r.prose("", "Every key of "+FileName+", and the manual of it. A key that is commented out stands here at its default, or with an example where "+
		"the default is to be unset. To set one, remove the # before it, and no more: what follows # and a blank is prose. "+
		"cmwa explain KEY tells the same, and cmwa vet checks a file.")
	r.line("")
	r.prose("", "In brackets stands what a key takes, its default, its variable, and when a change takes effect in a running agent:")
	for _, c := range classes() {
		lines := wrap(c.Meaning(), referenceWidth-13)
		for i, line := range lines {
			name := ""
			if i == 0 {
				name = string(c)
			}
			r.line(fmt.Sprintf("#   %-9s%s", name, line))
		}
	}
	r.prose("", "A variable that is set and not empty wins over the file, and stays as it was when the agent started. Blanks around it do not count. "+
		"Units of a duration are h, m, s and ms, as in 1h30m.")
	r.line("")
	r.prose("", "This file is generated from schema/schema.cue by go generate ./schema.")
	r.heading("What a pool may set for itself. Here it holds for all pools that do not.")
	for _, f := range fields {
		if f.Pool && f.plainTop() {
			r.key(f)
		}
	}
	r.heading("Pools.")
	for _, f := range fields {
		if f.Kind == KindMappings {
			r.key(f)
		}
	}
	r.heading("What holds for the whole agent.")
	for _, f := range fields {
		if !f.Pool && f.plainTop() && f.Kind != KindMappings {
			r.key(f)
		}
	}
	r.heading("What only variables say.")
	for _, f := range fields {
		if f.OnlyVariable {
			r.line("")
			r.prose("", f.Variable+": "+lowerFirst(f.Doc)+" ["+f.Takes()+"]")
		}
	}
	r.heading("Old names and keys without effect. cmwa vet warns of those that should be changed.")
	for _, f := range fields {
		switch {
		case f.Old != "":
			r.line("")
			r.prose("", f.Key+": an old name of "+f.Old+". "+f.Doc)
		case f.Unused != "":
			r.line("")
			r.prose("", f.Key+": without effect, because "+f.Unused+". "+f.Doc)
		case f.Ignored:
			r.line("")
			r.prose("", f.Key+": without effect. "+f.Doc)
		}
	}
	return r.Bytes(), nil
}

// plainTop reports whether a key stands at the top level today.
func (f Field) plainTop() bool {
	return !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored && !strings.Contains(f.Key, ".")
}

// reference is the file as far as it is written.
type reference struct {
	bytes.Buffer
	fields []Field
}

func (r *reference) line(text string) { r.WriteString(strings.TrimRight(text, " ") + "\n") }

// prose writes a paragraph as comment lines that begin with a prefix.
func (r *reference) prose(prefix, text string) {
	for _, line := range wrap(text, referenceWidth-len(prefix)-2) {
		r.line(prefix + "# " + line)
	}
}

func (r *reference) heading(text string) {
	r.line("")
	r.line("# " + strings.Repeat("-", 40))
	r.prose("", text)
}

func (r *reference) key(f Field) {
	r.line("")
	r.prose("", f.Doc)
	if f.Kind == KindMapping {
		r.line("#" + f.Key + ":")
		for _, inner := range r.fields {
			if strings.HasPrefix(inner.Key, f.Key+".") {
				r.prose("#  ", inner.Doc)
				r.prose("#  ", inner.facts())
				r.setting("#  ", strings.TrimPrefix(inner.Key, f.Key+"."), inner)
			}
		}
		return
	}
	r.prose("", f.facts())
	for _, inner := range r.fields {
		if key, ok := strings.CutPrefix(inner.Key, f.Key+"."); ok {
			r.prose("", key+": "+lowerFirst(inner.Doc)+" "+inner.facts())
		}
	}
	if f.Key == "token_file" {
		r.prose("", "It is set here because a configuration without any credentials is none.")
		r.setting("", f.Key, f)
		return
	}
	r.setting("#", f.Key, f)
}

// setting writes the key itself after a prefix that may comment it out.
func (r *reference) setting(prefix, key string, f Field) {
	value := defaultOf(f)
	if usual := f.Usually(); usual == "" || usual == "unset" || usual == "none" {
		value = examples()[f.Key]
	}
	if !strings.Contains(value, "\n") {
		r.line(prefix + key + ": " + value)
		return
	}
	r.line(prefix + key + ":")
	for line := range strings.Lines(value) {
		r.line(prefix + "  " + strings.TrimSuffix(line, "\n"))
	}
}

// facts is everything but the meaning, in brackets.
func (f Field) facts() string {
	facts := []string{f.Takes()}
	if f.Required {
		facts = append(facts, "required")
	}
	if usual := f.Usually(); usual != "" {
		facts = append(facts, "default "+usual)
	}
	if f.Secret {
		facts = append(facts, "secret")
	}
	if f.Variable != "" {
		facts = append(facts, strings.TrimSuffix(f.Variable+" with "+f.InVariable(), " with "))
	}
	if f.Reload != "" {
		facts = append(facts, string(f.Reload))
	}
	return "[" + strings.Join(facts, "; ") + "]"
}

// Overview returns a table of all keys and of the settings that only variables
// say, one line each, no longer than width columns.
func Overview(width int) (string, error) {
	fields, err := Fields()
	if err != nil {
		return "", err
	}
	const defaults, gap = 12, "  "
	keys := 0
	for _, f := range fields {
		if !f.OnlyVariable {
			keys = max(keys, len(f.Key))
		}
	}
	var b strings.Builder
	row := func(key, usual, class, meaning string) {
		room := max(20, width-keys-defaults-len("restart")-3*len(gap))
		line := fmt.Sprintf("%-*s%s%s%s%-7s%s%s", keys, key, gap, padded(cut(usual, defaults), defaults), gap, class, gap, cut(meaning, room))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("KEY", "DEFAULT", "CHANGES", "MEANING")
	for _, f := range fields {
		if !f.OnlyVariable && f.Old == "" && f.Unused == "" && !f.Ignored {
			row(f.Key, f.Usually(), string(f.Reload), f.headline())
		}
	}
	b.WriteString("\nVARIABLES WITHOUT A KEY\n")
	for _, f := range fields {
		if f.OnlyVariable {
			b.WriteString(cut(f.Variable+gap+f.headline(), width) + "\n")
		}
	}
	b.WriteString("\nCHANGES TAKE EFFECT\n")
	for _, c := range classes() {
		for i, line := range wrap(c.Meaning(), width-9) {
			name := ""
			if i == 0 {
				name = string(c)
			}
			fmt.Fprintf(&b, "%-9s%s\n", name, line)
		}
	}
	return b.String(), nil
}

func classes() []Class {
	return []Class{ReloadLive, ReloadJob, ReloadDrain, ReloadRebind, ReloadRestart}
}

// headline is the beginning of the documentation, as far as it can stand alone.
func (f Field) headline() string {
	text := f.Doc
	for _, end := range []string{". ", "; ", ": ", ", each as "} {
		text, _, _ = strings.Cut(text, end)
	}
	return strings.TrimSuffix(text, ".")
}

// listed is what a field goes by in a list: its key, or the variable where there
// is no key.
func (f Field) listed() string {
	if f.OnlyVariable {
		return f.Variable
	}
	return f.Key
}

// Names returns what [Explain] knows: keys, old ones too, in the order of the
// schema, then variables, then the rules of [Vet].
func Names() ([]string, error) {
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	var keys, variables, rules []string
	for _, f := range fields {
		if !f.OnlyVariable {
			keys = append(keys, f.Key)
		}
		if f.Variable != "" {
			variables = append(variables, f.Variable)
		}
	}
	for _, info := range Rules() {
		rules = append(rules, string(info.Rule))
	}
	return slices.Concat(keys, variables, rules), nil
}

// Explain returns everything about the key, the variable or the rule of a name,
// in lines of at most width columns where words allow. The error says what the name may be
// meant to be.
func Explain(name string, width int) (string, error) {
	fields, err := Fields()
	if err != nil {
		return "", err
	}
	name = strings.TrimSuffix(name, ":")
	for _, f := range fields {
		if f.Key == name || f.Variable == name && name != "" {
			return explained(f, fields, width), nil
		}
	}
	for _, info := range Rules() {
		if string(info.Rule) == name {
			return strings.Join([]string{name, "", "  " + info.Description + ".", "", "  a rule of cmwa vet", ""}, "\n"), nil
		}
	}
	names, err := Names()
	if err != nil {
		return "", err
	}
	var within []string
	for _, key := range names {
		if strings.HasSuffix(key, "."+name) {
			within = append(within, key)
		}
	}
	best := Closest(name, slices.DeleteFunc(slices.Clone(names), func(known string) bool {
		return strings.HasPrefix(known, prefix) != strings.HasPrefix(strings.ToUpper(name), prefix)
	}))
	switch {
	case len(within) > 0:
		return "", fmt.Errorf("there is no key %q: did you mean %s?", name, strings.Join(within, " or "))
	case best != "":
		return "", fmt.Errorf("there is no key %q: did you mean %s?", name, best)
	default:
		return "", fmt.Errorf("there is no key %q: cmwa explain lists all of them", name)
	}
}

func explained(f Field, fields []Field, width int) string {
	var b strings.Builder
	b.WriteString(f.listed() + "\n\n")
	for _, line := range wrap(f.Doc, width-2) {
		b.WriteString("  " + line + "\n")
	}
	b.WriteString("\n")
	fact := func(name, text string) {
		const indent = 14
		for i, line := range wrap(text, width-indent) {
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(&b, "  %-12s%s\n", name, line)
		}
	}
	switch {
	case f.Old != "":
		fact("old name of", f.Old)
		return b.String()
	case f.Unused != "":
		fact("no effect", f.Unused)
		return b.String()
	case f.Ignored:
		fact("no effect", "it may stay")
		return b.String()
	}
	fact("takes", f.Takes())
	fact("default", f.Usually())
	if f.Required {
		fact("default", "none: it must be set")
	}
	if how := f.InVariable(); how != "" {
		fact("variable", f.Variable+", with "+how)
	} else {
		fact("variable", f.Variable)
	}
	if f.Secret {
		fact("secret", "the value is never shown")
	}
	if f.Reload != "" {
		fact("changes", string(f.Reload)+": "+f.Reload.Meaning())
	}
	switch {
	case f.OnlyVariable:
		fact("where", "only in the variable")
	case strings.HasPrefix(f.Key, "pools."):
		fact("where", "in an entry of pools")
	case f.Pool:
		fact("where", "at the top level for all pools, or in an entry of pools")
	default:
		fact("where", "at the top level")
	}
	for _, other := range fields {
		if other.Old == f.Key {
			fact("old name", other.Key)
		}
	}
	b.WriteString(inner(f, fields, width))
	if example := f.Example(); example != "" {
		b.WriteString("\n")
		for line := range strings.Lines(example) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

// inner lists the keys within a mapping.
func inner(f Field, fields []Field, width int) string {
	var b strings.Builder
	longest := 0
	for _, in := range fields {
		if strings.HasPrefix(in.Key, f.Key+".") {
			longest = max(longest, len(in.Key))
		}
	}
	for _, in := range fields {
		if strings.HasPrefix(in.Key, f.Key+".") {
			b.WriteString("  " + cut(fmt.Sprintf("%-*s  %s", longest, in.Key, in.headline()), width-2) + "\n")
		}
	}
	if f.Kind == KindMappings {
		var own []string
		for _, in := range fields {
			if in.Pool && in.plainTop() {
				own = append(own, in.Key)
			}
		}
		b.WriteString("\n")
		for _, line := range wrap("An entry may also set, for itself: "+strings.Join(own, ", ")+".", width-2) {
			b.WriteString("  " + line + "\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

// cut shortens a text to a width in columns, at a blank if it can.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	short := string([]rune(text)[:width-1])
	if end := strings.LastIndexByte(short, ' '); end > width/2 {
		short = short[:end]
	}
	return strings.TrimRight(short, " ,;:") + "…"
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func lowerFirst(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// wrap breaks a text into lines of at most width columns, at blanks. A longer
// word has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line, columns := "", 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if line != "" && columns+1+n > width {
			lines = append(lines, line)
			line, columns = "", 0
		}
		if line != "" {
			line += " "
			columns++
		}
		line += word
		columns += n
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
