package server

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// The words of an exchange of an OIDC token for one of a pool (RFC 8693, and
// Pulumi's documentation of OIDC token exchange).
const (
	grantExchange  = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeIDToken    = "urn:ietf:params:oauth:token-type:id_token"
	typeRunner     = "urn:pulumi:token-type:access_token:runner"
	audiencePrefix = "urn:pulumi:org:"
	scopePrefix    = "runner:"
)

// How long an exchanged token is good for (Pulumi's documentation of OIDC token
// exchange): when nobody says otherwise, and at most.
const (
	exchangeLife    = 2 * time.Hour
	maxExchangeLife = 25 * time.Hour
)

// maxExchangeBody limits the body of an exchange in bytes: an ID token, each
// byte of which a form may write as three, and some.
const maxExchangeBody = 3*maxIDToken + 16<<10

// exchangeView is the answer to an exchange. The token stands in it in the
// open, so it is not a type to log.
type exchangeView struct {
	Token      string `json:"access_token"`
	IssuedType string `json:"issued_token_type"`
	Type       string `json:"token_type"`
	Expires    int64  `json:"expires_in"` // seconds
	Scope      string `json:"scope"`
}

// denialView is an error in the form of every call here and in that of RFC
// 6749, section 5.2.
type denialView struct {
	Code        int    `json:"code"`
	Message     string `json:"message"`
	Word        string `json:"error"`
	Description string `json:"error_description"`
}

// denial is a problem with OAuth's word for it.
type denial struct {
	*problem
	word string
}

func (d *denial) Unwrap() error { return d.problem }

func deny(word, format string, args ...any) error {
	return &denial{&problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}, word}
}

// exchangeToken gives out a pool token for an OIDC token. Nobody has to be known
// to ask for it.
func (s *Server) exchangeToken(c *call) (reply, error) {
	view, err := s.exchange(c)
	if err == nil {
		return reply{body: view}, nil
	}
	var known *problem
	if !errors.As(err, &known) {
		return reply{}, err
	}
	word := "invalid_request"
	var denied *denial
	if errors.As(err, &denied) {
		word = denied.word
	}
	return reply{code: known.code, body: denialView{known.code, known.text(), word, known.message}}, nil
}

func (s *Server) exchange(c *call) (exchangeView, error) {
	if len(s.issuers) == 0 {
		return exchangeView{}, &denial{&problem{http.StatusForbidden,
			"no policy allows an exchange of OIDC tokens: start the service with --oidc-issuer URL=JWKS_FILE, or configure the agent with the static token of a pool"}, "unauthorized_client"}
	}
	text, err := c.text(maxExchangeBody)
	if err != nil {
		return exchangeView{}, err
	}
	asked, err := readExchange(text)
	if err != nil {
		return exchangeView{}, err
	}
	subject, err := readIDToken(asked.subject)
	if err != nil {
		return exchangeView{}, err
	}
	if err := subject.check(s.issuers, audiencePrefix+asked.organization, c.now); err != nil {
		return exchangeView{}, err
	}
	token := poolToken.mint()
	err = s.store.write(c.Context(), func(t *tx) error {
		found, err := t.get([]any{new(int)}, `SELECT 1 FROM pools WHERE id = ? AND organization = ?`, asked.pool, asked.organization)
		if err != nil {
			return err
		}
		if !found {
			return deny("invalid_scope", "the organization of the audience has no agent pool %q: scope must be %sID, with the id of one", asked.pool, scopePrefix)
		}
		return saveTokenUntil(t, token, principal{poolToken, asked.pool}, c.now.Add(asked.life))
	})
	if err != nil {
		return exchangeView{}, err
	}
	s.log.Info("OIDC token exchanged for a pool token", "component", "api", "pool", asked.pool, "issuer", subject.issuer, "life", asked.life)
	return exchangeView{token.Reveal(), typeRunner, "token", int64(asked.life / time.Second), scopePrefix + asked.pool}, nil
}

// exchangeRequest is a request for an exchange that is in order.
type exchangeRequest struct {
	organization string
	pool         string // id; may be of none
	subject      secret.String
	life         time.Duration // of the token; greater than 0
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
	for name, only := range map[string]string{"subject_token_type": typeIDToken, "requested_token_type": typeRunner} {
		if fields[name] != only {
			return exchangeRequest{}, deny("invalid_request", "%s must be %s", name, only)
		}
	}
	asked := exchangeRequest{subject: secret.New(fields["subject_token"]), life: exchangeLife}
	if asked.subject.Empty() {
		return exchangeRequest{}, deny("invalid_request", "subject_token is missing")
	}
	var found bool
	if asked.organization, found = strings.CutPrefix(fields["audience"], audiencePrefix); !found || asked.organization == "" {
		return exchangeRequest{}, deny("invalid_target", "audience must be %s and the name of an organization", audiencePrefix)
	}
	if asked.pool, found = strings.CutPrefix(fields["scope"], scopePrefix); !found || asked.pool == "" || len(asked.pool) > 100 {
		return exchangeRequest{}, deny("invalid_scope", "scope must be %s and the id of an agent pool", scopePrefix)
	}
	if life := fields["expiration"]; life != "" {
		seconds, err := number("expiration", life, 1, 1<<62)
		if err != nil {
			return exchangeRequest{}, err
		}
		asked.life = time.Duration(min(seconds, int64(maxExchangeLife/time.Second))) * time.Second
	}
	return asked, nil
}

// readFields reads a form, or a JSON object: a form of ours never begins with a
// brace, so no Content-Type is needed. Each field stands once.
func readFields(text []byte) (map[string]string, error) {
	fields := map[string]string{}
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		object, err := readMembers(trimmed)
		if err != nil {
			return nil, badRequest("the body is not a JSON object whose names stand once each")
		}
		for _, name := range []string{"grant_type", "audience", "subject_token_type", "subject_token", "requested_token_type", "scope"} {
			var value string
			if !object.read(name, &value) {
				return nil, badRequest("%s must be a JSON string", name)
			}
			fields[name] = value
		}
		if raw := object["expiration"]; !bytes.Equal(raw, []byte("null")) {
			fields["expiration"] = strings.Trim(string(raw), `"`) // a number, or one in quotes
		}
		return fields, nil
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, badRequest("the body is neither a form nor a JSON object")
	}
	for name, values := range form {
		if len(values) > 1 {
			return nil, badRequest("a field stands more than once")
		}
		fields[name] = values[0]
	}
	return fields, nil
}
