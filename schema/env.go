package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// prefix is the beginning of the names of the agent's variables.
const prefix = "PULUMI_AGENT_"

// defaultImage is a variable of the self-hosted service that people also set for agents.
const defaultImage = "PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE"

// overrideImage is the only variable of the agent whose name does not begin with prefix.
const overrideImage = "PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE"

// decideToken are the keys that decide which token the agent sends, and to which service.
var decideToken = []string{
	"service_url", "token", "token_file", "oidc_token_file", "organization_name", "runner_pool_id",
}

// fromVariable parses the text of a field's variable, which must have no white space around
// it. ok is false if the text does not have the kind of the field. Bounds are not checked here.
func (f *Field) fromVariable(text string) (v position.Value, ok bool) {
	v.At = position.Origin{Variable: f.Variable}
	var err error
	switch f.Kind {
	case KindBool:
		v.Data, err = strconv.ParseBool(text)
		return v, err == nil
	case KindInt:
		v.Data, err = strconv.Atoi(text)
		return v, err == nil
	case KindList:
		entries := []position.Value{}
		parts := strings.Split(text, f.Separator)
		if f.Separator == " " {
			parts = strings.Fields(text) // line ends also separate entries
		}
		for _, part := range parts {
			if part = strings.TrimSpace(part); part != "" {
				entries = append(entries, position.Value{At: v.At, Data: part})
			}
		}
		v.Data = entries
		return v, true
	case KindDuration:
		if seconds, err := strconv.Atoi(text); err == nil && f.Seconds {
			v.Data = seconds
			return v, true
		}
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && f.Unit != "" {
		text += f.Unit
	}
	v.Data = text
	return v, true
}

// unknownVariables returns warnings about variables whose names resemble those of the agent's
// variables, but which have no effect, and errors about removed ones and about those that
// resemble a variable of decideToken.
func (d *definition) unknownVariables(environ map[string]string) position.Problems {
	var problems position.Problems
	linked := regexp.MustCompile(`^` + prefix +
		`(.+_)?(SERVICE_HOST=.*|SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+|PORT=[a-z]+://.*|` +
		`PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)$`)
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		p := position.Problem{Severity: position.Warning, Path: position.SafeName(name)}
		switch {
		case strings.TrimSpace(environ[name]) == "" || d.byVariable[name] != nil:
			continue
		case name == defaultImage:
			p.Rule = position.RuleUnused
			p.Message = "has no effect on an agent; it belongs to the service"
			p.Hint = "to replace the image of every job, set " + d.variableOf("override_image")
		case linked.MatchString(name + "=" + environ[name]):
			// Kubernetes sets it in every Pod of the namespace if a Service is named pulumi-agent.
			continue
		case strings.HasPrefix(name, prefix):
			p.Rule = position.RuleUnknownVariable
			p.Message = "no key has this variable"
			if p.Hint = removed[name]; p.Hint != "" {
				p.Severity = position.Error
			} else if best := position.Closest(name, slices.Collect(maps.Keys(d.byVariable))); best != "" {
				p.Hint = "did you mean " + best + "?"
				if slices.Contains(decideToken, d.byVariable[best].Key) {
					p.Severity = position.Error // without the variable, the token may go to another service
				}
			}
		default:
			continue
		}
		problems = append(problems, p)
	}
	return problems
}

func (d *definition) variableOf(key string) string {
	for _, f := range d.fields {
		if f.Key == key {
			return f.Variable
		}
	}
	return ""
}

// warnOverridden warns about every key of the file that a variable sets to another value: a
// change of such a key has no effect, and no other message gives the reason.
func (l *load) warnOverridden(file, variables position.Mapping) {
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		path := strings.Split(f.Key, ".")
		above, hides := variables.Get(path...)
		below, hidden := file.Get(path...)
		if f.Variable == "" || !hides || !hidden || below.Data == nil || below.Data == "" {
			continue
		}
		ours, _ := json.Marshal(f.meaning(below))
		theirs, _ := json.Marshal(f.meaning(above))
		if string(ours) == string(theirs) {
			continue
		}
		what := "value"
		if text := strings.Trim(flowForm(below.Plain()), `"`); f.harmless(text) {
			what = text
		}
		message := fmt.Sprintf("is set by %s; the file's %s has no effect", f.Variable, what)
		p := position.NewWarning(position.RuleOverlaid, below.Key, f.Key, message, overlayHint)
		p.Value = secret.New(string(ours))
		l.report(p)
	}
}

// overlayHint is the hint about a key of the file that a variable overrides.
const overlayHint = "remove the key from the file; or unset the variable, and start the agent again"

// harmless reports whether a valid or invalid value may be shown. It allows what
// [harmlessFor] allows, and a duration with several units.
func (f *Field) harmless(text string) bool {
	if f.Kind == KindDuration {
		if _, err := time.ParseDuration(text); err == nil {
			return true
		}
	}
	return harmlessFor(f, text)
}
