package server

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Values of an exchange of an OIDC token for another token (RFC 8693, and Pulumi's
// documentation of OIDC token exchange). The service has no teams and issues no refresh tokens.
const (
	grantExchange    = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeIDToken      = "urn:ietf:params:oauth:token-type:id_token"
	typePrefix       = "urn:pulumi:token-type:access_token:"
	typeRunner       = typePrefix + "runner"
	typeOrganization = typePrefix + "organization"
	typePersonal     = typePrefix + "personal"
	audiencePrefix   = "urn:pulumi:org:"
	scopePrefix      = "runner:"
	userPrefix       = "user:"
)

// Lifetimes of an exchanged token: the default and the maximum (Pulumi's documentation
// of OIDC token exchange).
const (
	exchangeLifetime    = 2 * time.Hour
	maxExchangeLifetime = 25 * time.Hour
)

// maxExchangeBody limits the body of an exchange in bytes. A form may encode each byte
// of the ID token as three.
const maxExchangeBody = 3*idtoken.MaxToken + 16<<10

// exchangeView is the response to an exchange. It contains the token in plain text and
// must not be logged.
type exchangeView struct {
	Token      string `json:"access_token"`
	IssuedType string `json:"issued_token_type"`
	Type       string `json:"token_type"`
	Expires    int64  `json:"expires_in"` // seconds
	Scope      string `json:"scope"`
}

// denialView is the body of an error. It has the fields of [cloud.ErrorBody] and those of
// RFC 6749, section 5.2.
type denialView struct {
	Code        int    `json:"code"`
	Message     string `json:"message"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

func deny(oauth, format string, args ...any) error {
	return &problem{code: http.StatusBadRequest, oauth: oauth, message: fmt.Sprintf(format, args...)}
}

// exchangeToken exchanges an OIDC token for a token of a pool, of an organization or of a user. The call needs no
// other token.
func (s *Server) exchangeToken(c *call) (reply, error) {
	view, err := s.exchange(c)
	if err == nil {
		return reply{body: view}, nil
	}
	var known *problem
	if !errors.As(err, &known) {
		return reply{}, err
	}
	oauth := cmp.Or(known.oauth, "invalid_request")
	return reply{code: known.code, body: denialView{known.code, known.text(), oauth, known.message}}, nil
}

func (s *Server) exchange(c *call) (exchangeView, error) {
	if len(s.issuers) == 0 {
		return exchangeView{}, &problem{
			code: http.StatusForbidden, oauth: "unauthorized_client",
			message: "no policy allows an exchange of OIDC tokens: start the service with " +
				"--oidc-issuer URL=JWKS_FILE, or configure the agent with the static token of a pool",
		}
	}

	// Read the request and verify its OIDC token.
	text, err := c.text(maxExchangeBody)
	if err != nil {
		return exchangeView{}, err
	}
	req, err := readExchange(text)
	if err != nil {
		return exchangeView{}, err
	}
	subject, err := idtoken.Read(req.subject)
	if err != nil {
		return exchangeView{}, s.denyToken(subject, err)
	}
	grant, err := s.issuers.Check(subject, audiencePrefix+req.organization, c.now)
	if err != nil {
		return exchangeView{}, s.denyToken(subject, err)
	}

	token := req.holder.kind.mint()
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		check := s.checkAccess
		if req.holder.kind == poolToken {
			check = s.checkPool
		}
		if err := check(t, req, grant, subject.Issuer()); err != nil {
			return err
		}
		return saveTokenUntil(t, token, req.holder, c.now.Add(req.lifetime))
	})
	if err != nil {
		return exchangeView{}, err
	}
	s.log.Info("OIDC token exchanged", "component", "api",
		"kind", string(req.holder.kind), "subject", req.holder.subject, "issuer", subject.Issuer(),
		"lifetime", req.lifetime)
	return exchangeView{token.Reveal(), req.typ, "token", int64(req.lifetime / time.Second), req.scope}, nil
}

// checkPool checks that a verified token may be exchanged for a token of the requested pool.
func (s *Server) checkPool(t *store.Tx, req exchangeRequest, grant idtoken.Grant, issuer string) error {
	pool, found, err := t.Pool(req.organization, req.holder.subject)
	switch {
	case err != nil:
		return err
	case found && !grant.Allows(pool.ID, pool.Name):
		s.log.Warn("OIDC token denied", "component", "api", "issuer", issuer,
			"reason", "--oidc-issuer allows it for other pools", "pool", pool.Name)
		return deny("invalid_scope", "a token of this issuer with these claims is not valid for this pool: "+
			"see pool= in --oidc-issuer of the service")
	case !found:
		return deny("invalid_scope", "the organization of the audience has no agent pool %q: "+
			"scope must be %s followed by the ID of a pool", req.holder.subject, scopePrefix)
	}
	return nil
}

// checkAccess checks that a verified token may be exchanged for the requested access token. A token that no rule
// allows gets the same response for users that exist and that do not.
func (s *Server) checkAccess(t *store.Tx, req exchangeRequest, grant idtoken.Grant, issuer string) error {
	if !grant.AllowsAccess(req.access) {
		s.log.Warn("OIDC token denied", "component", "api", "issuer", issuer,
			"reason", "--oidc-issuer does not allow this access token", "token", req.access)
		return deny("invalid_scope", "a token of this issuer with these claims is not valid for this access token: "+
			"see token= in --oidc-issuer of the service")
	}
	exists := t.HasOrganization
	if req.holder.kind == userToken {
		exists = t.HasUser
	}
	found, err := exists(req.holder.subject)
	if err == nil && !found {
		return deny("invalid_scope", "there is no organization or user %q", req.holder.subject)
	}
	return err
}

// denyToken returns the response to an ID token that is refused. If the token is authentic, and
// a required claim is missing or does not match, denyToken logs this claim.
func (s *Server) denyToken(token idtoken.Token, err error) error {
	var refused *idtoken.Error
	if !errors.As(err, &refused) {
		return err
	}
	if refused.Detail != "" {
		s.log.Warn("OIDC token denied", "component", "api", "issuer", token.Issuer(), "reason", refused.Detail)
	}
	return deny("invalid_grant", "%s", refused.Text)
}

// exchangeRequest is a valid request for an exchange.
type exchangeRequest struct {
	organization string
	typ, scope   string    // as requested
	holder       principal // of the requested token: a pool, an organization or a user that may not exist
	access       string    // the requested access token, as in [idtoken.Issuer]; empty for a pool
	subject      secret.String
	lifetime     time.Duration // of the new token; greater than 0
}

// readExchange reads the body of an exchange.
func readExchange(text []byte) (exchangeRequest, error) {
	fields, err := readFields(text)
	if err != nil {
		return exchangeRequest{}, err
	}
	if grant := fields["grant_type"]; grant == "" {
		return exchangeRequest{}, deny("invalid_request", "grant_type is missing")
	} else if grant != grantExchange {
		return exchangeRequest{}, deny("unsupported_grant_type", "grant_type must be %s", grantExchange)
	}
	if fields["subject_token_type"] != typeIDToken {
		return exchangeRequest{}, deny("invalid_request", "subject_token_type must be %s", typeIDToken)
	}

	// Read the OIDC token, the organization, the requested token and its lifetime.
	req := exchangeRequest{
		typ: fields["requested_token_type"], scope: fields["scope"],
		subject: secret.New(fields["subject_token"]), lifetime: exchangeLifetime,
	}
	if req.subject.Empty() {
		return exchangeRequest{}, deny("invalid_request", "subject_token is missing")
	}
	var found bool
	req.organization, found = strings.CutPrefix(fields["audience"], audiencePrefix)
	if !found || req.organization == "" {
		return exchangeRequest{}, deny("invalid_target", "audience must be %s followed by the name of an organization",
			audiencePrefix)
	}
	if err := req.readScope(); err != nil {
		return exchangeRequest{}, err
	}
	if lifetime := fields["expiration"]; lifetime != "" {
		seconds, err := parseNumber("expiration", lifetime, 1, 1<<62)
		if err != nil {
			return exchangeRequest{}, err
		}
		req.lifetime = time.Duration(min(seconds, int64(maxExchangeLifetime/time.Second))) * time.Second
	}
	return req, nil
}

// readScope reads the type and the scope of the requested token.
func (r *exchangeRequest) readScope() error {
	switch r.typ {
	case typeRunner:
		pool, found := strings.CutPrefix(r.scope, scopePrefix)
		if !found || pool == "" || len(pool) > 100 {
			return deny("invalid_scope", "scope must be %s followed by the ID of an agent pool", scopePrefix)
		}
		r.holder = principal{poolToken, pool}
	case typeOrganization:
		switch r.scope {
		case "":
			r.holder, r.access = principal{memberToken, r.organization}, "member"
		case "admin":
			r.holder, r.access = principal{administratorToken, r.organization}, "admin"
		default:
			return deny("invalid_scope", "scope must be empty, or admin")
		}
	case typePersonal:
		user, found := strings.CutPrefix(r.scope, userPrefix)
		if !found || user == "" || len(user) > 100 {
			return deny("invalid_scope", "scope must be %s followed by the name of a user", userPrefix)
		}
		r.holder, r.access = principal{userToken, user}, r.scope
	default:
		return deny("invalid_request", "requested_token_type must be %s followed by runner, organization or personal",
			typePrefix)
	}
	return nil
}

// readFields reads a form or a JSON object. No form of this call begins with a brace,
// so the Content-Type is not needed. A field that is given twice is an error.
func readFields(text []byte) (map[string]string, error) {
	fields := map[string]string{}
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		object, err := idtoken.ReadMembers(trimmed)
		if err != nil {
			return nil, badRequest("the body is not a JSON object with unique names")
		}
		for _, name := range []string{
			"grant_type", "audience", "subject_token_type", "subject_token", "requested_token_type", "scope",
		} {
			var value string
			if !object.Read(name, &value) {
				return nil, badRequest("%s must be a JSON string", name)
			}
			fields[name] = value
		}
		if raw := object["expiration"]; !bytes.Equal(raw, []byte("null")) {
			fields["expiration"] = strings.Trim(string(raw), `"`) // a number, with or without quotes
		}
		return fields, nil
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, badRequest("the body is neither a form nor a JSON object")
	}
	for name, values := range form {
		if len(values) > 1 {
			return nil, badRequest("a field is given more than once")
		}
		fields[name] = values[0]
	}
	return fields, nil
}
