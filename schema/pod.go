package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
)

// The rules of pod templates.
const (
	RulePodTemplate    Rule = "pod-template"    // what the API server, or the merge before it, would refuse
	RuleProtectedField Rule = "protected-field" // a part of the Pod that belongs to the agent
)

// CheckPod checks a file that holds a pod template, YAML or JSON. The problems
// are sorted, and none quotes a value. It takes time in proportion to the file,
// which parse bounds, and is safe for concurrent use.
func CheckPod(file string, content []byte) Problems {
	v, problems, ok := parsePod(file, content)
	if ok {
		problems = append(problems, podTemplate(v, "")...)
	}
	problems.sort()
	return problems
}

// escapes are what a backslash begins in JSON, two halves of one character taken
// together.
var escapes = regexp.MustCompile(`\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u])`)

// parsePod reads a template file, YAML or JSON. An empty file and {} are an empty
// template. Two escapes of JSON that the YAML library does not know are put in
// its words, which may move what follows in the same line by some columns.
func parsePod(file string, content []byte) (value, Problems, bool) {
	if json.Valid(content) {
		content = escapes.ReplaceAllFunc(content, func(escape []byte) []byte {
			switch {
			case string(escape) == `\/`:
				return []byte("/")
			case len(escape) == 2:
				return escape
			}
			high, _ := strconv.ParseUint(string(escape[2:6]), 16, 16)
			low, _ := strconv.ParseUint(string(escape[8:12]), 16, 16)
			return fmt.Appendf(nil, `\U%08X`, utf16.DecodeRune(rune(high), rune(low)))
		})
	}
	t, problems, ok := parse(file, content)
	for i := range problems {
		if problems[i].Rule == RuleSyntax && problems[i].Line == 1 && t == nil && strings.HasPrefix(problems[i].Hint, "write lines such as") {
			problems[i].Hint = "write a Pod, or the part of one that is to change"
		}
	}
	return value{at: Origin{File: file, Line: 1, Column: 1}, data: t}, problems, ok
}

// isPod reports whether a document looks like a Pod or a pod template, and not
// like a configuration of the agent.
func isPod(t table) bool {
	if kind, ok := t["kind"].data.(string); ok {
		return kind == "Pod" || kind == "PodTemplate" || kind == "PodTemplateSpec"
	}
	for _, key := range []string{"spec", "metadata"} {
		if _, ok := t[key].data.(table); ok {
			return true
		}
	}
	return false
}

// podTemplate checks one pod template: a Pod, or a part of one, that is laid over
// the generated Pod as a strategic merge patch. v is the template as it is
// written, and at its path, which is empty for a file of its own. It returns all
// problems at once, in no particular order; none quotes a value.
//
// CUE judges the values, this package the keys and whatever a value alone cannot
// tell: what a whole object needs, what the merge would stumble over, what is
// the agent's, and what does not go together.
func podTemplate(v value, at string) Problems {
	types, err := readPodTypes()
	if err != nil {
		return Problems{{Rule: RuleInternal, File: v.at.File, Line: v.at.Line, Path: at, Message: "cannot be checked: the schema is at fault"}}
	}
	c := &podCheck{types: types, places: map[string]podPlace{}, used: map[*podField]bool{}, said: map[Problem]bool{}}
	switch data := v.data.(type) {
	case nil:
		return nil
	case table:
		c.protect(podNode{v: v, path: at})
		clean := c.mapping(data, v, "#Pod", podStep{path: at, loose: true})
		c.judge(clean)
		v.data = clean
		c.rules(podNode{v: v, path: at})
	default:
		c.report(RulePodTemplate, v.at, at, "must be a mapping of keys to values", "write a Pod, or the part of one that is to change")
	}
	return c.problems
}

// podCheck is the check of one template.
type podCheck struct {
	types    podTypes
	problems Problems
	said     map[Problem]bool
	places   map[string]podPlace // what CUE is asked about, by the steps to it
	used     map[*podField]bool
}

