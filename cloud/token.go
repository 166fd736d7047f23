package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/secret"
)

// maxTokenFile limits a token file in bytes; a JWT is far smaller.
const maxTokenFile = 64 << 10

// credentials yields the pool's token: a static one, or one that is exchanged
// for an OIDC token and renewed ahead of its end. The token file is the source
// of truth: it is read anew for every exchange, and a refresh token is never
// used (Pulumi documentation, "OIDC token exchange").
type credentials struct {
	identity runtime.Identity
	caller   *caller

	mu     sync.Mutex
	tuning runtime.Tuning
	token  secret.String
	renew  time.Time // when to exchange ahead of the token's end
}

// current returns the token to use now. Fresh says that the last one was
// refused: with OIDC it is exchanged anew.
func (c *credentials) current(ctx context.Context, fresh bool) (secret.String, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tuning.OIDCTokenFile == "" {
		return c.tuning.Token, nil
	}
	if !fresh && !c.token.Empty() && time.Now().Before(c.renew) {
		return c.token, nil
	}
	token, life, err := c.exchange(ctx)
	if err != nil {
		return secret.String{}, err
	}
	c.token, c.renew = token, time.Now().Add(life*4/5)
	return token, nil
}

// renewable reports whether a refused token can be replaced by asking again.
func (c *credentials) renewable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tuning.OIDCTokenFile != ""
}

func (c *credentials) tune(tuning runtime.Tuning, by *caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caller = by
	if tuning.OIDCTokenFile != c.tuning.OIDCTokenFile {
		c.token = secret.String{}
	}
	c.tuning = tuning
}

// exchange trades the file's content for a pool token and its life. Neither
// shows in an error. The caller holds the lock.
func (c *credentials) exchange(ctx context.Context) (secret.String, time.Duration, error) {
	subject, err := readTokenFile(c.tuning.OIDCTokenFile)
	if err != nil {
		return secret.String{}, 0, fmt.Errorf("read oidc_token_file: %w", err)
	}
	form := url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"audience":             {"urn:pulumi:org:" + c.identity.Organization},
		"subject_token_type":   {"urn:ietf:params:oauth:token-type:id_token"},
		"subject_token":        {subject.Reveal()},
		"requested_token_type": {"urn:pulumi:token-type:access_token:runner"},
		"scope":                {"runner:" + c.identity.PoolID},
	}
	if life := c.tuning.TokenExpiration; life > 0 {
		form.Set("expiration", strconv.Itoa(int(life.Seconds())))
	}
	ctx, cancel := context.WithTimeout(ctx, c.tuning.RequestTimeout)
	defer cancel()
	_, _, text, err := c.caller.do(ctx, call{
		method: http.MethodPost, path: "/api/oauth/token",
		body: []byte(form.Encode()), contentType: "application/x-www-form-urlencoded",
	})
	if err != nil {
		return secret.String{}, 0, fmt.Errorf("exchange the OIDC token: %w", plain(err))
	}
	var answer struct {
		Token   secret.String `json:"access_token"`
		Expires float64       `json:"expires_in"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Token.Empty() {
		return secret.String{}, 0, errors.New("exchange the OIDC token: the service's answer has no access_token")
	}
	life := 2 * time.Hour // what the service gives when nobody says otherwise
	if answer.Expires > 0 {
		life = time.Duration(answer.Expires * float64(time.Second))
	}
	return answer.Token, life, nil
}

// readTokenFile reads a token, without the white space around it.
func readTokenFile(path string) (secret.String, error) {
	file, err := os.Open(path)
	if err != nil {
		return secret.String{}, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err != nil {
		return secret.String{}, err
	}
	token := strings.TrimSpace(string(text))
	switch {
	case len(text) > maxTokenFile:
		return secret.String{}, fmt.Errorf("%s is larger than %d KiB, so it is no token", path, maxTokenFile>>10)
	case token == "":
		return secret.String{}, fmt.Errorf("%s is empty", path)
	}
	return secret.New(token), nil
}
