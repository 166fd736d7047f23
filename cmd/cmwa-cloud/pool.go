package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// poolFlags are the flags of the commands for pools.
type poolFlags struct {
	*connection
	organization string
}

func newPoolFlags(s stdio) *poolFlags { return &poolFlags{connection: newConnection(s)} }

// form returns the form of a command for pools.
func (f *poolFlags) form(arguments []command.Item, options ...command.Option) []command.Form {
	org := command.String(&f.organization, "org", command.Name, "organization; otherwise the default one")
	return f.connection.form(arguments, append(options, org)...)
}

// organizationsPath is the API path of organizations, before a name.
const organizationsPath = "/api/orgs/"

// open returns a client, and the API path of the organization.
func (f *poolFlags) open(ctx context.Context) (c *client, organization string, err error) {
	if c, err = f.connection.open(); err != nil {
		return nil, "", err
	}
	name := f.organization
	if name == "" {
		var answer struct{ GitHubLogin string }
		if err := c.call(ctx, http.MethodGet, "/api/user/organizations/default", nil, &answer); err != nil {
			return nil, "", err
		}
		name = answer.GitHubLogin
	}
	return c, organizationsPath + url.PathEscape(name), nil
}

// openPool returns a client, and the API path of the pool that has a name or an id.
func (f *poolFlags) openPool(ctx context.Context, name string) (*client, string, error) {
	c, organization, err := f.open(ctx)
	if err != nil {
		return nil, "", err
	}
	id, err := c.poolID(ctx, organization, name)
	return c, organization + "/agent-pools/" + url.PathEscape(id), err
}

// agentPool is an agent pool in a response of the service.
type agentPool struct {
	ID, Name, Status string
	LastSeen         int64
	IsDefault        bool
}

// pools returns the pools of the organization with an API path.
func (c *client) pools(ctx context.Context, organization string) ([]agentPool, error) {
	var answer struct {
		Pools []agentPool `json:"agentPools"`
	}
	err := c.call(ctx, http.MethodGet, organization+"/agent-pools", nil, &answer)
	return answer.Pools, err
}

// poolID returns the id of the pool that has a name or an id.
func (c *client) poolID(ctx context.Context, organization, name string) (string, error) {
	pools, err := c.pools(ctx, organization)
	if err != nil {
		return "", err
	}
	for _, pool := range pools {
		if pool.Name == name || pool.ID == name {
			return pool.ID, nil
		}
	}
	return "", fmt.Errorf("there is no agent pool %q: see cmwa-cloud pool list", name)
}

// poolArgument is the argument for the name or the id of a pool.
var poolArgument = command.Argument("NAME", command.Name)

func poolCreate(s stdio) command.Command {
	flags := newPoolFlags(s)
	var description, output string
	var standard bool
	return command.Command{
		Name: "create", Help: "make a pool, and print its token, which cannot be shown again",
		Forms: flags.form([]command.Item{poolArgument},
			command.String(&description, "description", command.Text("TEXT"), "purpose of the pool"),
			command.String(&output, "output", command.File, "new file for the token of the pool; otherwise it is "+
				"printed"),
			command.Bool(&standard, "default", "make the new pool the default pool of the organization")),
		Run: func(ctx context.Context, args []string) error {
			c, organization, err := flags.open(ctx)
			if err != nil {
				return err
			}
			sink, err := newTokenSink(output, s)
			if err != nil {
				return err
			}
			defer sink.close()

			var answer struct {
				ID    string        `json:"id"`
				Token secret.String `json:"tokenValue"`
			}
			body := map[string]string{"name": args[0], "description": description}
			if err := c.call(ctx, http.MethodPost, organization+"/agent-pools", body, &answer); err != nil {
				return err
			}
			if err := sink.write(answer.Token); err != nil {
				return err
			}
			fmt.Fprintf(s.stderr, "pool %s is made; its id is %s\n", args[0], answer.ID)
			if !standard {
				return nil
			}
			body = map[string]string{"setDefaultAgentPoolID": answer.ID}
			return c.call(ctx, http.MethodPatch, organization, body, nil)
		},
	}
}

func poolToken(s stdio) command.Command {
	flags := newPoolFlags(s)
	var output string
	var revoke bool
	return command.Command{
		Name: "token", Help: "make another token for a pool, and print it",
		Long: "The older tokens of the pool stay valid. With --revoke-others they become invalid at once, for " +
			"example after a leak; agents then fail until they have the new token.",
		Forms: flags.form([]command.Item{poolArgument},
			command.String(&output, "output", command.File, "new file for the token; otherwise it is printed"),
			command.Bool(&revoke, "revoke-others", "make all other tokens of the pool invalid")),
		Run: func(ctx context.Context, args []string) error {
			c, path, err := flags.openPool(ctx, args[0])
			if err != nil {
				return err
			}
			sink, err := newTokenSink(output, s)
			if err != nil {
				return err
			}
			defer sink.close()

			var answer struct {
				Token secret.String `json:"tokenValue"`
			}
			body := map[string]bool{"revokeOthers": revoke}
			if err := c.call(ctx, http.MethodPost, path+"/tokens", body, &answer); err != nil {
				return err
			}
			return sink.write(answer.Token)
		},
	}
}

