package schema

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// names refuses tokens in place of the names of files that hold them. A name is
// shown in logs and by cmwa config, so it must not come to that.
func (s *scope) names() {
	for i := range s.load.schema.fields {
		f := &s.load.schema.fields[i]
		v, ok := s.values.Get(strings.Split(f.Key, ".")...)
		if name, isText := v.Data.(string); ok && isText && f.Pool && strings.HasSuffix(f.Key, "_file") &&
			secret.LooksLikeToken(name) && s.valid(f.Key) {
			s.refuse(position.RuleFile, "the value looks like a token", "give the name of a file that holds it", f.Key)
			s.load.bad[position.Join(s.at, f.Key)] = true
			s.load.bad[s.path(f.Key)] = true
		}
	}
}

// credentials settles which of token, token_file and OIDC is used. OIDC wins
// over both; of the two others the environment's wins over the file's.
func (s *scope) credentials() {
	if !s.valid("token", "token_file", "oidc_token_file") || s.at == "" && s.load.bad["pools"] {
		return
	}
	c := s.pool
	if at := s.places["token"]; !c.Token.Empty() && at.Line > 0 && s.load.source.Mode&0o044 != 0 {
		s.warn(position.RuleReadableToken, "the token is in a file that others may read",
			"chmod 600 the file, or put the token into one of its own and name that in token_file", "token")
	}
	hasToken, hasFile := !c.Token.Empty(), c.TokenFile != ""
	switch {
	case c.OIDCTokenFile != "":
		s.identity()
		s.exchange(map[string]bool{"token": hasToken, "token_file": hasFile})
		c.Token = secret.String{}
	case hasToken && hasFile && s.above("token") == s.above("token_file"):
		s.refuse(position.RuleCredentials, "must not be set beside token", "remove one of the two", "token_file")
	case hasFile && (!hasToken || s.above("token_file")):
		if hasToken {
			s.dropped("token", "token_file")
		}
		c.Token = s.token()
		s.placeholder("token_file")
	case hasFile:
		s.dropped("token_file", "token")
		s.placeholder("token")
	case hasToken:
		s.placeholder("token")
	case !hasToken && s.at != "":
		s.load.report(position.NewError(position.RuleMissingToken, s.entry.At, s.at, "the pool has no access token",
			"set token or token_file in it; or use OIDC with oidc_token_file, organization_name and runner_pool_id"))
	default:
		hint := "set token or token_file in the file, or the variable " + s.load.schema.variableOf("token") +
			"; or use OIDC with oidc_token_file, organization_name and runner_pool_id"
		if s.load.source.Path == "" && len(s.load.source.Searched) > 0 {
			hint += "; there is no " + FileName + " in " + strings.Join(s.load.source.Searched, ", ")
		}
		s.refuse(position.RuleMissingToken, "there is no pool access token", hint, "token")
	}
}

// above reports whether a variable sets the key.
func (s *scope) above(key string) bool { return s.places[key].Variable != "" }

// exchange checks the set of keys that an exchange of an OIDC token needs, and
// the keys that it makes useless.
func (s *scope) exchange(others map[string]bool) {
	needed := map[string]string{"organization_name": s.pool.OrganizationName, "runner_pool_id": s.pool.RunnerPoolID}
	for key, value := range needed {
		if value == "" && s.valid(key) {
			s.refuse(position.RuleCredentials, "must be set beside oidc_token_file",
				"add it, or set "+s.load.schema.variableOf(key), key, "oidc_token_file")
		}
	}
	for key, set := range others {
		if set {
			s.warn(position.RuleCredentials, "has no effect beside oidc_token_file", "remove one of the two", key)
		}
	}
}

// forwarded warns of the agent's own secrets among what jobs get.
func (s *scope) forwarded() {
	for _, name := range s.pool.EnvForwardAllowlist {
		if f := s.load.schema.byVariable[name]; f != nil && f.Secret {
			s.warn(position.RuleCredentials, "hands the agent's own token to every job",
				"remove "+name+"; a job has a token of its own", "env_forward_allowlist")
		}
	}
}

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
		s.warn(position.RulePlaceholder, "is no pool access token: these begin with "+secret.AccessTokenPrefix, hint,
			key)
		return
	default:
		return
	}
	s.warn(position.RulePlaceholder, "is a placeholder, not a pool access token", hint, key)
}

// dropped warns of a token, or the name of its file, that the other one hides,
// because that one is in a variable.
func (s *scope) dropped(key, by string) {
	v := s.values[key]
	text, _ := v.Data.(string)
	message := fmt.Sprintf("has no effect: %s sets the token", s.load.schema.variableOf(by))
	p := position.NewWarning(position.RuleOverlaid, v.Key, s.path(key), message, overlayHint)
	p.Value = secret.New(text)
	s.load.report(p)
}
