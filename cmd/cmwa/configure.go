package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// configureOptions is what the command line of cmwa configure says.
type configureOptions struct {
	config        string
	tokenFile     string
	tokenStdin    bool
	oidcTokenFile string
	organization  string
	poolID        string
	serviceURL    string
	target        string
	yes           bool
}

func configureCommand(s streams) command {
	var o configureOptions
	return command{
		name: "configure", help: "write a configuration file, or change one",
		forms: []form{{anyOf(
			stringFlag(&o.config, "config", aFile, "file to write; otherwise the one that PULUMI_AGENT_CONFIG names, or ./"+schema.FileName),
			stringFlag(&o.tokenFile, "token-file", aFile, "file that holds the pool access token; with --token-stdin, that it is written to"),
			boolFlag(&o.tokenStdin, "token-stdin", "read the pool access token from standard input"),
			stringFlag(&o.oidcTokenFile, "oidc-token-file", aFile, "file that holds an OIDC token to exchange, in place of a pool access token"),
			stringFlag(&o.organization, "organization", aName, "organisation for the exchange"),
			stringFlag(&o.poolID, "pool-id", aName, "pool to join by the exchange"),
			stringFlag(&o.serviceURL, "service-url", aURL, "URL of the service"),
			stringFlag(&o.target, "target", oneOf(carriedOut.Targets...), "where jobs run: "+either(carriedOut.Targets)),
			boolFlag(&o.yes, "yes", "change files that are there already, without a question"),
		)}},
		long: "On a terminal, asks what no flag says. Elsewhere, the flags must say how the agent authenticates.\n" +
			"There is no flag for the token itself, because every user of a machine can see its command lines: it is typed\n" +
			"without being shown, comes through --token-stdin, or lies in a file. The file is written with mode 0600, at once\n" +
			"or not at all, and only if it is a configuration that the agent can use. Of a file that is there, all comments and\n" +
			"all other keys are kept. Unlike the vendor's agent, which writes beside its program, this one writes to the current\n" +
			"directory unless --config or PULUMI_AGENT_CONFIG says otherwise.",
		run: func(ctx context.Context, _ *flag.FlagSet, args []string) error {
			if len(args) > 0 {
				return cli.Usage(errors.New("configure takes flags only: see cmwa configure --help"))
			}
			c := &configuring{o: o, s: s, environ: readEnvironment(s.environ)}
			if !o.tokenStdin {
				c.prompt = newPrompt(ctx, s.stdin, s.stderr)
			}
			defer c.prompt.close()
			return c.run(ctx)
		},
	}
}

// configuring is one run of cmwa configure.
type configuring struct {
	o       configureOptions
	s       streams
	environ environment
	prompt  *prompt // nil if there is nobody to ask

	fields  map[string]schema.Field
	file    onDisk            // the configuration
	present map[string]string // what it says
	secrets *onDisk           // the file of its own that a token goes to; nil is none
	token   string            // that goes there
	changes []schema.Change
}

// run asks everything, then checks everything, and only then writes.
func (c *configuring) run(ctx context.Context) error {
	if err := c.o.check(); err != nil {
		return cli.Usage(err)
	}
	if err := c.open(); err != nil {
		return err
	}
	for _, step := range []func() error{c.overwrite, func() error { return c.credentials(ctx) }, c.service} {
		if err := step(); err != nil {
			return err
		}
	}
	content, err := c.content()
	if err != nil {
		return err
	}
	c.prompt.close()
	if ctx.Err() != nil {
		return errNoAnswer
	}
	return c.write(content)
}

// check finds flags that contradict each other, and tokens in flags, which would
// end in a message or at a wrong place in the file.
func (o configureOptions) check() error {
	oidc := o.oidcTokenFile + o.organization + o.poolID
	if oidc != "" && (o.tokenFile != "" || o.tokenStdin) {
		return errors.New("--oidc-token-file, --organization and --pool-id do not go with a token: leave out one of the two")
	}
	for name, value := range map[string]string{
		"config": o.config, "token-file": o.tokenFile, "oidc-token-file": o.oidcTokenFile, "organization": o.organization,
		"pool-id": o.poolID, "service-url": o.serviceURL, "target": o.target,
	} {
		if secret.LooksLikeToken(value) {
			return fmt.Errorf("--%s holds what looks like a token: pass a token through --token-stdin, or name a file that holds it", name)
		}
	}
	return nil
}

