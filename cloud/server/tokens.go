package server

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// kind is what a token's holder is.
type kind string

const (
	userToken  kind = "user"  // a person
	poolToken  kind = "pool"  // the agents of a pool
	jobToken   kind = "job"   // the runner of one job
	stackToken kind = "stack" // the programs in one job, for their stack
)

// prefixes make tokens recognisable. That of pools is Pulumi's documented one.
func (k kind) prefix() string {
	switch k {
	case poolToken:
		return "pul-"
	case jobToken:
		return "cmwa-job-"
	case stackToken:
		return "cmwa-stack-"
	default:
		return "cmwa-user-"
	}
}

// mint makes a token of 256 random bits.
func (k kind) mint() secret.String {
	raw := make([]byte, 32)
	rand.Read(raw)
	return secret.New(k.prefix() + hex.EncodeToString(raw))
}

// hash is what the database knows of a token. No salt is needed against
// guessing: a token is as long as its hash.
func hash(token secret.String) []byte {
	sum := sha256.Sum256([]byte(token.Reveal()))
	return sum[:]
}

// principal is who calls.
type principal struct {
	kind    kind   // empty: nobody that the service knows
	subject string // the user's name, the pool's id, or the deployment's id
}

// saveToken lets a token in from now on.
func saveToken(t *tx, token secret.String, p principal) error {
	return saveTokenUntil(t, token, p, time.Time{})
}

// saveTokenUntil lets a token in from now on until a time; zero is for ever.
func saveTokenUntil(t *tx, token secret.String, p principal, end time.Time) error {
	_, err := t.exec(`INSERT INTO tokens (hash, kind, subject, expires) VALUES (?, ?, ?, ?)`, hash(token), p.kind, p.subject, stamp(end))
	return err
}

// dropTokens shuts the tokens of a subject out.
func dropTokens(t *tx, p principal) error {
	_, err := t.exec(`DELETE FROM tokens WHERE kind = ? AND subject = ?`, p.kind, p.subject)
	return err
}

// whoIs finds the holder of a token; nobody when it is none of ours or over.
func whoIs(t *tx, token secret.String, now time.Time) (principal, error) {
	var p principal
	_, err := t.get([]any{&p.kind, &p.subject}, `SELECT kind, subject FROM tokens WHERE hash = ? AND (expires = 0 OR expires > ?)`, hash(token), stamp(now))
	return p, err
}

// bearer is the token that a request carries. Pulumi's clients write the scheme
// "token"; nothing else is accepted.
func bearer(r *http.Request) (secret.String, bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, cloud.AuthScheme) || token == "" || len(token) > 4096 {
		return secret.String{}, false
	}
	return secret.New(token), true
}