// podPlace is a value that CUE may refuse.
type podPlace struct {
	v    value
	path string
	f    *podField
}

// podStep is where the walk is.
type podStep struct {
	path  string   // for people
	steps []string // for CUE
	loose bool     // laid over an object of the agent's, so that nothing is missing
	plain bool     // within what is taken over as it is, where directives mean nothing
}

// to goes on to a word of the schema or to an entry of a list.
func (s podStep) to(key string) podStep {
	s.path = join(s.path, key)
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// into goes on to a key that the template chose.
func (s podStep) into(key string) podStep {
	s.path = join(s.path, shown(key))
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

func (c *podCheck) report(rule Rule, at Origin, path, message, hint string) {
	p := Problem{Rule: rule, File: at.File, Line: at.Line, Column: at.Column, Path: path, Message: message, Hint: hint}
	if !c.said[p] {
		c.said[p] = true
		c.problems = append(c.problems, p)
	}
}

func (c *podCheck) warn(at Origin, path, message, hint string) {
	c.problems = append(c.problems, warning(RulePodTemplate, at, path, message, hint))
}

// mapping checks the keys of a mapping and returns it without what is not data:
// unknown keys, directives, and the nulls that take keys away.
func (c *podCheck) mapping(t table, v value, ref string, s podStep) table {
	fields := c.types.fields(ref)
	clean := table{}
	if !s.plain && text(t, "$patch") == "delete" {
		return clean
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		inner := t[key]
		if strings.HasPrefix(key, "$") && !s.plain {
			c.directive(t, key, fields, s)
			continue
		}
		f := fields[key]
		if f == nil {
			c.unknown(key, inner, ref, s)
			continue
		}
		if inner.data == nil {
			continue
		}
		c.used[f] = true
		clean[key] = c.value(inner, f, c.below(s, ref, key))
	}
	if !s.loose {
		c.needed(clean, v, ref, s)
	}
	return clean
}

// below says where the walk is one key deeper. Only the Pod, its metadata, its
// spec and the main container are there before the template.
func (c *podCheck) below(s podStep, ref, key string) podStep {
	s.loose = s.loose && ref == "#Pod" && (key == "metadata" || key == "spec")
	return s.to(key)
}

// needed reports what a whole object lacks.
func (c *podCheck) needed(t table, v value, ref string, s podStep) {
	for key, f := range c.types.fields(ref) {
		if !f.need {
			continue
		}
		inner, ok := t[key]
		empty := false
		switch data := inner.data.(type) {
		case string:
			empty = data == "" && !f.empty
		case []value:
			empty = len(data) == 0
		}
		switch {
		case !ok:
			c.report(RulePodTemplate, v.at, s.path, "needs "+key, "")
		case empty:
			c.report(RulePodTemplate, inner.at, join(s.path, key), "must not be empty", "")
		}
	}
}

func (c *podCheck) value(v value, f *podField, s podStep) value {
	c.places[strings.Join(s.steps, "\x00")] = podPlace{v: v, path: s.path, f: f}
	switch data := v.data.(type) {
	case table:
		switch f.kind {
		case podMapping:
			v.data = c.mapping(data, v, f.ref, s)
		case podMap:
			v.data = c.entries(data, f, s)
		}
	case []value:
		if f.kind == podList {
			v.data = c.list(data, f, s)
		}
	}
	return v
}

// entries checks a mapping of any keys, such as labels.
func (c *podCheck) entries(t table, f *podField, s podStep) table {
	clean := table{}
	var pattern []*regexp.Regexp
	if f.keys != "" {
		pattern = c.types[f.keys].leaf.patterns()
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		v := t[key]
		if strings.HasPrefix(key, "$") && !s.plain {
			c.directive(t, key, nil, s)
			continue
		}
		prefix, _, _ := strings.Cut(key, "/")
		if len(prefix) > 253 || slices.ContainsFunc(pattern, func(p *regexp.Regexp) bool { return !p.MatchString(key) }) {
			c.report(RulePodTemplate, v.key, join(s.path, shown(key)), "the key must be "+c.types.sentence(&c.types[f.keys].leaf), "")
			continue
		}
		if v.data == nil {
			continue
		}
		clean[key] = c.value(v, f.entry, s.into(key))
	}
	return clean
}

// list checks the entries of a list. Mappings that are directives are left empty,
// so that the others keep their places.
func (c *podCheck) list(list []value, f *podField, s podStep) []value {
	clean := make([]value, 0, len(list))
	for i, v := range list {
		inner := podStep{path: s.to(strconv.Itoa(i)).path, steps: s.to(strconv.Itoa(len(clean))).steps, plain: s.plain || !f.merges}
		t, isTable := v.data.(table)
		isTable = isTable && f.entry.kind == podMapping
		switch {
		case v.data == nil:
			c.report(RulePodTemplate, v.at, inner.path, "must have a value", "write one, or remove the dash")
			if f.entry.kind == podMapping {
				clean = append(clean, value{at: v.at, data: table{}})
			}
		case isTable && !inner.plain && c.entryDirective(t, v, f, inner):
			clean = append(clean, value{at: v.at, data: table{}})
		default:
			if isTable {
				inner.loose = f.entry.ref == "#Container" && s.path[strings.LastIndexByte(s.path, '.')+1:] == "containers" && text(t, "name") == mainContainer
			}
			if isTable && f.mergeKey != "" && !inner.plain {
				c.mergeKey(t, v, f, inner)
			}
			inner.plain = inner.plain || isTable && !inner.loose
			clean = append(clean, c.value(v, f.entry, inner))
		}
	}
	return clean
}

// mergeKey reports an entry that the merge could not tell from the others, unless
// a whole object needs the key anyway.
func (c *podCheck) mergeKey(t table, v value, f *podField, s podStep) {
	key := c.types.fields(f.entry.ref)[f.mergeKey]
	if t[f.mergeKey].data == nil && (key == nil || !key.need || s.loose) {
		c.report(RulePodTemplate, v.at, s.path, "needs "+f.mergeKey, "entries of this list are told apart by it")
	}
}

// unknown reports a key that no Pod has.
func (c *podCheck) unknown(key string, v value, ref string, s podStep) {
	c.report(RuleUnknownKey, v.key, join(s.path, shown(key)), "unknown key", c.suggestion(key, ref))
}

// podSynonyms are what people call a key, if it is not spelt like it.
var podSynonyms = map[string]string{
	"environment": "env", "enviroment": "env", "variables": "env", "mounts": "volumeMounts", "pvc": "persistentVolumeClaim", "secretRef": "secretKeyRef",
	"configMapRef": "configMapKeyRef", "user": "runAsUser", "group": "runAsGroup", "grace": "terminationGracePeriodSeconds", "secrets": "secret", "http": "httpGet", "tcp": "tcpSocket",
}

// suggestion says where an unknown key belongs, or what it may stand for.
func (c *podCheck) suggestion(key, ref string) string {
	fields := c.types.fields(ref)
	mean := func(word string) string { return fmt.Sprintf("did you mean %q?", word) }
	switch {
	case strings.HasPrefix(key, "$"):
		return "$patch, $retainKeys, $setElementOrder/KEY and $deleteFromPrimitiveList/KEY direct the merge, but not within what is new or replaced as a whole"
	case ref == "#Pod" && (key == "template" || key == "pod_template" || key == "podTemplate"):
		return "write what stands under it, and not the key itself"
	case ref == "#PodSecurityContext" && c.types.fields("#SecurityContext")[key] != nil:
		return "write " + key + ": within securityContext: of a container"
	case ref == "#PodSpec" && c.types.fields("#Container")[key] != nil:
		return "write " + key + ": in an entry of containers:"
	case fields[podSynonyms[key]] != nil:
		return mean(podSynonyms[key])
	}
	words := slices.Sorted(maps.Keys(fields))
	for _, outer := range words {
		if f := fields[outer]; f.kind == podMapping && c.types.fields(f.ref)[key] != nil {
			return "write " + key + ": within " + outer + ":"
		}
	}
	if best := Closest(key, slices.Clone(words)); best != "" {
		return mean(best)
	}
	var ends []string
	for _, word := range words {
		long, short := strings.ToLower(word), strings.ToLower(key)
		if len(short) >= 4 && strings.HasSuffix(long, short) || len(long) >= 4 && strings.HasSuffix(short, long) {
			ends = append(ends, word)
		}
	}
	if len(ends) == 1 {
		return mean(ends[0])
	}
	return ""
}

// judge asks CUE about the values. It compiles no more of the schema than the
// template makes use of, in a context that is then thrown away.
func (c *podCheck) judge(clean table) {
	context := cuecontext.New()
	root := context.CompileString(c.types.source(c.used))
	pod := root.LookupPath(cue.ParsePath("#Pod"))
	if pod.Err() != nil {
		c.problems = append(c.problems, Problem{Rule: RuleInternal, Message: "cannot be checked: the schema is at fault"})
		return
	}
	refused := map[string]bool{}
	outer := map[string]bool{}
	for _, e := range errors.Errors(pod.Unify(context.Encode(clean.plain())).Validate(cue.Concrete(true))) {
		steps := slices.Clone(e.Path())
		if len(steps) > 0 && steps[0] == "#Pod" {
			steps = steps[1:]
		}
		for i, step := range steps {
			if text, err := strconv.Unquote(step); err == nil {
				steps[i] = text
			}
			outer[strings.Join(steps[:i], "\x00")] = true
		}
		refused[strings.Join(steps, "\x00")] = true
	}
	for _, steps := range slices.Sorted(maps.Keys(refused)) {
		if outer[steps] {
			continue
		}
		place, ok := c.places[steps]
		if !ok {
			c.problems = append(c.problems, Problem{Rule: RuleInternal, Message: "a value of the template is refused, and the program cannot tell why"})
			continue
		}
		if !slices.ContainsFunc(c.problems, func(p Problem) bool {
			return p.Path == place.path && p.Line == place.v.at.Line && p.Column == place.v.at.Column
		}) {
			c.report(RulePodTemplate, place.v.at, place.path, "must be "+c.types.sentence(place.f), c.hint(place))
		}
	}
}

// byteUnit is how people write an amount of memory outside of Kubernetes.
var byteUnit = regexp.MustCompile(`^[0-9.]+ ?([kKMGTPE]i?)?[bB]?$`)

// hint says what to write instead, where the kind of the value tells.
func (c *podCheck) hint(place podPlace) string {
	must := c.types.sentence(place.f)
	switch data := place.v.data.(type) {
	case string:
		if best := Closest(data, c.types.choices(place.f)); best != "" {
			return fmt.Sprintf("did you mean %s?", best)
		}
		if must == "true or false" && slices.Contains([]string{"yes", "on", "no", "off", "y", "n", "true", "false"}, strings.ToLower(data)) {
			return "write true or false, in small letters and without quotes"
		}
		if strings.Contains(must, "quantity") && byteUnit.MatchString(data) {
			return "leave out the blank and the B: 4Gi, 512Mi or 4G"
		}
		if _, err := strconv.Atoi(data); err == nil && strings.HasPrefix(must, "a whole number") {
			return "remove the quotes"
		}
		if place.f.kind == podList {
			return "write each entry in a line of its own, after a dash"
		}
	case bool, int, int64, uint64, float64:
		if must == "text" || strings.HasPrefix(must, "at most 63") {
			return "put the value in quotes"
		}
		if place.f.kind == podList {
			return "write each entry in a line of its own, after a dash"
		}
	case []value:
		if place.f.kind == podLeaf {
			return "write one value, without brackets or dashes"
		}
	case table:
		if place.f.kind == podList {
			return "put a dash before each entry"
		}
	}
	return ""
}
