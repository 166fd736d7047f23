package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/secret"
)

// rules checks what no key can say alone, and fills in what follows from other
// keys. A rule is silent if a value that it needs is out already.
func (l *load) rules(c *Config) {
	l.service(c)
	l.credentials(c)
	l.times(c)
	if c.WorkingDirectory == "" {
		c.WorkingDirectory = directoryOf(l.source.Executable)
	}
	slices.Sort(c.EnabledWorkflowTypes)
	c.EnabledWorkflowTypes = slices.Compact(c.EnabledWorkflowTypes)
}

// about places a problem at the first of the keys that is set.
func (l *load) about(c *Config, severity Severity, rule Rule, message, hint string, keys ...string) {
	p := Problem{Severity: severity, Rule: rule, File: l.source.Path, Path: keys[0], Message: message, Hint: hint}
	for _, key := range keys {
		if at, ok := c.origins[key]; ok {
			p.File, p.Line, p.Column = at.File, at.Line, at.Column
			if at.Variable != "" && key == keys[0] {
				p.Path = at.Variable
			}
			break
		}
	}
	l.report(p)
}

// good reports whether none of the keys is out.
func (l *load) good(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return l.bad[key] })
}

func (l *load) service(c *Config) {
	if l.good("service_url") {
		if u, err := url.Parse(c.ServiceURL); err != nil || u.Hostname() == "" {
			l.about(c, Error, RuleValue, "must be "+l.byKey["service_url"].sentence(), "", "service_url")
		}
	}
	c.ServiceURL = strings.TrimRight(c.ServiceURL, "/")
}

// credentials settles which of token, token_file and OIDC is used. OIDC wins
// over both; of the two others the environment's wins over the file's.
func (l *load) credentials(c *Config) {
	if !l.good("token", "token_file", "oidc_token_file") {
		return
	}
	hasToken, hasFile := !c.Token.Empty(), c.TokenFile != ""
	switch {
	case c.OIDCTokenFile != "":
		l.exchange(c, map[string]bool{"token": hasToken, "token_file": hasFile})
		c.Token = secret.String{}
	case hasToken && hasFile && l.above(c, "token") == l.above(c, "token_file"):
		l.about(c, Error, RuleCredentials, "must not be set beside token", "remove one of the two", "token_file")
	case hasFile && (!hasToken || l.above(c, "token_file")):
		c.Token = l.tokenFrom(c)
	case !hasToken:
		hint := fmt.Sprintf("set token or token_file in the file, or the variable %s; or use OIDC with oidc_token_file, organization_name and runner_pool_id", l.variableOf("token"))
		if l.source.Path == "" && len(l.source.Searched) > 0 {
			hint += "; there is no " + FileName + " in " + strings.Join(l.source.Searched, ", ")
		}
		l.about(c, Error, RuleMissingToken, "there is no pool access token", hint, "token")
	}
}

// above reports whether a variable sets the key.
func (l *load) above(c *Config, key string) bool { return c.origins[key].Variable != "" }

// exchange checks the set of keys that an exchange of an OIDC token needs, and
// the keys that it makes useless.
func (l *load) exchange(c *Config, others map[string]bool) {
	for key, value := range map[string]string{"organization_name": c.OrganizationName, "runner_pool_id": c.RunnerPoolID} {
		if value == "" && l.good(key) {
			l.about(c, Error, RuleCredentials, "must be set beside oidc_token_file", "add it, or set "+l.variableOf(key), key, "oidc_token_file")
		}
	}
	for key, set := range others {
		if set {
			l.about(c, Warning, RuleCredentials, "has no effect beside oidc_token_file", "remove one of the two", key)
		}
	}
}

// tokenFrom reads the token file. Its name stays out of messages: people put the
// token itself there.
func (l *load) tokenFrom(c *Config) secret.String {
	refuse := func(message, hint string) secret.String {
		if strings.HasPrefix(c.TokenFile, "pul-") {
			hint = "the value looks like a token; give the name of a file that holds it"
		}
		l.about(c, Error, RuleFile, message, hint, "token_file")
		return secret.String{}
	}
	content, err := l.source.read(c.TokenFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("there is no such file", "put the token into it, or correct the name")
	case errors.Is(err, fs.ErrPermission):
		return refuse("the file must not be read by this user", "give the agent's user the right to read it")
	case err != nil:
		return refuse("the file cannot be read", "name a regular file")
	}
	l.files = append(l.files, c.TokenFile)
	fmt.Fprintf(l.digest, "\x00token_file\x00%s", content)
	token := string(bytes.TrimSpace(content))
	if token == "" {
		return refuse("the file is empty", "put the token into it")
	}
	if len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return refuse("the file must hold one token and nothing else", "")
	}
	return secret.New(token)
}

// maxToken is the length of the longest token, in bytes.
const maxToken = 4096

func (l *load) times(c *Config) {
	longer := max(c.PollingInterval, c.JobStatusLoopInterval)
	switch {
	case c.HealthThreshold == 0:
		c.HealthThreshold = 2 * longer
	case c.HealthThreshold <= longer && l.good("health_threshold", "polling_interval", "job_status_loop_interval"):
		l.about(c, Warning, RuleTimes, fmt.Sprintf("is not longer than the pause of %s between two steps, so that a healthy agent looks stuck", short(longer)),
			"make it at least twice as long as polling_interval and job_status_loop_interval", "health_threshold")
	}
	if c.RequestRetryWait > c.RequestRetryMaxWait && l.good("request_retry_wait", "request_retry_max_wait") {
		l.about(c, Error, RuleTimes, fmt.Sprintf("must not be longer than request_retry_max_wait, which is %s", short(c.RequestRetryMaxWait)),
			"", "request_retry_wait", "request_retry_max_wait")
	}
}
