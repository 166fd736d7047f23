package configure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// credentials records the changes of the credentials.
func (s *session) credentials(ctx context.Context) error {
	if s.unused() {
		set, err := s.confirmUnused()
		if err != nil || !set {
			return err
		}
	}
	method, err := s.method()
	switch {
	case err != nil || method == "":
		return err
	case method == "oidc":
		return s.exchange()
	default:
		return s.accessToken(ctx)
	}
}

// unused reports whether every pool of the file has its own credentials, so that no pool
// inherits those at the top level. It is false for a configuration that cannot be
// loaded.
func (s *session) unused() bool {
	const mark = "inherited"
	changes := []schema.Change{
		{Key: "token", Value: mark}, {Key: "token_file", Value: ""}, {Key: "oidc_token_file", Value: ""},
	}
	content, err := schema.Edit(s.config.content, changes)
	if err != nil {
		return false
	}
	nothing := func(string) ([]byte, error) { return nil, fs.ErrNotExist }
	config, _ := schema.Load(schema.Source{Content: content, Elsewhere: true, ReadFile: nothing})
	inherits := func(p schema.Pool) bool { return p.Token.Reveal() == mark }
	return config != nil && !slices.ContainsFunc(config.Pools, inherits)
}

// confirmUnused reports whether to set credentials that no pool uses.
func (s *session) confirmUnused() (bool, error) {
	state := fmt.Sprintf("each pool of %s has its own credentials, "+
		"so no pool would use credentials at the top level", s.config.name)
	given := s.o.TokenStdin || s.o.TokenFile != "" || s.o.exchanges()
	switch {
	case given && s.o.Yes:
		fmt.Fprintf(s.o.Stderr, "cmwa: %s\n", state)
		return true, nil
	case s.prompt == nil && given:
		return false, cli.Usagef("%s: to set them anyway, add --yes", state)
	case s.prompt == nil:
		return false, nil
	}
	yes, err := s.prompt.confirm(state + ". Set them anyway?")
	if err == nil && !yes && given {
		err = errUnchanged
	}
	return yes, err
}

// method returns "token" or "oidc", or an empty text if the credentials of the file do
// not change.
func (s *session) method() (string, error) {
	had := ""
	switch {
	case s.present["oidc_token_file"] != "":
		had = "oidc"
	case s.present["token"] != "" || s.present["token_file"] != "":
		had = "token"
	}
	switch {
	case s.o.TokenFile != "" || s.o.TokenStdin:
		return "token", nil
	case s.o.exchanges():
		return "oidc", nil
	case s.prompt != nil:
		const text = "Authenticate by pool access token or OIDC (token or oidc)"
		return s.prompt.choose(text, cmp.Or(had, "token"), "token", "oidc")
	case had != "":
		return "", nil
	default:
		return "", cli.Usagef("not a terminal, cannot prompt: " +
			"pass --token-stdin, --token-file, or --oidc-token-file with --organization and --pool-id")
	}
}

// exchange sets the keys of an OIDC exchange, and empties the keys of a token.
func (s *session) exchange() error {
	name, err := s.answer("oidc_token_file", "oidc-token-file", s.o.OIDCTokenFile, "File that holds the OIDC token",
		s.validFile("oidc_token_file"))
	if err != nil {
		return err
	}
	organization, err := s.answer("organization_name", "organization", s.o.Organization, "Organization",
		s.valid("organization_name"))
	if err != nil {
		return err
	}
	pool, err := s.answer("runner_pool_id", "pool-id", s.o.PoolID, "ID of the pool", s.valid("runner_pool_id"))
	if err != nil {
		return err
	}
	if name, err = s.absolute("oidc_token_file", name); err != nil {
		return err
	}
	s.set("oidc_token_file", name)
	s.set("organization_name", organization)
	s.set("runner_pool_id", pool)
	s.set("token", "")
	s.set("token_file", "")
	return nil
}

// absolute returns the absolute name of a file, because the agent may be started in
// any directory. A name that the configuration has already is not changed.
func (s *session) absolute(key, name string) (string, error) {
	if name == s.present[key] {
		return name, nil
	}
	return filepath.Abs(name)
}

