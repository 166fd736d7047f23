package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// exchangePath is the path of the token exchange.
const exchangePath = "/api/oauth/token"

// maxTokenFile limits a token file in bytes; a JWT is far smaller.
const maxTokenFile = 64 << 10

// renewAgain is the time between two tries to renew a token that is still good.
const renewAgain = time.Minute

// credentials yields the pool's token: a static one, or one that is exchanged
// for an OIDC token and renewed ahead of its end. The token file is the source
// of truth: it is read anew for every exchange, and a refresh token is never
// used (Pulumi documentation, "OIDC token exchange"). Its methods are safe for
// concurrent use, and only current waits.
type credentials struct {
	identity runtime.Identity
	log      *slog.Logger
	turn     sync.Mutex // of the one exchange at a time

	mu      sync.Mutex
	caller  *caller
	tuning  runtime.Tuning
	token   secret.String
	renew   time.Time // when to exchange ahead of the token's end
	ends    time.Time // when the service refuses the token
	failing bool      // the last renewal failed, and this was said
}

// current returns the token to use now. Refused is one that the service has just
// refused, or empty: with OIDC it is exchanged anew, unless somebody has done so
// already. A renewal that fails ahead of time leaves the old token in use until
// its end.
func (c *credentials) current(ctx context.Context, refused secret.String) (secret.String, error) {
	if token, ok := c.have(refused); ok {
		return token, nil
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if token, ok := c.have(refused); ok {
		return token, nil
	}
	c.mu.Lock()
	tuning, by := c.tuning, c.caller
	c.mu.Unlock()
	token, life, err := exchange(ctx, c.identity, tuning, by)

	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil && c.tuning.OIDCTokenFile != tuning.OIDCTokenFile:
		return token, nil // good for this once: there is another file now
	case err == nil:
		if c.failing {
			c.log.Info("the pool's token is renewed again")
		}
		c.token, c.renew, c.ends, c.failing = token, now.Add(life*4/5), now.Add(life), false
		if c.tuning.OIDCSum != tuning.OIDCSum {
			c.renew = now // for the content that came meanwhile
		}
		return token, nil
	case !c.token.Empty() && c.token != refused && now.Before(c.ends):
		level := slog.LevelDebug
		if !c.failing {
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "the pool's token cannot be renewed; using the old one until its end", "end", c.ends, "error", err)
		c.renew, c.failing = now.Add(renewAgain), true
		if c.tuning.OIDCSum != tuning.OIDCSum {
			c.renew = now // the content that came meanwhile has not been tried
		}
		return c.token, nil
	}
	return secret.String{}, err
}

// have returns the token that is at hand, if it is still to be used.
func (c *credentials) have(refused secret.String) (secret.String, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tuning.OIDCTokenFile == "" {
		return c.tuning.Token, true
	}
	return c.token, !c.token.Empty() && c.token != refused && time.Now().Before(c.renew)
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
	switch {
	case tuning.OIDCTokenFile != c.tuning.OIDCTokenFile:
		c.token = secret.String{}
	case tuning.OIDCSum != c.tuning.OIDCSum:
		c.renew = time.Time{} // at the next call; until then, and if that fails, the token is good
	}
	c.tuning = tuning
}

// exchangeError is a token exchange that failed. Its text names the exchange and
// says what to check.
type exchangeError struct {
	err   error
	check string
	local bool // the service was not asked
}

func (e *exchangeError) Error() string {
	return fmt.Sprintf("exchange the OIDC token: %v: check %s", e.err, e.check)
}

func (e *exchangeError) Unwrap() error { return e.err }

// refused reports whether the service has answered, and with no. A redirect is no
// answer to the token.
func (e *exchangeError) refused() bool {
	var status *StatusError
	return errors.As(e.err, &status) && !transientStatus(status.Code) && status.Location == ""
}

// Is says that a refused exchange is a refused token.
func (e *exchangeError) Is(target error) bool {
	return target == runtime.ErrUnauthorized && e.refused()
}

