package configure

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// errUnchanged is how a session ends after an answer of no.
var errUnchanged = errors.New("nothing has been changed")

// confirmConfig asks whether to change a configuration that exists.
func (s *session) confirmConfig() error {
	return s.confirm(s.config, "Change it, and keep its comments and other keys?")
}

// confirm asks whether to change a file that exists.
func (s *session) confirm(f file, text string) error {
	state := f.name + " is there already"
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

// oneOf returns the check of a choice.
func oneOf(words ...string) func(string) error {
	return func(answer string) error {
		if !slices.Contains(words, answer) {
			return fmt.Errorf("must be one of: %s", strings.Join(words, ", "))
		}
		return nil
	}
}

// valid returns the check of an answer by the rules of the schema for a key.
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

// validFile returns the check of an answer for a key that names a file.
func (s *session) validFile(key string) func(string) error {
	return func(answer string) error {
		if secret.LooksLikeToken(answer) {
			return errors.New("looks like a token: give the name of a file that holds it")
		}
		return s.valid(key)(answer)
	}
}

// validTarget checks an answer for deploy_target: a target that this release
// supports, or the one that the configuration has already.
func (s *session) validTarget(answer string) error {
	if err := s.valid("deploy_target")(answer); err != nil {
		return err
	}
	if answer != s.present["deploy_target"] && !slices.Contains(s.o.Targets, answer) {
		return fmt.Errorf("%s is not in this release: write %s", answer, Choice(s.o.Targets))
	}
	return nil
}

// Choice returns words as an enumeration: a, b or s.
func Choice(words []string) string {
	last := len(words) - 1
	if last <= 0 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// answer returns the value of a key: that of its flag, else the answer to text,
// else, without a terminal, the one that the configuration has.
func (s *session) answer(key, flag, value, text string, check func(string) error) (string, error) {
	present := s.present[key]
	if value != "" {
		if err := check(value); err != nil {
			return "", cli.Usagef("--%s: %w", flag, err)
		}
		return value, nil
	}
	if s.prompt != nil {
		q := question{text: text, empty: present, check: check}
		if present != "" {
			q.shown = "as it is"
		}
		return s.prompt.ask(q)
	}
	if present == "" {
		return "", cli.Usagef("there is nobody to ask: add --%s", flag)
	}
	return present, nil
}

// set notes a change of a key. An empty value removes the key, if it is present.
func (s *session) set(key, value string) {
	if _, ok := s.present[key]; !ok && value == "" {
		return
	}
	s.changes = append(s.changes, schema.Change{Key: key, Value: value, Comment: s.fields[key].Doc})
}

// service notes the changes of the service's URL and of where jobs run.
func (s *session) service() error {
	for _, q := range []struct{ key, flag, value, text string }{
		{"service_url", "service-url", s.o.ServiceURL, "URL of the service"},
		{"deploy_target", "target", s.o.Target, "Where jobs run (" + strings.Join(s.o.Targets, ", ") + ")"},
	} {
		// The present value, or the default.
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
			shown := had
			if check(had) != nil || secret.ContainsToken(had) {
				shown = "as it is"
			}
			var err error
			if value, err = s.prompt.ask(question{text: q.text, shown: shown, empty: had, check: check}); err != nil {
				return err
			}
		default:
			value = had
		}
		if s.config.info != nil && q.value == "" && value == had {
			continue // no flag and no answer asks for a change of the file
		}
		s.set(q.key, value)
	}
	return nil
}