// accessToken sets the token, or the file that holds it.
func (s *session) accessToken(ctx context.Context) error {
	// Name a file that already contains the token.
	if s.o.TokenFile != "" && !s.o.TokenStdin {
		name, err := filepath.Abs(s.o.TokenFile)
		if err != nil {
			return err
		}
		f, err := open(name, "--token-file")
		if err == nil && f.info == nil {
			err = errors.New("--token-file: there is no such file: put the token into it, or add --token-stdin")
		}
		if err != nil {
			return cli.Usage(err)
		}
		return s.setTokenFile("", name)
	}

	had := s.present["token"] != "" || s.present["token_file"] != ""
	token, err := s.readToken(ctx, had)
	if err != nil {
		return err
	}
	if token == "" { // the present one is kept
		s.set("oidc_token_file", "")
		return nil
	}
	s.newToken = token

	if s.o.TokenFile != "" {
		name, err := filepath.Abs(s.o.TokenFile)
		if err != nil {
			return err
		}
		return s.setTokenFile(token, name)
	}
	place, name := "config", strings.TrimSuffix(s.config.path, filepath.Ext(s.config.path))+".token"
	if present := s.present["token_file"]; present != "" && !secret.LooksLikeToken(present) {
		place, name = "file", present
	}
	if name, err = s.absolute("token_file", name); err != nil {
		return err
	}
	if s.prompt != nil {
		const text = "Write the token to the configuration or to a separate file (config or file)"
		if place, err = s.prompt.choose(text, place, "config", "file"); err != nil {
			return err
		}
	}
	if place == "file" {
		return s.setTokenFile(token, name)
	}
	s.set("token", token)
	s.set("token_file", "")
	s.set("oidc_token_file", "")
	return nil
}

// replaceToken replaces the new token by another one in the recorded changes.
func (s *session) replaceToken(token string) {
	for i := range s.changes {
		if s.changes[i].Key == "token" && s.changes[i].Value == s.newToken {
			s.changes[i].Value = token
		}
	}
	if s.token != "" {
		s.token = token
	}
	s.newToken = token
}

// readToken returns the new token, or an empty text if the configuration keeps the token
// that it has.
func (s *session) readToken(ctx context.Context, had bool) (string, error) {
	check := s.validToken
	prompt := s.prompt
	if s.o.TokenStdin {
		prompt, had = newTokenPrompt(ctx, s.o.Stdin, s.o.Stderr), false
		defer prompt.close()
	}
	if prompt == nil {
		return s.tokenFromInput(ctx, check)
	}
	q := query{text: "Pool access token (not shown)", hidden: true, check: check}
	if had {
		q.defaultText = keep
		q.check = func(answer string) error {
			if answer == "" {
				return nil
			}
			return check(answer)
		}
	}
	return prompt.ask(q)
}

// validToken checks a pool access token. It rejects an answer that is meant for another prompt.
func (s *session) validToken(answer string) error {
	if err := s.valid("token")(answer); err != nil {
		return err
	}
	if !strings.HasPrefix(answer, secret.AccessTokenPrefix) {
		return errors.New("is not a pool access token, which begins with " + secret.AccessTokenPrefix)
	}
	return nil
}

func (s *session) tokenFromInput(ctx context.Context, check func(string) error) (string, error) {
	const maxToken = 64 << 10 // longer input is not a token
	content, err := cli.Await(ctx, func() ([]byte, error) {
		return io.ReadAll(io.LimitReader(s.o.Stdin, position.MaxFile+1))
	})
	switch {
	case ctx.Err() != nil:
		return "", errInterrupted
	case err != nil:
		return "", errors.New("read the token from standard input: it cannot be read")
	}
	token := strings.TrimSpace(string(content[:min(len(content), maxToken)]))
	if err := check(token); err != nil {
		return "", cli.Usagef("the token on standard input %w", err)
	}
	return token, nil
}

// setTokenFile makes the configuration name a token file. If token is not empty, it will
// be written to this file.
func (s *session) setTokenFile(token, name string) error {
	s.set("token", "")
	s.set("oidc_token_file", "")
	s.set("token_file", name)
	if token == "" {
		return nil
	}
	shown := name
	if name == s.present["token_file"] {
		shown = "the file that token_file names"
	}
	path := name
	if !filepath.IsAbs(name) { // as the agent does: relative to the configuration
		path = filepath.Join(filepath.Dir(s.config.path), name)
	}
	f, err := open(path, shown)
	if err != nil {
		return err
	}
	if f.resolved == s.config.resolved {
		return cli.Usagef("the token file cannot be the configuration itself: name another file with --token-file")
	}
	s.token, s.tokenFile = token, &f
	return s.confirm(f, "Replace its content with the new token?")
}
