package server

import (
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Limits of access tokens, which are tokens that a person has made (Pulumi's documentation of access tokens).
// Descriptions have no documented limit.
const (
	maxTokenName        = 40 // characters
	maxTokenDescription = 250
	maxTokenYears       = 2
)

// useInterval is the time between two records of the use of one token.
const useInterval = time.Minute

// accessTokenView is an access token in the form that Pulumi's clients read.
type accessTokenView struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Created     time.Time `json:"created"`
	CreatedBy   string    `json:"createdBy"`
	Expires     int64     `json:"expires"`  // seconds since 1970; 0 is never
	LastUsed    int64     `json:"lastUsed"` // seconds since 1970; 0 is never
	Admin       bool      `json:"admin"`
}

// newTokenView is the only response with a token. It must not be logged.
type newTokenView struct {
	ID    string `json:"id"`
	Token string `json:"tokenValue"`
}

// recordUse records the use of an access token. A failure does not affect the call.
func (s *Server) recordUse(c *call) {
	if c.caller.tokenID == "" || c.now.Sub(c.caller.lastUsed) < useInterval {
		return
	}
	err := s.db.Write(c.Context(), func(t *store.Tx) error { return t.UseAccessToken(c.caller.tokenID, c.now) })
	if err != nil && c.Context().Err() == nil {
		s.log.Warn("cannot record the use of a token", "component", "api", "token", c.caller.tokenID, "error", err)
	}
}

func (s *Server) listUserTokens(c *call) (reply, error) {
	return s.listTokens(c, c.caller.subject, true)
}

func (s *Server) listOrganizationTokens(c *call) (reply, error) {
	return s.listTokens(c, c.PathValue("org"), false)
}

// listTokens lists the tokens of a user or an organization. The query filter selects the active, the expired or all.
func (s *Server) listTokens(c *call, subject string, ofUser bool) (reply, error) {
	filter := c.URL.Query().Get("filter")
	switch filter {
	case "", "active", "expired", "all":
	default:
		return reply{}, badRequest("filter must be active, expired or all")
	}
	found := []accessTokenView{}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		if !ofUser {
			if _, err := s.organization(t, c); err != nil {
				return err
			}
		}
		all, err := t.AccessTokens(subject, ofUser)
		for _, one := range all {
			expired := !one.Expires.IsZero() && !one.Expires.After(c.now)
			if filter == "all" || expired == (filter == "expired") {
				found = append(found, viewAccessToken(one))
			}
		}
		return err
	})
	return reply{body: map[string][]accessTokenView{"tokens": found}}, err
}

func viewAccessToken(a store.AccessToken) accessTokenView {
	return accessTokenView{
		ID: a.ID, Name: a.Name, Description: a.Description, Created: a.Created, CreatedBy: a.CreatedBy,
		Expires: seconds(a.Expires), LastUsed: seconds(a.LastUsed), Admin: kind(a.Kind) == administratorToken,
	}
}

// tokenRequest is the body of a request for an access token. Tokens of users have only a description and an end.
type tokenRequest struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Expires     int64  `json:"expires"` // seconds since 1970; 0 is never
	Admin       bool   `json:"admin"`
	Role        string `json:"roleID"`
}

// check returns the end of the token, or the mistake of the request.
func (r tokenRequest) check(now time.Time) (end time.Time, err error) {
	if r.Expires != 0 {
		end = time.Unix(r.Expires, 0)
	}
	switch {
	case r.Expires < 0 || r.Expires != 0 && !end.After(now):
		return end, badRequest("expires must be a time in the future, in seconds since 1970, or 0 for no end")
	case r.Expires > now.AddDate(maxTokenYears, 0, 0).Unix():
		return end, badRequest("expires must be within %d years, or 0 for no end", maxTokenYears)
	case !isLine(r.Description, maxTokenDescription):
		return end, badRequest("description must have at most %d characters, and no control characters",
			maxTokenDescription)
	case !isLine(r.Name, maxTokenName):
		return end, badRequest("name must have at most %d characters, and no control characters", maxTokenName)
	case r.Role != "":
		return end, badRequest("roleID is not supported: choose with admin between the rights of a member and " +
			"those of an administrator")
	}
	return end, nil
}

// isLine reports whether a text has at most a number of characters, and no control characters.
func isLine(text string, characters int) bool {
	return utf8.RuneCountInString(text) <= characters && !strings.ContainsFunc(text, unicode.IsControl)
}

func (s *Server) createUserToken(c *call) (reply, error) {
	var body tokenRequest
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	if body.Name != "" || body.Admin {
		return reply{}, badRequest("name and admin are fields of the tokens of organizations: " +
			"give the token of a user a description")
	}
	return s.createToken(c, principal{userToken, c.caller.subject}, body)
}

func (s *Server) createOrganizationToken(c *call) (reply, error) {
	var body tokenRequest
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	if strings.TrimSpace(body.Name) == "" {
		return reply{}, badRequest("name is missing")
	}
	as := memberToken
	if body.Admin {
		as = administratorToken
	}
	return s.createToken(c, principal{as, c.PathValue("org")}, body)
}

// createToken makes a token. Its only copy is the response.
func (s *Server) createToken(c *call, of principal, r tokenRequest) (reply, error) {
	end, err := r.check(c.now)
	if err != nil {
		return reply{}, err
	}
	id, token := newID(), of.kind.mint()
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		if of.kind != userToken {
			if _, err := s.organization(t, c); err != nil {
				return err
			}
		}
		return t.AddAccessToken(store.AccessToken{
			ID: id, Kind: string(of.kind), Subject: of.subject, Name: r.Name, Description: r.Description,
			Created: c.now, CreatedBy: c.caller.subject, Expires: end,
		}, hash(token))
	})
	if errors.Is(err, store.ErrDuplicate) {
		return reply{}, conflict("the organization has or had a token %q: choose another name", r.Name)
	}
	if err != nil {
		return reply{}, err
	}
	s.log.Info("token made", "component", "api", "kind", string(of.kind), "subject", of.subject, "id", id)
	return reply{body: newTokenView{id, token.Reveal()}}, nil
}

func (s *Server) deleteUserToken(c *call) (reply, error) {
	return s.deleteToken(c, c.caller.subject, true)
}

func (s *Server) deleteOrganizationToken(c *call) (reply, error) {
	return s.deleteToken(c, c.PathValue("org"), false)
}

// deleteToken deletes a token of a user or an organization. A token cannot delete itself, so a user always has one
// to log in with.
func (s *Server) deleteToken(c *call, subject string, ofUser bool) (reply, error) {
	id := c.PathValue("id")
	if id == c.caller.tokenID {
		return reply{}, refuse(http.StatusBadRequest, "a token cannot delete itself: use another token")
	}
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		found, err := t.DeleteAccessToken(id, subject, ofUser)
		if err == nil && !found {
			return notFound("there is no token %q", id)
		}
		return err
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("token deleted", "component", "api", "subject", subject, "id", id)
	return reply{}, nil
}
