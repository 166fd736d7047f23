package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// overwrite asks whether a file that is there may be changed.
func (c *configuring) overwrite() error {
	return c.mayChange(c.file, "Change it, and keep its comments and other keys?")
}

func (c *configuring) mayChange(file onDisk, text string) error {
	state := file.name + " is there already"
	switch {
	case file.info == nil || c.o.yes:
		return nil
	case c.prompt == nil:
		return cli.Usagef("%s: to change it, add --yes", state)
	}
	answer, err := c.prompt.ask(question{text: state + ". " + text, shown: "no", empty: "no", check: isOneOf("yes", "no", "y", "n")})
	if err == nil && answer[0] == 'n' {
		err = errors.New("nothing has been changed")
	}
	return err
}

// isOneOf makes the check of a choice.
func isOneOf(words ...string) func(string) error {
	return func(answer string) error {
		if !slices.Contains(words, answer) {
			return fmt.Errorf("must be one of: %s", strings.Join(words, ", "))
		}
		return nil
	}
}

// valid makes the check of an answer by the rules of the schema for its key.
func (c *configuring) valid(key string) func(string) error {
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

// named makes the check of the name of a file.
func (c *configuring) named(key string) func(string) error {
	return func(answer string) error {
		if secret.LooksLikeToken(answer) {
			return errors.New("looks like a token: give the name of a file that holds it")
		}
		return c.valid(key)(answer)
	}
}

// supported makes the check of a target: one of this release, or the one that the
// file has already.
func (c *configuring) supported(answer string) error {
	if err := c.valid("deploy_target")(answer); err != nil {
		return err
	}
	if answer != c.present["deploy_target"] && !slices.Contains(carriedOut.Targets, answer) {
		return fmt.Errorf("%s is not in this release: write %s", answer, either(carriedOut.Targets))
	}
	return nil
}

// either writes words as a choice: a, b or c.
func either(words []string) string {
	last := len(words) - 1
	if last <= 0 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// answer is the value of a key: that of its flag, or what the person says, or,
// with nobody to ask, what the file says. missing says which flag to add if there
// is none of these.
func (c *configuring) answer(key, flag, value, text string, check func(string) error) (string, error) {
	present := c.present[key]
	if value != "" {
		if err := check(value); err != nil {
			return "", cli.Usagef("--%s: %w", flag, err)
		}
		return value, nil
	}
	if c.prompt != nil {
		q := question{text: text, empty: present, check: check}
		if present != "" {
			q.shown = "as it is"
		}
		return c.prompt.ask(q)
	}
	if present == "" {
		return "", cli.Usagef("there is nobody to ask: add --%s", flag)
	}
	return present, nil
}

// set notes a change. A key that is not there need not be emptied.
func (c *configuring) set(key, value string) {
	if _, ok := c.present[key]; !ok && value == "" {
		return
	}
	c.changes = append(c.changes, schema.Change{Key: key, Value: value, Comment: c.fields[key].Doc})
}

// service settles where the service is, and where jobs run.
func (c *configuring) service() error {
	for _, q := range []struct{ key, flag, value, text string }{
		{"service_url", "service-url", c.o.serviceURL, "URL of the service"},
		{"deploy_target", "target", c.o.target, "Where jobs run (" + strings.Join(carriedOut.Targets, ", ") + ")"},
	} {
		standard := strings.Trim(c.fields[q.key].Default, `"`)
		value, had := q.value, c.present[q.key]
		check := c.valid(q.key)
		if q.key == "deploy_target" {
			check = c.supported
		}
		if had == "" {
			had = standard
		}
		switch {
		case value != "":
			if err := check(value); err != nil {
				return cli.Usagef("--%s: %w", q.flag, err)
			}
		case c.prompt != nil:
			shown := had
			if check(had) != nil || secret.ContainsToken(had) {
				shown = "as it is"
			}
			var err error
			if value, err = c.prompt.ask(question{text: q.text, shown: shown, empty: had, check: check}); err != nil {
				return err
			}
		default:
			value = had
		}
		if c.file.info != nil && q.value == "" && value == had {
			continue // nobody said that it should stand there
		}
		c.set(q.key, value)
	}
	return nil
}
