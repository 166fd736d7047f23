package configure

import (
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

// confirmConfig prompts for a confirmation to change a configuration that exists.
func (s *session) confirmConfig() error {
	return s.confirm(s.config, "Change only the keys that prompts and flags set, and keep all other keys?")
}

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

// oneOf returns a check that accepts only the choices.
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
	present := s.present[key]
	if value != "" {
		if err := check(value); err != nil {
			return "", cli.Usagef("--%s: %w", flag, err)
		}
		return value, nil
	}
	if s.prompt != nil {
		q := query{text: text, defaultValue: present, check: check}
		if present != "" {
			q.defaultText = keep
		}
		return s.prompt.ask(q)
	}
	if present == "" {
		return "", cli.Usagef("not a terminal, cannot prompt: pass --%s", flag)
	}
	return present, nil
}

// set records the change of a key. An empty value replaces the value of a key that the
// configuration has, and adds no key.
func (s *session) set(key, value string) {
	if _, ok := s.present[key]; !ok && value == "" {
		return
	}
	s.changes = append(s.changes, schema.Change{Key: key, Value: value, Comment: s.fields[key].Doc})
}

// service records the changes of the service's URL and of the deploy target.
func (s *session) service() error {
	for _, q := range []struct{ key, flag, value, text string }{
		{"service_url", "service-url", s.o.ServiceURL, "URL of the service"},
		{"deploy_target", "target", s.o.Target, "Where jobs run (" + strings.Join(s.o.Targets, ", ") + ")"},
	} {
		// Find the value of the file. Without one, it is the default.
		defaultValue := strings.Trim(s.fields[q.key].Default, `"`)
		value, had := q.value, s.present[q.key]
		check := s.valid(q.key)
		if q.key == "deploy_target" {
			check = s.validTarget
		}
		if had == "" {
			had = defaultValue
		}

		// The new value: that of the flag, the answer, or the present one.
		switch {
		case value != "":
			if err := check(value); err != nil {
				return cli.Usagef("--%s: %w", q.flag, err)
			}
		case s.prompt != nil:
			text := had
			if check(had) != nil || secret.ContainsToken(had) {
				text = keep
			}
			var err error
			value, err = s.prompt.ask(query{text: q.text, defaultText: text, defaultValue: had, check: check})
			if err != nil {
				return err
			}
		default:
			value = had
		}
		if s.config.info != nil && q.value == "" && value == had {
			continue // neither a flag nor an answer changes the file
		}
		s.set(q.key, value)
	}
	return nil
}
