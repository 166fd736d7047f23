package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// credentials settles how the agent authenticates.
func (c *configuring) credentials(ctx context.Context) error {
	if c.unused() {
		set, err := c.setUnused()
		if err != nil || !set {
			return err
		}
	}
	way, err := c.way()
	switch {
	case err != nil || way == "":
		return err
	case way == "oidc":
		return c.exchange()
	default:
		return c.accessToken(ctx)
	}
}

// unused reports whether every pool of the file has credentials of its own, so that
// none inherits those at the top level. A configuration that cannot be used has no
// such pools.
func (c *configuring) unused() bool {
	const mark = "inherited"
	changes := []schema.Change{{Key: "token", Value: mark}, {Key: "token_file", Value: ""}, {Key: "oidc_token_file", Value: ""}}
	content, err := schema.Edit(c.file.content, changes)
	if err != nil {
		return false
	}
	nothing := func(string) ([]byte, error) { return nil, fs.ErrNotExist }
	config, _ := schema.Load(schema.Source{Content: content, Elsewhere: true, ReadFile: nothing})
	return config != nil && !slices.ContainsFunc(config.Pools, func(p schema.Pool) bool { return p.Token.Reveal() == mark })
}

// setUnused settles whether credentials that no pool uses are set all the same.
func (c *configuring) setUnused() (bool, error) {
	state := fmt.Sprintf("every pool of %s has credentials of its own, so that none would use those at the top level", c.file.name)
	said := c.o.tokenStdin || c.o.tokenFile+c.o.oidcTokenFile+c.o.organization+c.o.poolID != ""
	switch {
	case said && c.o.yes:
		fmt.Fprintf(c.s.stderr, "cmwa: %s\n", state)
		return true, nil
	case c.prompt == nil && said:
		return false, cli.Usagef("%s: to set these all the same, add --yes", state)
	case c.prompt == nil:
		return false, nil
	}
	answer, err := c.prompt.ask(question{text: state + ". Set these all the same?", shown: "no", empty: "no", check: isOneOf("yes", "no", "y", "n")})
	if err == nil && answer[0] == 'n' && said {
		err = errors.New("nothing has been changed")
	}
	return err == nil && answer[0] == 'y', err
}

// way returns token or oidc; or nothing, if the file says it all and nobody says
// otherwise.
func (c *configuring) way() (string, error) {
	had := ""
	switch {
	case c.present["oidc_token_file"] != "":
		had = "oidc"
	case c.present["token"] != "" || c.present["token_file"] != "":
		had = "token"
	}
	switch {
	case c.o.tokenFile != "" || c.o.tokenStdin:
		return "token", nil
	case c.o.oidcTokenFile+c.o.organization+c.o.poolID != "":
		return "oidc", nil
	case c.prompt != nil:
		if had == "" {
			had = "token"
		}
		return c.prompt.ask(question{text: "Authenticate by pool access token or OIDC (token or oidc)", shown: had, empty: had, check: isOneOf("token", "oidc")})
	case had != "":
		return "", nil
	default:
		return "", cli.Usage(errors.New("there is nobody to ask how the agent authenticates: add --token-stdin, --token-file, or --oidc-token-file with --organization and --pool-id"))
	}
}

// exchange settles the keys of OIDC, and takes back those that it makes useless.
func (c *configuring) exchange() error {
	file, err := c.answer("oidc_token_file", "oidc-token-file", c.o.oidcTokenFile, "File that holds the OIDC token", c.named("oidc_token_file"))
	if err != nil {
		return err
	}
	organization, err := c.answer("organization_name", "organization", c.o.organization, "Organisation", c.valid("organization_name"))
	if err != nil {
		return err
	}
	pool, err := c.answer("runner_pool_id", "pool-id", c.o.poolID, "ID of the pool", c.valid("runner_pool_id"))
	if err != nil {
		return err
	}
	if file, err = c.absolute("oidc_token_file", file); err != nil {
		return err
	}
	c.set("oidc_token_file", file)
	c.set("organization_name", organization)
	c.set("runner_pool_id", pool)
	c.set("token", "")
	c.set("token_file", "")
	return nil
}

