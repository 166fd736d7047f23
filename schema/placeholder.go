package schema

import (
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// placeholder warns of a token that is no real one, such as those of examples and
// templates, if the source is vetted. key is the one that the token comes from.
func (s *scope) placeholder(key string) {
	token := s.pool.Token.Reveal()
	if !s.load.source.vetted || token == "" {
		return
	}
	hint := "write the token of the pool, as the service showed it when the pool was made"
	rest, begins := strings.CutPrefix(token, secret.AccessTokenPrefix)
	switch {
	case strings.Contains(token, "${"), strings.Contains(token, "$("), strings.Contains(token, "{{"):
		hint = "nothing is expanded here: set " + s.load.schema.variableOf("token") + ", or name a file in token_file"
	case strings.ContainsAny(token, "<>"), strings.Contains(token, ".."), rest == "":
	case strings.Trim(rest, "xX") == "" && len(rest) > 2: // pul-xxx
	case !begins:
		s.about(position.Warning, position.RulePlaceholder, "is no pool access token: these begin with "+secret.AccessTokenPrefix, hint, key)
		return
	default:
		return
	}
	s.about(position.Warning, position.RulePlaceholder, "is a placeholder, not a pool access token", hint, key)
}
