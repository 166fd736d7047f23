package server

import (
	"regexp"
	"strings"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Limits of the tags of a stack. Pulumi's CLI has the same limits of names and values.
const (
	maxTags     = 100
	maxTagName  = 40 // in bytes
	maxTagValue = 256
)

// checkTags returns an error for the first invalid tag.
func checkTags(tags map[string]string) error {
	if len(tags) > maxTags {
		return badRequest("a stack has at most %d tags", maxTags)
	}
	form := regexp.MustCompile(`^[a-zA-Z0-9_.:-]+$`)
	for name, value := range tags {
		if len(name) > maxTagName || !form.MatchString(name) {
			return badRequest("names of tags have 1 to %d letters, digits, hyphens, underscores, dots and colons",
				maxTagName)
		}
		if len(value) > maxTagValue {
			return badRequest("the value of tag %s is longer than %d bytes", name, maxTagValue)
		}
	}
	return nil
}

// updateStackTags replaces all tags of a stack. Also the tags that describe the project and the
// source may change, because the CLI sends them.
func (s *Server) updateStackTags(c *call) (reply, error) {
	var sent map[string]string
	if err := c.decode(maxSmallBody, &sent); err != nil {
		return reply{}, err
	}
	return s.changeTags(c, func(map[string]string) (map[string]string, error) { return sent, nil })
}

// addStackTag adds a tag, or changes its value.
func (s *Server) addStackTag(c *call) (reply, error) {
	var sent struct{ Name, Value string }
	if err := c.decode(maxSmallBody, &sent); err != nil {
		return reply{}, err
	}
	return s.changeTags(c, func(tags map[string]string) (map[string]string, error) {
		tags[sent.Name] = sent.Value
		return tags, checkBuiltIn(sent.Name)
	})
}

// updateStackTag changes the value of a tag.
func (s *Server) updateStackTag(c *call) (reply, error) {
	var sent struct{ Name, Value string }
	if err := c.decode(maxSmallBody, &sent); err != nil {
		return reply{}, err
	}
	name := c.PathValue("tag")
	return s.changeTags(c, func(tags map[string]string) (map[string]string, error) {
		if _, found := tags[name]; !found {
			return nil, notFound("the stack has no such tag")
		}
		if sent.Name != "" && sent.Name != name {
			return nil, badRequest("the name of a tag cannot change: delete the tag, and add another one")
		}
		tags[name] = sent.Value
		return tags, checkBuiltIn(name)
	})
}

func (s *Server) deleteStackTag(c *call) (reply, error) {
	name := c.PathValue("tag")
	return s.changeTags(c, func(tags map[string]string) (map[string]string, error) {
		if _, found := tags[name]; !found {
			return nil, notFound("the stack has no such tag")
		}
		delete(tags, name)
		return tags, checkBuiltIn(name)
	})
}

// checkBuiltIn refuses a change of a tag that the CLI derives from the project.
func checkBuiltIn(name string) error {
	for _, prefix := range []string{"pulumi:", "vcs:"} {
		if strings.HasPrefix(name, prefix) {
			return badRequest("tags that begin with %s are set by the CLI", prefix)
		}
	}
	return nil
}

// changeTags replaces the tags of a stack with those that change returns.
func (s *Server) changeTags(c *call, change func(map[string]string) (map[string]string, error)) (reply, error) {
	return reply{}, s.db.Write(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		tags, err := t.StackTags(st.ID)
		if err != nil {
			return err
		}
		if tags, err = change(tags); err != nil {
			return err
		}
		if err := checkTags(tags); err != nil {
			return err
		}
		return t.SetStackTags(st.ID, tags)
	})
}