// absolute makes the name of a file good in every directory that the agent may be
// started from. What the file says already stays as it is.
func (c *configuring) absolute(key, name string) (string, error) {
	if name == c.present[key] {
		return name, nil
	}
	return filepath.Abs(name)
}

// accessToken settles the token and where it stands.
func (c *configuring) accessToken(ctx context.Context) error {
	if c.o.tokenFile != "" && !c.o.tokenStdin {
		name, err := filepath.Abs(c.o.tokenFile)
		if err != nil {
			return err
		}
		file, err := open(name, "--token-file")
		if err == nil && file.info == nil {
			err = errors.New("--token-file: there is no such file: put the token into it, or add --token-stdin")
		}
		if err != nil {
			return cli.Usage(err)
		}
		return c.tokenAt("", name)
	}
	had := c.present["token"] != "" || c.present["token_file"] != ""
	token, err := c.readToken(ctx, had)
	if err != nil {
		return err
	}
	if token == "" { // as it was
		c.set("oidc_token_file", "")
		return nil
	}
	if c.o.tokenFile != "" {
		name, err := filepath.Abs(c.o.tokenFile)
		if err != nil {
			return err
		}
		return c.tokenAt(token, name)
	}
	place, beside := "config", strings.TrimSuffix(c.file.path, filepath.Ext(c.file.path))+".token"
	if named := c.present["token_file"]; named != "" && !secret.LooksLikeToken(named) {
		place, beside = "file", named
	}
	if beside, err = c.absolute("token_file", beside); err != nil {
		return err
	}
	if c.prompt != nil {
		place, err = c.prompt.ask(question{text: "Token in the configuration or in a file of its own (config or file)", shown: place, empty: place, check: isOneOf("config", "file")})
		if err != nil {
			return err
		}
	}
	if place == "file" {
		return c.tokenAt(token, beside)
	}
	c.set("token", token)
	c.set("token_file", "")
	c.set("oidc_token_file", "")
	return nil
}

// readToken returns the token, or nothing if the one that the file has is kept.
func (c *configuring) readToken(ctx context.Context, had bool) (string, error) {
	check := c.valid("token")
	person := c.prompt
	if c.o.tokenStdin {
		person, had = newKeyboard(ctx, c.s.stdin, c.s.stderr), false
		defer person.close()
	}
	if person == nil {
		const most = 64 << 10 // whatever is longer is no token
		content, _, err := c.s.read(ctx, "-")
		switch {
		case ctx.Err() != nil:
			return "", errNoAnswer
		case err != nil:
			return "", errors.New("read the token from standard input: it cannot be read")
		}
		token := strings.TrimSpace(string(content[:min(len(content), most)]))
		if err := check(token); err != nil {
			return "", cli.Usagef("the token on standard input %w", err)
		}
		return token, nil
	}
	q := question{text: "Pool access token, which is not shown", hidden: true, check: check}
	if had {
		q.shown = "as it is"
		q.check = func(answer string) error {
			if answer == "" {
				return nil
			}
			return check(answer)
		}
	}
	return person.ask(q)
}

// tokenAt puts the token, unless it is empty, into a file of its own, which the
// configuration names.
func (c *configuring) tokenAt(token, name string) error {
	c.set("token", "")
	c.set("oidc_token_file", "")
	c.set("token_file", name)
	if token == "" {
		return nil
	}
	known := name
	if name == c.present["token_file"] {
		known = "the file that token_file names"
	}
	file, err := open(name, known)
	if err != nil {
		return err
	}
	if same, err := filepath.Abs(c.file.place); err != nil || same == file.place {
		return cli.Usage(errors.New("the token file cannot be the configuration itself: name another with --token-file"))
	}
	c.token, c.secrets = token, &file
	return c.mayChange(file, "Put the new token into it?")
}
