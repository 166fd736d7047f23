package server

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// kind is the kind of the holder of a token.
type kind string

const (
	userToken          kind = "user"          // a person
	administratorToken kind = "administrator" // an organization, with the rights of an administrator
	memberToken        kind = "member"        // an organization, with the rights of a member
	poolToken          kind = "pool"          // the agents of a pool
	jobToken           kind = "job"           // the runner of one job
	stackToken         kind = "stack"         // the programs in one job, for their stack
	leaseToken         kind = "lease"         // the agent that holds a lease
	updateToken        kind = "update"        // the client that runs an update of a stack; see the table updates

	// sessionToken is a session of the web page. Its subject is the hash of the access token that opened it, so
	// that the session ends with that token.
	sessionToken kind = "session"
)

// prefix returns the beginning of all tokens of a kind. Pulumi documents the prefix of
// pool tokens.
func (k kind) prefix() string {
	switch k {
	case poolToken:
		return "pul-"
	case jobToken:
		return "cmwa-job-"
	case stackToken:
		return "cmwa-stack-"
	case leaseToken:
		return "cmwa-lease-"
	case administratorToken, memberToken:
		return "cmwa-organization-"
	case updateToken:
		return "cmwa-update-"
	case sessionToken:
		return "cmwa-session-"
	default:
		return "cmwa-user-"
	}
}

// mint returns a new token with 256 random bits.
func (k kind) mint() secret.String {
	raw := make([]byte, 32)
	rand.Read(raw)
	return secret.New(k.prefix() + hex.EncodeToString(raw))
}

// hash returns the stored form of a token. It needs no salt, because a token has as many
// random bits as its hash.
func hash(token secret.String) []byte {
	sum := sha256.Sum256([]byte(token.Reveal()))
	return sum[:]
}

// principal is the sender of a call.
type principal struct {
	kind    kind   // empty if the token is unknown
	subject string // the name of the user or organization, or the id of the pool, deployment, lease or update
}

// sender is the principal of a call, with the place to which its token is limited.
type sender struct {
	principal
	organization string // of the token of an organization, of a job's programs or of an update; otherwise empty
	stack        string // of the token of a job's programs or of an update: organization/project/name

	tokenID, tokenName string    // of an access token, which a person has made; otherwise empty
	lastUsed           time.Time // of the access token, up to a minute too early; zero before the first use
}

// saveToken stores a token that does not expire.
func saveToken(t *store.Tx, token secret.String, p principal) error {
	return saveTokenUntil(t, token, p, time.Time{})
}

// saveTokenUntil stores a token that expires at end. With the zero time it does not expire.
func saveTokenUntil(t *store.Tx, token secret.String, p principal, end time.Time) error {
	return t.AddToken(hash(token), string(p.kind), p.subject, end)
}

// dropTokens deletes the tokens of a subject.
func dropTokens(t *store.Tx, p principal) error { return t.DeleteTokens(string(p.kind), p.subject) }

// tokenHolder returns the holder of a token. It returns the zero value for an unknown or
// expired token.
func tokenHolder(t *store.Tx, token secret.String, now time.Time) (sender, error) {
	found, ok, err := t.TokenHolder(hash(token), now)
	if err != nil || !ok {
		return sender{}, err
	}
	holder := sender{
		principal: principal{kind(found.Kind), found.Subject},
		tokenID:   found.ID, tokenName: found.Name, lastUsed: found.LastUsed,
	}
	switch holder.kind {
	case administratorToken, memberToken:
		holder.organization = holder.subject
	case stackToken:
		var project, name string
		holder.organization, project, name, err = t.StackOfDeployment(holder.subject)
		holder.stack = holder.organization + "/" + project + "/" + name
	}
	return holder, err
}

// updateScheme is the scheme of the Authorization header with the token of an update's lease.
const updateScheme = "update-token"

// bearer returns the token of a request with one scheme, such as "token".
func bearer(r *http.Request, want string) (secret.String, bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, want) || token == "" || len(token) > 4096 {
		return secret.String{}, false
	}
	return secret.New(token), true
}
