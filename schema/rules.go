package schema

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// check applies the rules across the keys of one pool, and fills in what follows
// from other keys. A rule is silent if a value that it needs is out already.
func (s *scope) check() {
	s.names()
	s.service()
	s.credentials()
	s.certificates()
	s.template()
	s.retries()
	s.labels()
	s.sizes()
	s.forwarded()
	s.release()
	if s.pool.WorkingDirectory == "" {
		s.pool.WorkingDirectory = directoryOf(s.load.source.Executable)
	}
	slices.Sort(s.pool.EnabledWorkflowTypes)
	s.pool.EnabledWorkflowTypes = slices.Compact(s.pool.EnabledWorkflowTypes)
}

// check applies the rules across pools and the whole agent.
func (l *load) check(c *Config, t position.Mapping, scopes []*scope) {
	l.together(scopes)
	top := &scope{load: l, places: map[string]position.Origin{}}
	t.Origins("", top.places)
	l.times(c, top, scopes)
	top.address(c.HTTPServerAddress)
	if limit, ok := t["max_concurrent_workflows"].Data.(int); ok && len(poolEntries(t)) > 0 {
		c.MaxConcurrentWorkflows = limit // a pool alone has its own
	}
}

func (s *scope) service() {
	if s.good("service_url") {
		u, err := url.Parse(s.pool.ServiceURL)
		if err == nil && u.Port() != "" {
			_, err = strconv.ParseUint(u.Port(), 10, 16)
		}
		if err != nil || u.Hostname() == "" {
			s.about(position.Error, position.RuleValue, "must be "+s.load.schema.byKey["service_url"].sentence(), "", "service_url")
		}
	}
	s.pool.ServiceURL = strings.TrimRight(s.pool.ServiceURL, "/")
}

// names refuses tokens in place of the names of files that hold them. A name is
// shown in logs and by cmwa config, so it must not come to that.
func (s *scope) names() {
	for i := range s.load.schema.fields {
		f := &s.load.schema.fields[i]
		v, ok := s.table.Get(strings.Split(f.Key, ".")...)
		if name, isText := v.Data.(string); ok && isText && f.Pool && strings.HasSuffix(f.Key, "_file") && secret.LooksLikeToken(name) && s.good(f.Key) {
			s.about(position.Error, position.RuleFile, "the value looks like a token", "give the name of a file that holds it", f.Key)
			s.load.bad[position.Join(s.at, f.Key)] = true
			s.load.bad[s.path(f.Key)] = true
		}
	}
}

// credentials settles which of token, token_file and OIDC is used. OIDC wins
// over both; of the two others the environment's wins over the file's.
func (s *scope) credentials() {
	if !s.good("token", "token_file", "oidc_token_file") || s.at == "" && s.load.bad["pools"] {
		return
	}
	c := s.pool
	if at := s.places["token"]; !c.Token.Empty() && at.Line > 0 && s.load.source.Mode&0o044 != 0 {
		s.about(position.Warning, position.RuleReadableToken, "the token is in a file that others may read", "chmod 600 the file, or put the token into one of its own and name that in token_file", "token")
	}
	hasToken, hasFile := !c.Token.Empty(), c.TokenFile != ""
	switch {
	case c.OIDCTokenFile != "":
		s.identity()
		s.exchange(map[string]bool{"token": hasToken, "token_file": hasFile})
		c.Token = secret.String{}
	case hasToken && hasFile && s.above("token") == s.above("token_file"):
		s.about(position.Error, position.RuleCredentials, "must not be set beside token", "remove one of the two", "token_file")
	case hasFile && (!hasToken || s.above("token_file")):
		if hasToken {
			s.dropped("token", "token_file")
		}
		c.Token = s.token()
		s.placeholder("token_file")
	case hasFile:
		s.dropped("token_file", "token")
		s.placeholder("token")
	case hasToken:
		s.placeholder("token")
	case !hasToken && s.at != "":
		s.load.report(position.Problem{Rule: position.RuleMissingToken, File: s.entry.At.File, Line: s.entry.At.Line, Column: s.entry.At.Column, Path: s.at,
			Message: "the pool has no access token", Hint: "set token or token_file in it; or use OIDC with oidc_token_file, organization_name and runner_pool_id"})
	default:
		hint := fmt.Sprintf("set token or token_file in the file, or the variable %s; or use OIDC with oidc_token_file, organization_name and runner_pool_id", s.load.schema.variableOf("token"))
		if s.load.source.Path == "" && len(s.load.source.Searched) > 0 {
			hint += "; there is no " + FileName + " in " + strings.Join(s.load.source.Searched, ", ")
		}
		s.about(position.Error, position.RuleMissingToken, "there is no pool access token", hint, "token")
	}
}

// above reports whether a variable sets the key.
func (s *scope) above(key string) bool { return s.places[key].Variable != "" }

