package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// overlayHint is what to do about a key of the file that a variable hides.
const overlayHint = "remove the key from the file; or unset the variable, and start the agent again"

// overlaid warns of every key of the file that a variable sets to another value:
// an edit of such a key changes nothing, and no other message gives the reason.
func (l *load) overlaid(file, variables position.Mapping) {
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
		if text := strings.Trim(flow(below.Data), `"`); f.harmless(text) {
			what = text
		}
		message := fmt.Sprintf("is set by %s; the file's %s has no effect", f.Variable, what)
		p := position.NewWarning(position.RuleOverlaid, below.Key, f.Key, message, overlayHint)
		p.Value = secret.New(string(ours))
		l.report(p)
	}
}

// harmless reports whether a value may be shown that may be wrong: see
// [harmlessFor]. A duration of several units may be, too.
func (f *Field) harmless(text string) bool {
	if f.Kind == KindDuration {
		if _, err := time.ParseDuration(text); err == nil {
			return true
		}
	}
	return harmlessFor(f, text)
}

// dropped warns of a token, or the name of its file, that the other one hides,
// because that one is in a variable.
func (s *scope) dropped(key, by string) {
	v := s.table[key]
	text, _ := v.Data.(string)
	message := fmt.Sprintf("has no effect: %s sets the token", s.load.schema.variableOf(by))
	p := position.NewWarning(position.RuleOverlaid, v.Key, s.path(key), message, overlayHint)
	p.Value = secret.New(text)
	s.load.report(p)
}