func poolDelete(s stdio) command.Command {
	flags := newPoolFlags(s)
	var force bool
	return command.Command{
		Name: "delete", Help: "delete a pool; its tokens become invalid",
		Forms: flags.form([]command.Item{poolArgument},
			command.Bool(&force, "force",
				"delete the pool even if it has running jobs or agents, or if a stack's settings refer to it")),
		Run: func(ctx context.Context, args []string) error {
			c, path, err := flags.openPool(ctx, args[0])
			if err != nil {
				return err
			}
			if force {
				path += "?force=true"
			}
			if err := c.call(ctx, http.MethodDelete, path, nil, nil); err != nil {
				return withFlags(err, strings.NewReplacer("send force=true", "use --force"))
			}
			_, err = fmt.Fprintf(s.stdout, "pool %s is deleted\n", args[0])
			return err
		},
	}
}

func poolList(s stdio) command.Command {
	flags := newPoolFlags(s)
	return command.Command{
		Name: "list", Help: "list the pools of an organization", Forms: flags.form(nil),
		Run: func(ctx context.Context, _ []string) error {
			c, path, err := flags.open(ctx)
			if err != nil {
				return err
			}
			pools, err := c.pools(ctx, path)
			if err != nil {
				return err
			}

			table := s.table("ID\tNAME\tSTATUS\tLAST SEEN\tDEFAULT")
			for _, pool := range pools {
				standard := ""
				if pool.IsDefault {
					standard = "yes"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", pool.ID, pool.Name, pool.Status,
					unixTime(pool.LastSeen), standard)
			}
			return table.Flush()
		},
	}
}

func poolShow(s stdio) command.Command {
	flags := newPoolFlags(s)
	return command.Command{
		Name: "show", Help: "show a pool, and the agents that used it in the last hour",
		Forms: flags.form([]command.Item{poolArgument}),
		Run: func(ctx context.Context, args []string) error {
			c, path, err := flags.openPool(ctx, args[0])
			if err != nil {
				return err
			}
			var pool struct {
				ID, Name, Description string
				Created               int64
				Agents                []struct {
					Hostname, IP, PID, Platform, Version, Status string
					LastSeen                                     int64
				}
			}
			if err := c.call(ctx, http.MethodGet, path, nil, &pool); err != nil {
				return err
			}
			fmt.Fprintf(s.stdout, "%s: id %s, made at %s\n", pool.Name, pool.ID, unixTime(pool.Created))
			if pool.Description != "" {
				fmt.Fprintln(s.stdout, pool.Description)
			}
			if len(pool.Agents) == 0 {
				_, err := fmt.Fprintln(s.stdout, "no agent used it in the last hour")
				return err
			}
			table := s.table("HOST\tPID\tADDRESS\tVERSION\tPLATFORM\tSTATUS\tLAST SEEN")
			for _, a := range pool.Agents {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(a.Hostname, "-"), cmp.Or(a.PID, "-"), a.IP,
					cmp.Or(a.Version, "-"), cmp.Or(a.Platform, "-"), a.Status, unixTime(a.LastSeen))
			}
			return table.Flush()
		},
	}
}

// tokenSink writes a token, which the service returns only once, to a file or to standard
// output. It creates a temporary file before the call: if the directory is not writable, the
// command fails before the service makes the token.
type tokenSink struct {
	s       stdio
	file    *os.File // temporary; nil prints the token
	path    string
	written bool
}

// newTokenSink returns a sink for a file, or for standard output if path is empty.
func newTokenSink(path string, s stdio) (*tokenSink, error) {
	sink := &tokenSink{s: s, path: path}
	if path == "" {
		return sink, nil
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, cli.Usagef("--output: the file %s exists: name a new file, or remove it", path)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("write the token: %w", err)
	}
	sink.file = file
	return sink, nil
}

// write writes the token. A file gets its final name only when it is complete.
func (t *tokenSink) write(token secret.String) error {
	if t.file == nil {
		_, err := fmt.Fprintln(t.s.stdout, token.Reveal())
		return err
	}
	_, err := fmt.Fprintln(t.file, token.Reveal())
	err = errors.Join(err, t.file.Sync(), t.file.Close())
	if err == nil {
		err = os.Rename(t.file.Name(), t.path)
	}
	if err != nil {
		return fmt.Errorf("write the token: %w", err)
	}
	t.written = true
	_, err = fmt.Fprintf(t.s.stderr, "the token is in %s\n", t.path)
	return err
}

// close removes the temporary file if the token was not written.
func (t *tokenSink) close() {
	if t.file != nil && !t.written {
		_ = t.file.Close()
		_ = os.Remove(t.file.Name())
	}
}
