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

// maxTokenFile limits a token file in bytes. A JWT is much smaller.
const maxTokenFile = 64 << 10

// credentials has the pool's token: a static token, or a token for which an OIDC token was
// exchanged. An exchanged token is renewed after 80 % of its lifetime. Each exchange reads
// the token file again, and no refresh token is used (Pulumi documentation, "OIDC token
// exchange"). The methods are safe for concurrent use. Only current blocks.
//
// The lifetime comes as a number of seconds, so the clocks of the agent and the service
// need not agree. The monotonic clock measures it, because the wall clock may be changed.
// On Linux the monotonic clock stops while the machine is suspended. So a renewal is also
// due when the wall clock has passed its time: one renewal too many does no harm.
type credentials struct {
	identity runtime.Identity
	log      *slog.Logger

	mu        sync.Mutex
	caller    *caller
	tuning    *runtime.Tuning
	token     secret.String
	renew     time.Time // when to make the next exchange
	renewWall time.Time // the same time without a monotonic reading
	expires   time.Time // when the service refuses the token
	failing   bool      // the last renewal failed, and the failure is logged
	pending   *exchanging
}

// exchanging is an exchange that has started. Other calls wait for it instead of making
// their own.
type exchanging struct {
	done      chan struct{} // closed at the end of the exchange
	err       error         // set before done is closed
	abandoned bool          // the context of its call has ended, so err does not concern other calls
}

// current returns the current token. Refused is a token that the service has just refused,
// or empty. With OIDC a new exchange replaces a refused token, unless another call has
// replaced it already. If a renewal fails, the old token is used until it expires.
func (c *credentials) current(ctx context.Context, refused secret.String) (secret.String, error) {
	for {
		// Use the current token, or begin an exchange.
		c.mu.Lock()
		if token, ok := c.usable(refused); ok {
			c.mu.Unlock()
			return token, nil
		}
		other := c.pending
		if other == nil {
			e := &exchanging{done: make(chan struct{})}
			c.pending = e
			tuning, by := c.tuning, c.caller
			c.mu.Unlock()
			token, err := c.replace(ctx, refused, tuning, by)
			c.mu.Lock()
			c.pending, e.err, e.abandoned = nil, err, ctx.Err() != nil
			c.mu.Unlock()
			close(e.done)
			return token, err
		}
		c.mu.Unlock()

		// Wait for the exchange of another call.
		select {
		case <-other.done:
		case <-ctx.Done():
			return secret.String{}, context.Cause(ctx)
		}
		if other.err != nil && !other.abandoned {
			return secret.String{}, other.err
		}
	}
}

// replace exchanges the OIDC token, and returns the new token. If the exchange fails, it
// returns the old token, unless the service has refused the old token or it has expired.
func (c *credentials) replace(ctx context.Context, refused secret.String, tuning *runtime.Tuning, by *caller) (
	secret.String, error) {
	begin := time.Now() // the lifetime begins at the service, before the response arrives
	token, lifetime, err := exchange(ctx, c.identity, tuning, by)

	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil && c.tuning.OIDCTokenFile != tuning.OIDCTokenFile:
		return token, nil // for this call only, because oidc_token_file has changed
	case err == nil:
		if c.failing {
			c.log.Info("token renewal resumed")
		}
		c.token, c.expires, c.failing = token, begin.Add(lifetime), false
		c.renewAt(begin.Add(lifetime * 4 / 5))
	case !c.token.Empty() && c.token != refused && now.Before(c.expires):
		level := slog.LevelDebug
		if !c.failing {
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "token renewal failed; the old token is used until it expires",
			"expires", c.expires, "retry_in", renewRetry, "error", err)
		c.failing = true
		c.renewAt(now.Add(renewRetry))
	default:
		return secret.String{}, err
	}
	if c.tuning.OIDCSum != tuning.OIDCSum {
		c.renewAt(now) // the file has new content, which was not tried yet
	}
	return c.token, nil
}

// renewAt sets the time of the next renewal. The caller has locked mu.
func (c *credentials) renewAt(at time.Time) { c.renew, c.renewWall = at, at.Round(0) }

// usable returns the current token, and reports whether it can be used. The caller has
// locked mu.
func (c *credentials) usable(refused secret.String) (secret.String, bool) {
	if c.tuning.OIDCTokenFile == "" {
		return c.tuning.Token, true
	}
	now := time.Now()
	return c.token, !c.token.Empty() && c.token != refused && now.Before(c.renew) && now.Round(0).Before(c.renewWall)
}

// renewable reports whether an exchange can replace a refused token.
func (c *credentials) renewable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tuning.OIDCTokenFile != ""
}

// expiry returns when the exchanged token expires. It returns the zero time for a
// static token and before the first exchange.
func (c *credentials) expiry() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token.Empty() || c.tuning.OIDCTokenFile == "" {
		return time.Time{}
	}
	return c.expires
}

func (c *credentials) tune(tuning *runtime.Tuning, by *caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caller = by
	switch {
	case tuning.OIDCTokenFile != c.tuning.OIDCTokenFile:
		c.token = secret.String{}
	case tuning.OIDCSum != c.tuning.OIDCSum:
		c.renewAt(time.Time{}) // at the next call; if that fails, the token stays in use
	}
	c.tuning = tuning
}

// exchangeError is a failed token exchange. Its text names what to check.
type exchangeError struct {
	err   error
	check string
	local bool // no request was made
}

