package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// jobClaims are the claims of the OIDC token of a job (Pulumi documentation, "OpenID Connect integration").
type jobClaims struct {
	Issuer    string `json:"iss"`
	Audience  string `json:"aud"`
	Subject   string `json:"sub"`
	ID        string `json:"jti"`
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expires   int64  `json:"exp"`

	Organization string `json:"org"`
	Project      string `json:"project"`
	Stack        string `json:"stack"`
	StackID      string `json:"stackId"`
	Operation    string `json:"operation"`
	Scope        string `json:"scope"`
	Deployment   string `json:"deployment"`
}

// Lifetime of the OIDC token of a job without a timeout, and the longest one.
const (
	tokenLifetime    = 24 * time.Hour
	maxTokenLifetime = 25 * time.Hour
)

// jobOIDCToken returns the OIDC token of a claimed deployment. The token expires with the timeout of the job.
func (s *Server) jobOIDCToken(c *call, deployment string) (secret.String, error) {
	signer, err := s.signer(c.Context())
	if err != nil {
		return secret.String{}, err
	}
	claims := jobClaims{Issuer: s.base(c) + oidcPath, ID: newID(), Scope: "write", Deployment: deployment}
	lifetime := tokenLifetime
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		definition, st, operation, err := s.openDefinition(c.Context(), t, deployment)
		if err != nil {
			return err
		}
		claims.Organization, claims.Project, claims.Stack = st.Organization, st.Project, st.Name
		claims.StackID, claims.Operation = st.Path(), claimedOperation(operation)
		if timeout := time.Duration(definition.Timeout); timeout > 0 {
			lifetime = min(timeout, maxTokenLifetime)
		}
		return nil
	})
	if err != nil {
		return secret.String{}, err
	}
	claims.Audience = claims.Organization
	claims.Subject = strings.Join([]string{"pulumi:deploy:org", claims.Organization, "project", claims.Project,
		"stack", claims.Stack, "operation", claims.Operation, "scope", claims.Scope}, ":")
	claims.IssuedAt, claims.NotBefore, claims.Expires = c.now.Unix(), c.now.Unix(), c.now.Add(lifetime).Unix()
	return signer.Sign(claims)
}

// claimedOperation returns the operation that a token names: one of the four documented ones, or custom for a
// deployment whose steps come with the request.
func claimedOperation(operation string) string {
	switch operation {
	case "detect-drift":
		return "refresh"
	case "remediate-drift":
		return "update"
	case "":
		return "custom"
	}
	return operation
}

// openDefinition returns the stored definition of a deployment's job, its stack and its operation.
func (s *Server) openDefinition(
	ctx context.Context, t *store.Tx, deployment string,
) (d cloud.Definition, of store.Stack, operation string, err error) {
	stored, found, err := t.Definition(deployment)
	switch {
	case err != nil:
		return d, of, "", err
	case !found:
		return d, of, "", notFound("there is no deployment %q", deployment)
	}
	key, err := s.stackKey(ctx, stored.Stack.ID, stored.Stack.Key)
	if err != nil {
		return d, of, "", err
	}
	text, err := key.Open(stored.Sealed, forDefinition)
	if err != nil {
		return d, of, "", fmt.Errorf("decrypt a definition: %w", err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, of, "", fmt.Errorf("read a definition: %w", err)
	}
	return d, stored.Stack, stored.Operation, nil
}

// signingKeyName is the name of the signing key in the table meta.
const signingKeyName = "signing key"

// signer returns the signer of the jobs' tokens. The first call in a new data directory makes its key.
func (s *Server) signer(ctx context.Context) (*idtoken.Signer, error) {
	s.signing.Lock()
	defer s.signing.Unlock()
	if s.signs != nil {
		return s.signs, nil
	}
	var key []byte
	err := s.db.Write(ctx, func(t *store.Tx) error {
		sealed, found, err := t.Meta(signingKeyName)
		if err != nil {
			return err
		}
		if found {
			key, err = s.key.Open(sealed, forSigning)
			return err
		}
		if key, err = idtoken.NewKey(); err != nil {
			return err
		}
		return t.AddMeta(signingKeyName, s.key.Seal(key, forSigning))
	})
	if err != nil {
		return nil, fmt.Errorf("open the signing key: %w", err)
	}
	s.signs, err = idtoken.NewSigner(key)
	return s.signs, err
}

// oidcPath is the path of the issuer of the jobs' tokens, below the URL of the service. Its documents are at the
// paths of OpenID Connect Discovery 1.0, section 4.
const oidcPath = "/oidc"

func (s *Server) oidcDiscovery(c *call) (reply, error) {
	issuer := s.base(c) + oidcPath
	return reply{body: map[string]any{
		"issuer":                                issuer,
		"jwks_uri":                              issuer + "/.well-known/jwks",
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"claims_supported": []string{"aud", "exp", "iat", "iss", "jti", "nbf", "sub", "org", "project", "stack",
			"stackId", "operation", "scope", "deployment"},
	}}, nil
}

func (s *Server) oidcKeys(c *call) (reply, error) {
	signer, err := s.signer(c.Context())
	if err != nil {
		return reply{}, err
	}
	return reply{body: map[string]any{"keys": []idtoken.PublicKey{signer.PublicKey()}}}, nil
}
