package configure

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// errUnchanged ends a session in which a confirmation was denied and nothing is left to change.
var errUnchanged = errors.New("nothing has been changed")

// keep is the text that a prompt shows as the default instead of a value, such as a token,
// that must not be shown. An empty answer keeps the value of the file, unless the check of the
// query rejects that value.
const keep = "unchanged"

// confirm prompts for a confirmation to change a file that exists, unless --yes is set.
func (s *session) confirm(f file, text string) error {
	state := f.name + " exists"
	switch {
	case f.info == nil || s.o.Yes:
		return nil
	case s.prompt == nil:
		return cli.Usagef("%s: to change it, add --yes", state)
	}
	yes, err := s.prompt.confirm(state + ". " + text)
	if err == nil && !yes {
		err = errUnchanged
	}
	return err
}

func oneOf(choices ...string) func(string) error {
	return func(answer string) error {
		if !slices.Contains(choices, answer) {
			return fmt.Errorf("must be one of: %s", strings.Join(choices, ", "))
		}
		return nil
	}
}

// valid returns a check that applies the rules of the schema for a key to an answer.
func (s *session) valid(key string) func(string) error {
	return func(answer string) error {
		if answer == "" {
			return errors.New("must not be empty")
		}
		content, err := schema.Edit(nil, []schema.Change{{Key: key, Value: answer}})
		if err != nil {
			return errors.New("must be plain text")
		}
		_, problems := schema.Load(schema.Source{Content: content, Elsewhere: true})
		for _, p := range problems.Errors() {
			if p.Path != key {
				continue
			}
			if p.Hint != "" {
				return fmt.Errorf("%s: %s", p.Message, p.Hint)
			}
			return errors.New(p.Message)
		}
		return nil
	}
}

// validFile returns a check of an answer for a key that names a file. It rejects a token.
func (s *session) validFile(key string) func(string) error {
	return func(answer string) error {
		if secret.LooksLikeToken(answer) {
			return errors.New("looks like a token: give the name of a file that holds it")
		}
		return s.valid(key)(answer)
	}
}

// validTarget checks an answer for deploy_target. It accepts the targets that this release
// supports, and the target that the configuration already has.
func (s *session) validTarget(answer string) error {
	if err := s.valid("deploy_target")(answer); err != nil {
		return err
	}
	if answer != s.present["deploy_target"] && !slices.Contains(s.o.Targets, answer) {
		return fmt.Errorf("%s is not in this release: write %s", answer, printable.Join(s.o.Targets, "or"))
	}
	return nil
}

// answer returns the value of a key: the value of its flag, or an answer at the terminal.
// Without a terminal it returns the value in the configuration.
func (s *session) answer(key, flag, value, text string, check func(string) error) (string, error) {
	q := query{text: text, defaultValue: s.present[key], check: check}
	if q.defaultValue != "" {
		q.defaultText = keep
	}
	return s.ask(flag, value, q)
}

// ask returns the value of a flag, or an answer at the terminal. Without a terminal it
// returns the default of the query.
func (s *session) ask(flag, value string, q query) (string, error) {
	switch {
	case value != "":
		if err := q.check(value); err != nil {
			return "", cli.Usagef("--%s: %w", flag, err)
		}
		return value, nil
	case s.prompt != nil:
		return s.prompt.ask(q)
	case q.defaultValue == "":
		return "", cli.Usagef("not a terminal, cannot prompt: pass --%s", flag)
	}
	return q.defaultValue, nil
}

// set records the change of a key. An empty value replaces the value of a key that the
// configuration has, and adds no key.
func (s *session) set(key, value string) {
	if _, ok := s.present[key]; !ok && value == "" {
		return
	}
	s.changes = append(s.changes, schema.Change{Key: key, Value: value, Comment: s.fields[key].Doc})
}

// serviceURL records the change of the service's URL.
func (s *session) serviceURL() error {
	return s.setting("service_url", "service-url", s.o.ServiceURL, "URL of the service", s.valid("service_url"))
}

// target records the change of the deploy target.
func (s *session) target() error {
	text := "Where jobs run (" + strings.Join(s.o.Targets, ", ") + ")"
	return s.setting("deploy_target", "target", s.o.Target, text, s.validTarget)
}

// setting records the change of a key that has a default.
func (s *session) setting(key, flag, value, text string, check func(string) error) error {
	// The default of the query is the value of the file, or else that of the schema.
	had := cmp.Or(s.present[key], strings.Trim(s.fields[key].Default, `"`))
	q := query{text: text, defaultText: had, defaultValue: had, check: check}
	if q.check(had) != nil || secret.ContainsToken(had) {
		q.defaultText = keep
	}
	answer, err := s.ask(flag, value, q)
	if err != nil {
		return err
	}
	if s.config.info == nil || value != "" || answer != had { // otherwise, nothing changes the file
		s.set(key, answer)
	}
	return nil
}
