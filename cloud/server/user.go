package server

import (
	"cmp"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// organizationView is an organization in the JSON form that Pulumi's clients read.
type organizationView struct {
	GitHubLogin string `json:"githubLogin"`
	Name        string `json:"name"`
	AvatarURL   string `json:"avatarUrl"`
}

// userView is a user in the JSON form that Pulumi's clients read. The CLI refuses an empty
// login.
type userView struct {
	ID            string             `json:"id,omitempty"`
	GitHubLogin   string             `json:"githubLogin"`
	Name          string             `json:"name"`
	AvatarURL     string             `json:"avatarUrl"`
	Organizations []organizationView `json:"organizations,omitempty"`
	Token         *tokenInfo         `json:"tokenInfo,omitempty"`
}

// tokenInfo describes a token that is not a user's own.
type tokenInfo struct {
	Name         string `json:"name"`
	Organization string `json:"organization,omitempty"`
}

// shortUser returns the short form of a user: only a login and a name.
func shortUser(name string) userView { return userView{GitHubLogin: name, Name: name} }

// user describes the user of a token. The token of an organization has the organization as its user, and the programs
// of a job have the first user. A token that was exchanged for an OIDC token has no name of its own.
func (s *Server) user(c *call) (reply, error) {
	name, view := c.caller.subject, userView{}
	switch c.caller.kind {
	case stackToken:
		name = s.options.User
		view.Token = &tokenInfo{"deployment " + c.caller.subject, c.caller.organization}
	case administratorToken, memberToken:
		view.Token = &tokenInfo{cmp.Or(c.caller.tokenName, "OIDC"), c.caller.organization}
	default:
		view.Token = &tokenInfo{Name: cmp.Or(c.caller.tokenName, "OIDC")}
	}
	view.ID, view.GitHubLogin, view.Name = name, name, name
	organization := cmp.Or(c.caller.organization, s.options.Organization)
	view.Organizations = []organizationView{{GitHubLogin: name, Name: name}}
	if organization != name {
		view.Organizations = append(view.Organizations, organizationView{GitHubLogin: organization, Name: organization})
	}
	return reply{body: view}, nil
}

func (s *Server) defaultOrganization(c *call) (reply, error) {
	organization := cmp.Or(c.caller.organization, s.options.Organization)
	return reply{body: map[string]any{"GitHubLogin": organization, "Messages": []string{}}}, nil
}

// capabilities returns what this service supports in addition to the protocol that every
// Pulumi CLI knows. A CLI ignores capabilities that it does not know.
func (s *Server) capabilities(*call) (reply, error) {
	return reply{body: map[string][]capability{"capabilities": {
		{Capability: cloud.Capability{Name: cloud.LeaseCapability, Version: cloud.LeaseVersion}},
		{Capability: cloud.Capability{Name: "batch-encrypt", Version: 1}},
		// Without version 4 a CLI drops the list of features of a state.
		{
			Capability:    cloud.Capability{Name: "deployment-schema-version", Version: 1},
			Configuration: map[string]int{"version": 4},
		},
	}}}, nil
}

// capability is a capability with the values that it needs.
type capability struct {
	cloud.Capability
	Configuration map[string]int `json:"configuration,omitempty"`
}

// organization returns the organization that a path names.
func (s *Server) organization(t *store.Tx, c *call) (name string, err error) {
	name = c.PathValue("org")
	found, err := t.HasOrganization(name)
	if err == nil && !found {
		return "", notFound("there is no organization %q", name)
	}
	return name, err
}

// editOrganization sets the default pool, or removes it if the id is empty.
func (s *Server) editOrganization(c *call) (reply, error) {
	var body struct {
		Pool *string `json:"setDefaultAgentPoolID"`
	}
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		name, err := s.organization(t, c)
		if err != nil || body.Pool == nil {
			return err
		}
		if err := checkPool(t, name, *body.Pool); err != nil {
			return err
		}
		return t.SetDefaultPool(name, *body.Pool)
	})
	return reply{body: empty{}}, err
}