// exchange trades the file's content for a pool token and its life. Neither
// shows in an error, which is an *exchangeError.
func exchange(ctx context.Context, identity runtime.Identity, tuning runtime.Tuning, by *caller) (secret.String, time.Duration, error) {
	fail := func(err error, check string) (secret.String, time.Duration, error) {
		return secret.String{}, 0, &exchangeError{err: err, check: check}
	}
	subject, err := readTokenFile(tuning.OIDCTokenFile)
	if err != nil {
		return secret.String{}, 0, &exchangeError{err: fmt.Errorf("read oidc_token_file: %w", err), check: "that oidc_token_file names the file that holds the token, and is not the token itself", local: true}
	}
	form := url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"audience":             {"urn:pulumi:org:" + identity.Organization},
		"subject_token_type":   {"urn:ietf:params:oauth:token-type:id_token"},
		"subject_token":        {subject.Reveal()},
		"requested_token_type": {"urn:pulumi:token-type:access_token:runner"},
		"scope":                {"runner:" + identity.PoolID},
	}
	if life := tuning.TokenExpiration; life > 0 {
		form.Set("expiration", strconv.Itoa(int(life.Seconds())))
	}
	limit, cancel := context.WithTimeout(ctx, tuning.RequestTimeout)
	defer cancel()
	_, _, text, err := by.do(limit, call{
		method: http.MethodPost, path: exchangePath,
		body: []byte(form.Encode()), contentType: "application/x-www-form-urlencoded",
	})
	var status *StatusError
	switch {
	case errors.As(err, &status) && status.Code == http.StatusNotFound:
		return fail(err, "service_url, organization_name and runner_pool_id: the service has no such exchange, or does not know them")
	case errors.As(err, &status) && transientStatus(status.Code):
		return fail(err, "the service's health")
	case errors.As(err, &status) && status.Location != "":
		return fail(&redirectError{status, exchangePath}, "service_url")
	case errors.As(err, &status):
		return fail(err, "organization_name, runner_pool_id and token_expiration, that oidc_token_file is renewed, and that the organization trusts its issuer for this pool")
	case untrusted(err):
		return fail(plain(err), "service_url, or name the certificates of the service's authority in ca_file")
	case err != nil:
		return fail(plain(err), "service_url and the network")
	}
	var answer struct {
		Token   secret.String `json:"access_token"`
		Expires float64       `json:"expires_in"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Token.Empty() {
		return fail(errors.New("the answer has no access_token"), "service_url")
	}
	life := 2 * time.Hour // what the service gives when nobody says otherwise
	if answer.Expires > 0 {
		life = time.Duration(min(answer.Expires, maxLife.Seconds()) * float64(time.Second))
	}
	return answer.Token, life, nil
}

// maxLife is the longest life of a token that is believed.
const maxLife = 366 * 24 * time.Hour

// readTokenFile reads a token, without the white space around it. An error does
// not contain the path, because users write the token itself there by mistake.
func readTokenFile(path string) (secret.String, error) {
	file, _, err := secret.OpenRegular(path)
	if err != nil {
		return secret.String{}, tokenFileError(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err != nil {
		return secret.String{}, tokenFileError(err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case len(text) > maxTokenFile:
		return secret.String{}, fmt.Errorf("the file is larger than %d KiB, so it is no token", maxTokenFile>>10)
	case token == "":
		return secret.String{}, errors.New("the file is empty")
	}
	return secret.New(token), nil
}

// tokenFileError says what is wrong with a token file in words of its own, and
// wraps nothing, since what the system says holds the path.
func tokenFileError(err error) error {
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return errors.New("it is not a regular file")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return errors.New("the file is not there")
	case errors.Is(err, fs.ErrPermission):
		return errors.New("this user is not allowed to read the file")
	case errors.Is(err, syscall.ENAMETOOLONG):
		return errors.New("the value is too long for a file's name")
	}
	return errors.New("the file cannot be read")
}

// authorized makes a call with the pool's token, and once more with a new one
// if the token can be renewed and was refused.
func (c *Client) authorized(ctx context.Context, call func(token secret.String) error) error {
	token, err := c.credentials.current(ctx, secret.String{})
	if err != nil {
		return err
	}
	err = call(token)
	if !errors.Is(err, runtime.ErrUnauthorized) || !c.credentials.renewable() {
		return err
	}
	token, err = c.credentials.current(ctx, token)
	if err != nil {
		return err
	}
	return call(token)
}