// exchange checks the set of keys that an exchange of an OIDC token needs, and
// the keys that it makes useless.
func (s *scope) exchange(others map[string]bool) {
	for key, value := range map[string]string{"organization_name": s.pool.OrganizationName, "runner_pool_id": s.pool.RunnerPoolID} {
		if value == "" && s.good(key) {
			s.about(position.Error, position.RuleCredentials, "must be set beside oidc_token_file", "add it, or set "+s.load.schema.variableOf(key), key, "oidc_token_file")
		}
	}
	for key, set := range others {
		if set {
			s.about(position.Warning, position.RuleCredentials, "has no effect beside oidc_token_file", "remove one of the two", key)
		}
	}
}

// identity notes what the file of the OIDC token holds. It is read anew for each
// exchange, and need not be there yet.
func (s *scope) identity() {
	if content, _, err := s.look("oidc_token_file", s.pool.OIDCTokenFile); err == nil {
		sum := sha256.Sum256(content)
		s.pool.OIDCSum = hex.EncodeToString(sum[:])
	}
}

// look reads a file that a key names, and takes what it finds into the digest,
// with its place: a file that is not there, or cannot be read, is a finding too,
// so that what moves from one pool's file to another's is another digest.
func (s *scope) look(key, name string) ([]byte, fs.FileMode, error) {
	s.load.files = append(s.load.files, name)
	content, mode, err := s.load.source.read(name)
	found := "read"
	switch {
	case err == nil:
	case missing(err):
		found, content = "not there", nil
	case errors.Is(err, fs.ErrPermission):
		found, content = "not allowed", nil
	default:
		found, content = "not readable", nil
	}
	// With its length, content cannot pass for the next file.
	fmt.Fprintf(s.load.digest, "\x00%q\x00%s\x00%d\x00%s", position.Join(s.at, key), found, len(content), content)
	return content, mode, err
}

// missing reports whether an error says that there is no such file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// file is look, and reports what is wrong.
func (s *scope) file(key, name, cure string) (content []byte, mode fs.FileMode, ok bool) {
	content, mode, err := s.look(key, name)
	if err == nil && len(content) > position.MaxFile {
		s.about(position.Error, position.RuleFile, fmt.Sprintf("the file is larger than %d KiB", position.MaxFile>>10), "name another", key)
		return nil, 0, false
	}
	if err != nil {
		s.unread(key, cure, err)
		return nil, 0, false
	}
	return content, mode, true
}

// unread reports a file that cannot be read. Its name stays out of messages:
// people put a secret itself there.
func (s *scope) unread(key, cure string, err error) {
	switch {
	case missing(err):
		s.about(position.Error, position.RuleMissingFile, "there is no such file", cure+", or correct the name", key)
	case errors.Is(err, fs.ErrPermission):
		s.about(position.Error, position.RuleMissingFile, "the file must not be read by this user", "give the agent's user the right to read it", key)
	default:
		s.about(position.Error, position.RuleFile, "the file cannot be read", "name a regular file", key)
	}
}

// token reads the token file.
func (s *scope) token() secret.String {
	content, mode, ok := s.file("token_file", s.pool.TokenFile, "put the token into it")
	if !ok {
		return secret.String{}
	}
	token := string(bytes.TrimSpace(content))
	switch {
	case token == "":
		s.about(position.Error, position.RuleFile, "the file is empty", "put the token into it", "token_file")
		return secret.String{}
	case len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		s.about(position.Error, position.RuleFile, "the file must hold one token and nothing else", "", "token_file")
		return secret.String{}
	case mode&0o004 != 0:
		s.about(position.Warning, position.RuleReadableToken, "the file may be read by every user", "chmod 600 the file", "token_file")
	}
	return secret.New(token)
}

// maxToken is the length of the longest token, in bytes.
const maxToken = 4096

// certificates reads the CA file.
func (s *scope) certificates() {
	if s.pool.CAFile == "" || !s.good("ca_file") {
		return
	}
	content, _, ok := s.file("ca_file", s.pool.CAFile, "put the certificates into it")
	if !ok {
		return
	}
	var good []byte
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			s.about(position.Error, position.RuleFile, "the file must hold certificates and nothing else", "remove the block that is none; a private key must not lie there", "ca_file")
			return
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			s.about(position.Error, position.RuleFile, "the file holds a certificate that cannot be read", "export it anew, in PEM form", "ca_file")
			return
		}
		good = append(good, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(good) == 0 {
		s.about(position.Error, position.RuleFile, "the file holds no certificate in PEM form", "a PEM certificate begins with a line of dashes and BEGIN CERTIFICATE", "ca_file")
		return
	}
	s.pool.CA = string(good)
}

// template settles the Pod template: written inline, in a file, or in the file
// that the public packaging mounts.
func (s *scope) template() {
	if !s.good("pod_template", "pod_template_file") {
		return
	}
	inline, isInline := s.table["pod_template"]
	name := s.pool.PodTemplateFile
	switch {
	case isInline && name != "":
		s.about(position.Error, position.RuleFile, "must not be set beside pod_template", "remove one of the two", "pod_template_file")
	case isInline:
		problems := podtemplate.Check(inline, s.path("pod_template"))
		s.load.report(problems...)
		s.use(inline, problems)
	case name != "":
		s.templateFile("pod_template_file", name, false)
	case s.pool.DeployTarget == "kubernetes":
		s.templateFile("pod_template_file", DefaultPodTemplateFile, true)
	}
}

