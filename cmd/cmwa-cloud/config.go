package main

import (
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

func configCommand(s stdio) command.Command {
	flags := newServeFlags()
	return command.Command{
		Name: "config", Help: "print the settings that serve would use, and where each comes from",
		Long: "It takes the flags and the variables of serve, checks them as serve does, and starts nothing. " +
			"Secrets are not printed.",
		Forms: []command.Form{{command.AnyOf(flags.options()...)}},
		Run: func(context.Context, []string) error {
			v, err := flags.service(s)
			if err != nil {
				return err
			}
			for _, notice := range v.notices {
				fmt.Fprintln(s.stderr, "warning: "+notice)
			}
			table := s.table("SETTING\tVALUE\tORIGIN")
			for _, one := range v.settings {
				fmt.Fprintf(table, "%s\t%s\t%s\n", one.name, one.shown(), one.origin)
			}
			for _, issuer := range flags.issuers {
				fmt.Fprintf(table, "oidc-issuer\t%s\t--oidc-issuer\n", issuer)
			}
			return table.Flush()
		},
	}
}

// shown returns the value for a person.
func (s setting) shown() string {
	switch {
	case s.value.Empty():
		return "-"
	case s.masked:
		return "(secret)"
	}
	return s.value.Reveal()
}
