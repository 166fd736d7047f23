package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// tokenFlags are the flags of the commands for access tokens.
type tokenFlags struct {
	*connection
	organization string
}

func newTokenFlags(s stdio) *tokenFlags { return &tokenFlags{connection: newConnection(s)} }

// form returns the form of a command for access tokens.
func (f *tokenFlags) form(arguments []command.Item, options ...command.Option) []command.Form {
	organization := command.String(&f.organization, "organization", command.Name,
		"the tokens of this organization; otherwise those of the user")
	return f.connection.form(arguments, append(options, organization)...)
}

// path returns the API path of the tokens.
func (f *tokenFlags) path() string {
	if f.organization == "" {
		return "/api/user/tokens"
	}
	return organizationsPath + url.PathEscape(f.organization) + "/tokens"
}

// accessToken is an access token in a response of the service.
type accessToken struct {
	ID, Name, Description, Created string
	Expires, LastUsed              int64
	Admin                          bool
}

func tokenCreate(s stdio) command.Command {
	flags := newTokenFlags(s)
	var name, description, output string
	var admin bool
	expires := "0"
	return command.Command{
		Name: "create", Help: "make an access token, and print it; it cannot be shown again",
		Long: "A token of the user allows what the user may do. A token of an organization needs a --name, which no " +
			"later token of the organization can have, and allows what its members may do; with --admin also what " +
			"administrators may do.",
		Forms: flags.form(nil,
			command.String(&name, "name", command.Name, "name of the token of an organization, at most 40 characters"),
			command.String(&description, "description", command.Text("TEXT"), "purpose of the token"),
			command.String(&expires, "expires", command.Text("DURATION"),
				"the token is valid for this time, such as 90d, at most two years; 0 is without an end"),
			command.Bool(&admin, "admin", "give the token of an organization the rights of an administrator"),
			command.String(&output, "output", command.File, "new file for the token; otherwise it is printed")),
		Run: func(ctx context.Context, _ []string) error {
			if flags.organization == "" && (name != "" || admin) {
				return cli.Usagef("--name and --admin are for the tokens of an organization: add --organization, " +
					"or describe the token of the user with --description")
			}
			if flags.organization != "" && name == "" {
				return cli.Usagef("the token of an organization needs a --name")
			}
			lifetime, err := parseAge("--expires", expires, "for no end")
			if err != nil {
				return err
			}
			c, err := flags.open()
			if err != nil {
				return err
			}
			sink, err := newTokenSink(output, s)
			if err != nil {
				return err
			}
			defer sink.close()

			body := map[string]any{"name": name, "description": description, "admin": admin}
			if lifetime > 0 {
				body["expires"] = time.Now().Add(lifetime).Unix()
			}
			var answer struct {
				ID    string
				Token secret.String `json:"tokenValue"`
			}
			if err := c.call(ctx, http.MethodPost, flags.path(), body, &answer); err != nil {
				return withFlags(err, strings.NewReplacer("expires must", "--expires must", "name must", "--name must",
					"description must", "--description must"))
			}
			if err := sink.write(answer.Token); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.stderr, "the token is made; its id is %s\n", answer.ID)
			return err
		},
	}
}

func tokenList(s stdio) command.Command {
	flags := newTokenFlags(s)
	var all bool
	return command.Command{
		Name: "list", Help: "list the access tokens, without the tokens themselves",
		Forms: flags.form(nil, command.Bool(&all, "all", "also list the tokens that have expired")),
		Run: func(ctx context.Context, _ []string) error {
			c, err := flags.open()
			if err != nil {
				return err
			}
			path := flags.path()
			if all {
				path += "?filter=all"
			}
			var answer struct{ Tokens []accessToken }
			if err := c.call(ctx, http.MethodGet, path, nil, &answer); err != nil {
				return err
			}
			table := s.table("ID\tNAME\tADMIN\tCREATED\tEXPIRES\tLAST USED\tDESCRIPTION")
			for _, one := range answer.Tokens {
				admin := ""
				if one.Admin {
					admin = "yes"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.ID, one.Name, admin, localTime(one.Created),
					unixTime(one.Expires), unixTime(one.LastUsed), one.Description)
			}
			return table.Flush()
		},
	}
}

// unixTime returns the local time of a number of seconds since 1970, or never for 0.
func unixTime(seconds int64) string {
	if seconds == 0 {
		return "never"
	}
	return time.Unix(seconds, 0).Format(time.DateTime)
}

func tokenDelete(s stdio) command.Command {
	flags := newTokenFlags(s)
	return command.Command{
		Name: "delete", Help: "delete an access token; it becomes invalid at once",
		Forms: flags.form([]command.Item{command.Argument("ID", command.Text("ID"))}),
		Run: func(ctx context.Context, args []string) error {
			c, err := flags.open()
			if err != nil {
				return err
			}
			if err := c.call(ctx, http.MethodDelete, flags.path()+"/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.stdout, "token %s is deleted\n", args[0])
			return err
		},
	}
}