// open reads the schema, and the configuration if there is one.
func (c *configuring) open() error {
	fields, err := schema.Fields()
	if err != nil {
		return err
	}
	c.fields = map[string]schema.Field{}
	for _, f := range fields {
		if !f.OnlyVariable {
			c.fields[f.Key] = f
		}
	}
	path := c.o.config
	if path == "" {
		path = strings.TrimSpace(c.environ[c.variable("config", fields)])
	}
	if path == "" {
		path = schema.FileName
	}
	if c.file, err = open(path, path); err != nil {
		return err
	}
	if c.present, err = schema.Texts(c.file.content); err != nil {
		return cli.Usage(c.inFile(err))
	}
	return nil
}

func (c *configuring) variable(key string, fields []schema.Field) string {
	at := slices.IndexFunc(fields, func(f schema.Field) bool { return f.Key == key })
	if at < 0 {
		return ""
	}
	return fields[at].Variable
}

// inFile puts the name of the configuration before problems.
func (c *configuring) inFile(err error) error {
	var problems position.Problems
	if !errors.As(err, &problems) {
		return err
	}
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i].File = c.file.path
	}
	return fmt.Errorf("nothing has been changed, because of what must be mended first:\n%w", problems)
}

// content returns the file as it is going to be, if the agent can use it.
func (c *configuring) content() ([]byte, error) {
	before := c.file.content
	if c.file.info == nil {
		before = []byte("# Configuration of cmwa, written by cmwa configure. Change it with that command or by hand: cmwa vet says\n" +
			"# what is wrong with it, and cmwa explain tells of all other keys.\n")
	}
	content, err := schema.Edit(before, c.changes)
	if err != nil {
		return nil, cli.Usage(c.inFile(err))
	}
	source := schema.Source{Path: c.file.path, Content: content, ReadFile: func(name string) ([]byte, error) {
		if c.secrets != nil && name == c.secrets.path {
			return []byte(c.token), nil
		}
		file, err := open(name, name)
		if err == nil && file.info == nil || errors.Is(err, errNoFolder) {
			err = fs.ErrNotExist
		}
		return file.content, err
	}}
	_, problems := schema.Load(source)
	errs := problems.Errors()
	if c.file.info == nil { // there is no line to look at
		for i := range errs {
			if errs[i].File == c.file.path {
				errs[i].File, errs[i].Line, errs[i].Column = "", 0, 0
			}
		}
	}
	if err := errs.Err(); err != nil {
		return nil, cli.Usagef("nothing has been changed, because the result could not be used:\n%w", err)
	}
	return content, nil
}

// write puts the token and the configuration where they belong, and says so.
func (c *configuring) write(content []byte) error {
	var told []string
	if c.secrets != nil {
		done, err := c.secrets.replace([]byte(c.token + "\n"))
		if err != nil {
			return fmt.Errorf("write %s: %w: nothing has been changed", c.secrets.name, err)
		}
		told = append(told, fmt.Sprintf(done, c.secrets.name))
	}
	done, err := c.file.replace(content)
	if err != nil {
		if c.secrets != nil {
			err = errors.Join(err, c.secrets.undo())
		}
		return fmt.Errorf("write %s: %w: nothing has been changed", c.file.name, err)
	}
	told = append(told, fmt.Sprintf(done, c.file.name))
	c.warn(content)
	word := inShell(c.file.path)
	told = append(told, "next:", "  cmwa vet "+word, "  cmwa run --config "+word)
	_, err = fmt.Fprintln(c.s.stdout, strings.Join(told, "\n"))
	return err
}

// warn speaks of what may surprise later.
func (c *configuring) warn(content []byte) {
	for _, change := range c.changes {
		if variable := c.fields[change.Key].Variable; strings.TrimSpace(c.environ[variable]) != "" {
			fmt.Fprintf(c.s.stderr, "cmwa: the variable %s is set here, and wins over the file\n", variable)
		}
	}
	for _, f := range []*onDisk{&c.file, c.secrets} {
		if f == nil || f == &c.file && !holdsToken(content) {
			continue
		}
		if inWorkTree(f.path) {
			fmt.Fprintf(c.s.stderr, "cmwa: %s lies in a git work tree: keep the token in it out of commits, with a line in .gitignore\n", f.name)
		}
	}
}

func holdsToken(content []byte) bool {
	texts, err := schema.Texts(content)
	return err == nil && texts["token"] != ""
}

// inWorkTree reports whether git keeps a folder above the file.
func inWorkTree(path string) bool {
	folder, err := filepath.Abs(filepath.Dir(path))
	for ; err == nil; folder = filepath.Dir(folder) {
		if _, err := os.Lstat(filepath.Join(folder, ".git")); err == nil {
			return true
		}
		if folder == filepath.Dir(folder) {
			return false
		}
	}
	return false
}

// inShell writes a name as a word of a shell's command line.
func inShell(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%", r)
	}
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return name
	}
	return quoted(name)
}