// templateFile reads a template from a file of its own. One that nobody asked for
// need not be there, and may be a folder: that is what a mount of a key that is
// not there leaves.
func (s *scope) templateFile(key, name string, unasked bool) {
	content, _, err := s.look(key, name)
	switch {
	case unasked && (errors.Is(err, secret.ErrNotRegular) || errors.Is(err, fs.ErrNotExist)):
		return
	case err != nil:
		if !unasked {
			s.unread(key, "put the template into it", err)
		}
		return
	}
	v, problems, ok := podtemplate.Parse(name, content)
	if ok {
		problems = append(problems, podtemplate.Check(v, "")...)
		s.use(v, problems)
	}
	s.load.report(problems...)
}

func (s *scope) use(v position.Value, problems position.Problems) {
	if t, ok := v.Data.(position.Mapping); ok && len(t) > 0 && len(problems.Errors()) == 0 {
		s.pool.PodTemplate = t.Plain()
	}
}

// sizes refuses limits that no engine takes.
func (s *scope) sizes() {
	const least, most = 6 << 20, 1 << 50 // bytes; the least is Docker's
	if v, ok := s.table.Get("docker", "memory"); ok && s.good("docker.memory") {
		text, _ := v.Data.(string)
		if n, fits := size(text); text != "" && (!fits || n < least || n > most) {
			s.about(position.Error, position.RuleValue, "must be from 6m to 1024t", "", "docker.memory")
		}
	}
	if n := s.pool.Docker.CPUs; n > 0 && n < 0.01 && s.good("docker.cpus") {
		s.about(position.Error, position.RuleValue, "must be at least 0.01", "", "docker.cpus")
	}
}

// forwarded warns of the agent's own secrets among what jobs get.
func (s *scope) forwarded() {
	for _, name := range s.pool.EnvForwardAllowlist {
		if f := s.load.schema.byVariable[name]; f != nil && f.Secret {
			s.about(position.Warning, position.RuleCredentials, "hands the agent's own token to every job", "remove "+name+"; a job has a token of its own", "env_forward_allowlist")
		}
	}
}

// labels refuses labels of containers that the agent would take for its own.
func (s *scope) labels() {
	v, ok := s.table.Get("docker", "labels")
	if !ok || !s.good("docker.labels") {
		return
	}
	entries, _ := v.Data.([]position.Value)
	for i, entry := range entries {
		if label, ok := entry.Data.(string); ok && strings.HasPrefix(label, "cmwa.") {
			p := position.Problem{Rule: position.RuleProtectedField, File: entry.At.File, Line: entry.At.Line, Column: entry.At.Column, Path: fmt.Sprintf("%s.%d", s.path("docker.labels"), i),
				Message: "must not begin with cmwa., which the agent keeps for its own labels"}
			if entry.At.Variable != "" {
				p.Path = entry.At.Variable
			}
			s.load.report(p)
		}
	}
}

func (s *scope) retries() {
	c := s.pool
	if c.RequestRetryWait > c.RequestRetryMaxWait && s.good("request_retry_wait", "request_retry_max_wait") {
		s.about(position.Error, position.RuleTimes, fmt.Sprintf("must not be longer than request_retry_max_wait, which is %s", short(c.RequestRetryMaxWait)),
			"", "request_retry_wait", "request_retry_max_wait")
	}
}

// times checks that the time budgets of the agent fit into each other.
func (l *load) times(c *Config, top *scope, scopes []*scope) {
	var longer time.Duration
	good := top.good("health_threshold")
	for _, s := range scopes {
		longer = max(longer, s.pool.PollingInterval, s.pool.JobStatusLoopInterval)
		good = good && s.good("polling_interval", "job_status_loop_interval")
	}
	switch {
	case c.HealthThreshold == 0:
		c.HealthThreshold = 2 * longer
	case c.HealthThreshold <= longer && good:
		top.about(position.Warning, position.RuleTimes, fmt.Sprintf("is not longer than the pause of %s between two steps, so that a single failed poll makes the agent not ready", short(longer)),
			"make it at least twice as long as polling_interval and job_status_loop_interval", "health_threshold")
	}
	stopGrace := l.source.Release.StopGrace
	if !top.good("shutdown_timeout") || stopGrace == 0 {
		return
	}
	if c.ShutdownTimeout > 0 && c.ShutdownTimeout < stopGrace {
		top.about(position.Warning, position.RuleTimes, fmt.Sprintf("is shorter than the %s that a job has to stop once it is asked to", short(stopGrace)),
			"make it longer, or 0s to ask running jobs to stop at once", "shutdown_timeout")
	}
	if grace := l.source.TerminationGrace; grace > 0 && c.ShutdownTimeout+stopGrace > grace {
		top.about(position.Warning, position.RuleTimes, fmt.Sprintf("with the %s that jobs have to stop, it is longer than the Pod's termination grace of %s: the agent is killed before its jobs have ended", short(stopGrace), short(grace)),
			"make it shorter, or terminationGracePeriodSeconds longer", "shutdown_timeout")
	}
}