func (e *exchangeError) Error() string {
	return fmt.Sprintf("exchange the OIDC token: %v: check %s", e.err, e.check)
}

func (e *exchangeError) Unwrap() error { return e.err }

// refused reports whether the service has refused the token. A redirect is not a refusal.
func (e *exchangeError) refused() bool {
	status, ok := errors.AsType[*StatusError](e.err)
	return ok && !transientStatus(status.Code) && status.Location == ""
}

// Is reports a refused exchange as [runtime.ErrUnauthorized].
func (e *exchangeError) Is(target error) bool {
	return target == runtime.ErrUnauthorized && e.refused()
}

// exchange exchanges the content of the token file for a pool token, and returns it with
// its lifetime. An error is an *exchangeError and contains neither token.
func exchange(ctx context.Context, identity runtime.Identity, tuning *runtime.Tuning, by *caller) (secret.String,
	time.Duration, error) {
	fail := func(err error, check string) (secret.String, time.Duration, error) {
		return secret.String{}, 0, &exchangeError{err: err, check: check}
	}
	subject, err := readTokenFile(tuning.OIDCTokenFile)
	if err != nil {
		return secret.String{}, 0, &exchangeError{
			err:   fmt.Errorf("read oidc_token_file: %w", err),
			check: "that oidc_token_file names the file with the token, and is not the token itself", local: true,
		}
	}

	form := url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"audience":             {"urn:pulumi:org:" + identity.Organization},
		"subject_token_type":   {"urn:ietf:params:oauth:token-type:id_token"},
		"subject_token":        {subject.Reveal()},
		"requested_token_type": {"urn:pulumi:token-type:access_token:runner"},
		"scope":                {"runner:" + identity.PoolID},
	}
	if lifetime := tuning.TokenExpiration; lifetime > 0 {
		form.Set("expiration", strconv.Itoa(int(lifetime.Seconds())))
	}
	limit, cancel := context.WithTimeout(ctx, tuning.RequestTimeout)
	defer cancel()
	_, _, text, err := by.do(limit, call{
		method: http.MethodPost, path: exchangePath,
		body: []byte(form.Encode()), contentType: "application/x-www-form-urlencoded", masked: subject,
	})

	status, answered := errors.AsType[*StatusError](err)
	switch {
	case answered && status.Code == http.StatusNotFound:
		return fail(err, "service_url, organization_name and runner_pool_id: "+
			"the service does not know them, or has no token exchange")
	case answered && transientStatus(status.Code):
		return fail(err, "the service's health")
	case answered && status.Location != "":
		return fail(&redirectError{status, exchangePath}, "service_url")
	case answered:
		return fail(err, "organization_name, runner_pool_id and token_expiration, that oidc_token_file is renewed, "+
			"and that the organization trusts its issuer for this pool")
	case untrusted(err):
		return fail(withoutURL(err), "service_url, or that ca_file has the certificates of the service's authority")
	case err != nil:
		return fail(withoutURL(err), "service_url and the network")
	}

	token, lifetime, err := readExchanged(text, tuning.TokenExpiration)
	if err != nil {
		return fail(err, "service_url")
	}
	return token, lifetime, nil
}

// readExchanged reads the response to an exchange. Requested is the lifetime in the request,
// or 0 if the request had none. If the response has no valid lifetime, readExchanged returns
// the requested one, but at most the default of the service: an early renewal does no harm.
func readExchanged(text []byte, requested time.Duration) (secret.String, time.Duration, error) {
	var answer struct {
		Token   secret.String   `json:"access_token"`
		Expires json.RawMessage `json:"expires_in"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Token.Empty() {
		return secret.String{}, 0, errors.New("the response has no access_token")
	}
	invalid := func(r rune) bool { return r <= ' ' || r >= 0x7f } // in the Authorization header
	if strings.ContainsFunc(answer.Token.Reveal(), invalid) {
		return secret.String{}, 0, errors.New("the access_token of the response contains characters that no token has")
	}

	// Read the lifetime: a number, or a text with a number or a duration.
	seconds, err := strconv.ParseFloat(strings.Trim(string(answer.Expires), `" `), 64)
	if err != nil {
		if span, err := time.ParseDuration(strings.Trim(string(answer.Expires), `" `)); err == nil {
			seconds = span.Seconds()
		}
	}
	if seconds > 0 {
		return answer.Token, time.Duration(min(seconds, maxTokenLifetime.Seconds()) * float64(time.Second)), nil
	}
	if requested > 0 {
		return answer.Token, min(requested, defaultTokenLifetime), nil
	}
	return answer.Token, defaultTokenLifetime, nil
}

// readTokenFile returns the token in a file, without white space around it. An error does
// not contain the path, because users may set the token itself as the path by mistake.
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
		return secret.String{}, fmt.Errorf("the file is larger than %d KiB, too large for a token", maxTokenFile>>10)
	case token == "":
		return secret.String{}, errors.New("the file is empty")
	}
	return secret.New(token), nil
}

// tokenFileError returns the error for a token file. It does not wrap the error of the
// system, which contains the path.
func tokenFileError(err error) error {
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return errors.New("it is not a regular file")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return errors.New("the file does not exist")
	case errors.Is(err, fs.ErrPermission):
		return errors.New("this user is not allowed to read the file")
	case errors.Is(err, syscall.ENAMETOOLONG):
		return errors.New("the value is too long for a file's name")
	}
	return errors.New("the file cannot be read")
}

// authorized makes a call with the pool's token. If the token is refused and can be
// renewed, it makes the call once more with a new token.
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
