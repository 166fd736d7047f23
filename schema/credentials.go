package schema

import (
	"fmt"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// rejectTokensAsPaths rejects a token as the value of a key that names a file. Logs and cmwa
// config show the names of files, so they would show the token.
func (s *scope) rejectTokensAsPaths() {
	for i := range s.load.schema.fields {
		f := &s.load.schema.fields[i]
		v, ok := s.values.Get(strings.Split(f.Key, ".")...)
		if name, isText := v.Data.(string); ok && isText && f.Pool && strings.HasSuffix(f.Key, "_file") &&
			secret.LooksLikeToken(name) && s.valid(f.Key) {
			s.refuse(position.RuleFile, "the value looks like a token",
				"write the name of a file that contains it", f.Key)
			s.load.invalid[position.Join(s.at, f.Key)] = true
			s.load.invalid[s.path(f.Key)] = true
		}
	}
}

// chooseCredentials decides which of token, token_file and OIDC is used. OIDC overrides the
// two others. If both token and token_file are set, the one that a variable sets overrides
// the one in the file.
func (s *scope) chooseCredentials() {
	if !s.valid("token", "token_file", "oidc_token_file") || s.at == "" && s.load.invalid["pools"] {
		return
	}

	// Warn if the group or other users can read a token in the configuration file.
	c := s.pool
	if at := s.origins["token"]; !c.Token.Empty() && at.Line > 0 && s.load.source.Mode&0o044 != 0 {
		s.warn(position.RuleReadableToken, "other users can read the file with the token",
			chownHint()+"; or move the token to another file and name that in token_file", "token")
	}

	hasToken, hasFile := !c.Token.Empty(), c.TokenFile != ""
	switch {
	case c.OIDCTokenFile != "":
		s.readOIDCToken()
		s.checkExchange(map[string]bool{"token": hasToken, "token_file": hasFile})
		c.Token = secret.String{}
	case hasToken && hasFile && s.fromVariable("token") == s.fromVariable("token_file"):
		s.refuse(position.RuleCredentials, "cannot be set together with token", "remove one of the two", "token_file")
	case hasFile && (!hasToken || s.fromVariable("token_file")):
		if hasToken {
			s.warnHidden("token", "token_file")
		}
		c.Token = s.readToken()
		s.warnPlaceholder("token_file")
	case hasFile:
		s.warnHidden("token_file", "token")
		s.warnPlaceholder("token")
	case hasToken:
		s.warnPlaceholder("token")
	case s.at != "":
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

// fromVariable reports whether a variable sets the key.
func (s *scope) fromVariable(key string) bool { return s.origins[key].Variable != "" }

// checkExchange reports missing keys that the exchange of an OIDC token requires, and the
// other credentials, which have no effect with an OIDC token.
func (s *scope) checkExchange(others map[string]bool) {
	needed := map[string]string{"organization_name": s.pool.OrganizationName, "runner_pool_id": s.pool.RunnerPoolID}
	for key, value := range needed {
		if value == "" && s.valid(key) {
			s.refuse(position.RuleCredentials, "is required with oidc_token_file",
				"add it, or set "+s.load.schema.variableOf(key), key, "oidc_token_file")
		}
	}
	for key, set := range others {
		if set {
			s.warn(position.RuleCredentials, "has no effect with oidc_token_file", "remove one of the two", key)
		}
	}
}

// checkForwarded warns about variables with secrets of the agent that are copied into jobs.
func (s *scope) checkForwarded() {
	for _, name := range s.pool.EnvForwardAllowlist {
		if f := s.load.schema.byVariable[name]; f != nil && f.Secret {
			s.warn(position.RuleCredentials, "copies the agent's own token into every job",
				"remove "+name+"; a job has its own token", "env_forward_allowlist")
		}
	}
}

// warnPlaceholder warns about a placeholder in place of a token, such as those of examples
// and templates, if the source is vetted. key is the key that sets the token.
func (s *scope) warnPlaceholder(key string) {
	token := s.pool.Token.Reveal()
	if !s.load.source.vetted || token == "" {
		return
	}
	hint := "write the token that the service displayed when the pool was created"
	secretPart, begins := strings.CutPrefix(token, secret.AccessTokenPrefix)
	switch {
	case strings.Contains(token, "${"), strings.Contains(token, "$("), strings.Contains(token, "{{"):
		hint = "variables are not expanded here: set " + s.load.schema.variableOf("token") +
			", or name a file in token_file"
	case strings.ContainsAny(token, "<>"), strings.Contains(token, ".."), secretPart == "":
	case strings.Trim(secretPart, "xX") == "" && len(secretPart) > 2: // pul-xxx
	case !begins:
		message := "is not a pool access token, which begins with " + secret.AccessTokenPrefix
		s.warn(position.RulePlaceholder, message, hint, key)
		return
	default:
		return
	}
	s.warn(position.RulePlaceholder, "is a placeholder, not a pool access token", hint, key)
}

// warnHidden warns about token or token_file if a variable for the other one overrides it.
func (s *scope) warnHidden(key, by string) {
	v := s.values[key]
	text, _ := v.Data.(string)
	message := fmt.Sprintf("has no effect: %s sets the token", s.load.schema.variableOf(by))
	p := position.NewWarning(position.RuleOverlaid, v.Key, s.path(key), message, overlayHint)
	p.Value = secret.New(text)
	s.load.report(p)
}
