package store

import "time"

// AddToken stores the hash of a token of a kind for a subject. The token expires at end, or never if end is zero.
func (t *Tx) AddToken(hash []byte, kind, subject string, end time.Time) error {
	_, err := t.exec(`INSERT INTO tokens (hash, kind, subject, expires) VALUES (?, ?, ?, ?)`,
		hash, kind, subject, ToNanos(end))
	return err
}

// DeleteTokens deletes the tokens of a kind and subject.
func (t *Tx) DeleteTokens(kind, subject string) error {
	_, err := t.exec(`DELETE FROM tokens WHERE kind = ? AND subject = ?`, kind, subject)
	return err
}

// HasToken reports whether there is a token of a kind and subject.
func (t *Tx) HasToken(kind, subject string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM tokens WHERE kind = ? AND subject = ? LIMIT 1`, kind, subject)
}

// ExpireTokens sets the end of the tokens of a kind and subject.
func (t *Tx) ExpireTokens(kind, subject string, end time.Time) error {
	_, err := t.exec(`UPDATE tokens SET expires = ? WHERE kind = ? AND subject = ?`, ToNanos(end), kind, subject)
	return err
}

// ExpireJobTokens sets the end of the tokens with which runners and agents report about a job. ID is that of its
// deployment or lease.
func (t *Tx) ExpireJobTokens(id string, end time.Time) error {
	_, err := t.exec(`UPDATE tokens SET expires = ? WHERE kind IN ('job', 'lease') AND subject = ?`, ToNanos(end), id)
	return err
}

// DeleteExpiredTokens deletes the tokens that have expired.
func (t *Tx) DeleteExpiredTokens(now time.Time) error {
	_, err := t.exec(`DELETE FROM tokens WHERE expires > 0 AND expires <= ?`, ToNanos(now))
	return err
}

// DeleteToken deletes a token of a kind by its hash, if there is one.
func (t *Tx) DeleteToken(hash []byte, kind string) error {
	_, err := t.exec(`DELETE FROM tokens WHERE hash = ? AND kind = ?`, hash, kind)
	return err
}

// Holder is the holder of a token. ID, Name and LastUsed are those of an AccessToken, and empty for other tokens.
// Name is the description of a token without a name.
type Holder struct {
	Kind, Subject string
	ID, Name      string
	LastUsed      time.Time
}

// TokenHolder returns the holder of a token by its hash. Found is false for an unknown or expired token.
func (t *Tx) TokenHolder(hash []byte, now time.Time) (h Holder, found bool, err error) {
	var used int64
	found, err = t.get([]any{&h.Kind, &h.Subject, &h.ID, &h.Name, &used},
		`SELECT t.kind, t.subject, COALESCE(a.id, ''), COALESCE(a.name, a.description, ''), COALESCE(a.last_used, 0)
			FROM tokens t LEFT JOIN access_tokens a ON a.hash = t.hash
			WHERE t.hash = ? AND (t.expires = 0 OR t.expires > ?)`, hash, ToNanos(now))
	h.LastUsed = FromNanos(used)
	return h, found, err
}

// AccessToken is a token that a person has made.
type AccessToken struct {
	ID, Kind, Subject      string
	Name                   string // unique for the subject, also among deleted tokens; empty for tokens of users
	Description, CreatedBy string
	Created                time.Time
	Expires, LastUsed      time.Time // zero means never
}

// AddAccessToken stores a token with its hash. The error is ErrDuplicate if the subject has or had a token with
// this name.
func (t *Tx) AddAccessToken(a AccessToken, hash []byte) error {
	var name *string
	if a.Name != "" {
		name = &a.Name
	}
	_, err := t.exec(`INSERT INTO access_tokens
		(id, hash, kind, subject, name, description, created, created_by, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		a.ID, hash, a.Kind, a.Subject, name, a.Description, ToNanos(a.Created), a.CreatedBy, ToNanos(a.Expires))
	if err != nil {
		return err
	}
	return t.AddToken(hash, a.Kind, a.Subject, a.Expires)
}

// AccessTokens returns the tokens of a user, or those of an organization, the newest first. Deleted ones are omitted.
func (t *Tx) AccessTokens(subject string, ofUser bool) ([]AccessToken, error) {
	return rows(t, func(scan func(...any) error) (a AccessToken, err error) {
		var created, expires, used int64
		err = scan(&a.ID, &a.Kind, &a.Subject, &a.Name, &a.Description, &a.CreatedBy, &created, &expires, &used)
		a.Created, a.Expires, a.LastUsed = FromNanos(created), FromNanos(expires), FromNanos(used)
		return a, err
	}, `SELECT id, kind, subject, COALESCE(name, ''), description, created_by, created, expires, last_used
		FROM access_tokens WHERE subject = ? AND (kind = 'user') = ? AND hash IS NOT NULL ORDER BY created DESC, id`,
		subject, ofUser)
}

// DeleteAccessToken deletes a token of a user, or of an organization. Its name stays in use. Found is false if
// the subject has no such token.
func (t *Tx) DeleteAccessToken(id, subject string, ofUser bool) (found bool, err error) {
	var hash []byte
	found, err = t.get([]any{&hash}, `SELECT hash FROM access_tokens
		WHERE id = ? AND subject = ? AND (kind = 'user') = ? AND hash IS NOT NULL`, id, subject, ofUser)
	if err != nil || !found {
		return false, err
	}
	if _, err := t.exec(`DELETE FROM tokens WHERE hash = ?`, hash); err != nil {
		return false, err
	}
	_, err = t.exec(`UPDATE access_tokens SET hash = NULL WHERE id = ?`, id)
	return true, err
}

// UseAccessToken records the use of a token, unless a later one is recorded.
func (t *Tx) UseAccessToken(id string, now time.Time) error {
	_, err := t.exec(`UPDATE access_tokens SET last_used = ? WHERE id = ? AND last_used < ?`,
		ToNanos(now), id, ToNanos(now))
	return err
}
