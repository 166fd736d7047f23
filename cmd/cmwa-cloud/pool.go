package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// organization is the one of the service unless --org says otherwise.
func organization(ctx context.Context, c *client, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	var answer struct{ GitHubLogin string }
	err := c.call(ctx, http.MethodGet, "/api/user/organizations/default", nil, &answer)
	return answer.GitHubLogin, err
}

func poolCreate(w world) *ffcli.Command {
	set := flags(w, "cmwa-cloud pool create")
	account := accountFlags(set, w, "access-token-file")
	org := set.String("org", "", "organization; otherwise the default one")
	description := set.String("description", "", "what the pool is for")
	out := set.String("token-file", "", "new file for the pool's token; otherwise it is printed")
	standard := set.Bool("default", false, "make it the default pool of the organization")
	return &ffcli.Command{
		Name: "create", ShortUsage: "cmwa-cloud pool create NAME [FLAGS]",
		ShortHelp: "make a pool and get its token, which is shown this once", FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			names, err := arguments(set, args, "NAME")
			if err != nil {
				return err
			}
			c, err := account.open()
			if err != nil {
				return err
			}
			organization, err := organization(ctx, c, *org)
			if err != nil {
				return err
			}
			keep := func(token secret.String) error {
				_, err := fmt.Fprintln(w.stdout, token.Reveal())
				return err
			}
			if *out != "" {
				file, err := newPrivate(*out)
				if err != nil {
					return fmt.Errorf("write the pool's token: %w", err)
				}
				keep = file.fill
				defer file.abandon()
			}
			var answer struct {
				ID    string        `json:"id"`
				Token secret.String `json:"tokenValue"`
			}
			at := "/api/orgs/" + url.PathEscape(organization)
			body := map[string]string{"name": names[0], "description": *description}
			if err := c.call(ctx, http.MethodPost, at+"/agent-pools", body, &answer); err != nil {
				return err
			}
			if err := keep(answer.Token); err != nil {
				return fmt.Errorf("write the pool's token: %w", err)
			}
			fmt.Fprintf(w.stderr, "pool %s is made; its id is %s\n", names[0], answer.ID)
			if !*standard {
				return nil
			}
			return c.call(ctx, http.MethodPatch, at, map[string]string{"setDefaultAgentPoolID": answer.ID}, nil)
		},
	}
}

// private is a file that is made before there is anything to put into it, so
// that a token that is shown once is not lost to a folder that cannot be
// written.
type private struct {
	file   *os.File
	path   string
	filled bool
}

func newPrivate(path string) (*private, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &private{file: file, path: path}, nil
}

func (p *private) fill(text secret.String) error {
	_, err := fmt.Fprintln(p.file, text.Reveal())
	if err := errors.Join(err, p.file.Sync(), p.file.Close()); err != nil {
		return err
	}
	err = os.Rename(p.file.Name(), p.path)
	p.filled = err == nil
	return err
}

func (p *private) abandon() {
	if !p.filled {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name())
	}
}

func poolList(w world) *ffcli.Command {
	set := flags(w, "cmwa-cloud pool list")
	account := accountFlags(set, w, "token-file", "access-token-file")
	org := set.String("org", "", "organization; otherwise the default one")
	return &ffcli.Command{
		Name: "list", ShortUsage: "cmwa-cloud pool list [FLAGS]", ShortHelp: "list pools", FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			if _, err := arguments(set, args); err != nil {
				return err
			}
			c, err := account.open()
			if err != nil {
				return err
			}
			organization, err := organization(ctx, c, *org)
			if err != nil {
				return err
			}
			var answer struct {
				Pools []struct {
					ID, Name, Status string
					LastSeen         int64
					IsDefault        bool
				} `json:"agentPools"`
			}
			if err := c.call(ctx, http.MethodGet, "/api/orgs/"+url.PathEscape(organization)+"/agent-pools", nil, &answer); err != nil {
				return err
			}
			table := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "ID\tNAME\tSTATUS\tLAST SEEN\tDEFAULT")
			for _, pool := range answer.Pools {
				seen, standard := "never", ""
				if pool.LastSeen > 0 {
					seen = time.Unix(pool.LastSeen, 0).Format(time.DateTime)
				}
				if pool.IsDefault {
					standard = "yes"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", pool.ID, pool.Name, pool.Status, seen, standard)
			}
			return table.Flush()
		},
	}
}
