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
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Options is the input of [Run].
type Options struct {
	Config        string // file to write; if empty, PULUMI_AGENT_CONFIG or else the default
	TokenFile     string // file of the pool access token
	TokenStdin    bool   // read the pool access token from Stdin
	OIDCTokenFile string // file of an OIDC token, which excludes a pool access token
	Organization  string // for the exchange of an OIDC token
	PoolID        string // for the exchange of an OIDC token
	ServiceURL    string
	Target        string // deploy_target
	Yes           bool   // change files that exist without a confirmation

	// CheckToken checks whether the service of a pool accepts the pool's token, without
	// claiming a job. Problem is empty if it does. Reached is false if the service could not
	// check the token. A nil function checks nothing.
	CheckToken func(ctx context.Context, config *schema.Config, pool string) (problem string, reached bool)

	Targets []string          // deploy targets that this release supports
	Environ map[string]string // variables of the process
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// session is one call of Run.
type session struct {
	o      Options
	prompt *prompt // nil if there is no terminal

	fields    map[string]schema.Field // by key
	config    file                    // the configuration
	present   map[string]string       // values that the configuration has now, by key
	tokenFile *file                   // separate file to write the token to; may be nil
	token     string                  // to write to tokenFile
	newToken  string                  // that a person or a program passed; empty without a new one
	changes   []schema.Change         // of the configuration
}

// Run writes a configuration file. On a terminal it prompts for what the options do not
// contain. It writes nothing if the agent could not use the result, or if the service
// rejects the new token. It does write a token that the service could not check.
func Run(ctx context.Context, o Options) error {
	err := runSession(ctx, o)
	if errors.Is(err, errInterrupted) {
		fmt.Fprintf(o.Stderr, "cmwa: %v\n", err)
		return cli.ExitError(cli.ExitInterrupted)
	}
	return err
}

func runSession(ctx context.Context, o Options) error {
	s := &session{o: o}
	if !o.TokenStdin {
		s.prompt = newPrompt(ctx, o.Stdin, o.Stderr)
	}
	defer s.prompt.close()

	if err := o.check(); err != nil {
		return cli.Usage(err)
	}
	if err := s.open(); err != nil {
		return err
	}

	const text = "Change only the keys that prompts and flags set, and keep all other keys?"
	if err := s.confirm(s.config, text); err != nil {
		return err
	}
	for _, ask := range []func() error{
		s.serviceURL, func() error { return s.credentials(ctx) }, s.target,
	} {
		if err := ask(); err != nil {
			return err
		}
	}

	content, err := s.checked(ctx)
	if err != nil {
		return err
	}
	s.prompt.close()
	if ctx.Err() != nil {
		return errInterrupted
	}
	return s.write(content)
}

// checked returns the new content of the configuration. If the service rejects a new token,
// checked prompts for another token on a terminal, and keeps all other answers; without a
// terminal it returns an error. A token that cannot be checked is not an error.
func (s *session) checked(ctx context.Context) ([]byte, error) {
	for {
		content, config, err := s.content()
		if err != nil || s.newToken == "" || s.o.CheckToken == nil {
			return content, err
		}
		uses := func(p schema.Pool) bool { return p.Token.Reveal() == s.newToken }
		i := slices.IndexFunc(config.Pools, uses)
		if i < 0 {
			fmt.Fprintln(s.screen(), "cmwa: the token is not checked: no pool uses it")
			return content, nil
		}

		problem, reached := s.o.CheckToken(ctx, config, config.Pools[i].Name)
		switch {
		case ctx.Err() != nil:
			return nil, errInterrupted
		case problem == "":
			return content, nil
		case !reached:
			fmt.Fprintf(s.screen(), "cmwa: the token is not checked: %s\n", problem)
			return content, nil
		case s.prompt == nil:
			return nil, cli.Usagef("%s: nothing has been changed", problem)
		}

		s.prompt.note("%s", problem)
		token, err := s.readToken(ctx, false)
		if err != nil {
			return nil, err
		}
		s.replaceToken(token)
	}
}

// screen returns the writer for messages during the session, which must not be written to
// a raw terminal directly.
func (s *session) screen() io.Writer {
	if s.prompt != nil {
		return s.prompt.terminal
	}
	return s.o.Stderr
}

// check rejects options that contradict each other. It also rejects a token in place of
// another value: the token would be shown in a message, or written to a wrong key.
func (o Options) check() error {
	if o.exchanges() && (o.TokenFile != "" || o.TokenStdin) {
		return errors.New("--oidc-token-file, --organization and --pool-id cannot be combined with a token: " +
			"pass one of the two")
	}
	for _, flag := range []struct{ name, value string }{
		{"config", o.Config}, {"token-file", o.TokenFile}, {"oidc-token-file", o.OIDCTokenFile},
		{"organization", o.Organization}, {"pool-id", o.PoolID}, {"service-url", o.ServiceURL}, {"target", o.Target},
	} {
		if secret.LooksLikeToken(flag.value) {
			return fmt.Errorf("--%s holds what looks like a token: "+
				"pass a token through --token-stdin, or name a file that holds it", flag.name)
		}
	}
	return nil
}

// exchanges reports whether an option concerns the exchange of an OIDC token.
func (o Options) exchanges() bool { return o.OIDCTokenFile+o.Organization+o.PoolID != "" }

// open reads the schema, and the configuration if it exists.
func (s *session) open() error {
	// The keys, and the variable that names the configuration.
	variable := ""
	s.fields = map[string]schema.Field{}
	for _, f := range schema.Fields() {
		if f.Key == "config" {
			variable = f.Variable
		}
		if !f.OnlyVariable {
			s.fields[f.Key] = f
		}
	}

	path := cmp.Or(s.o.Config, strings.TrimSpace(s.o.Environ[variable]), schema.FileName)
	var err error
	if s.config, err = open(path, path); err != nil {
		return err
	}
	if s.present, err = schema.Texts(s.config.content); err != nil {
		return cli.Usage(s.located(err))
	}
	return nil
}

// located adds the path of the configuration to each problem.
func (s *session) located(err error) error {
	problems, ok := errors.AsType[position.Problems](err)
	if !ok {
		return err
	}
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i].File = s.config.path
	}
	return fmt.Errorf("nothing has been changed; fix this first:\n%w", problems)
}

// content returns the new content of the configuration, if the agent can use it.
func (s *session) content() ([]byte, *schema.Config, error) {
	before := s.config.content
	if s.config.info == nil {
		before = []byte("# Configuration of cmwa, written by cmwa configure. Edit it, or run that command again.\n" +
			"# cmwa vet checks it, and cmwa explain lists all keys.\n")
	}
	content, err := schema.Edit(before, s.changes)
	if err != nil {
		return nil, nil, cli.Usagef("%w\nor write these lines manually:\n%s", s.located(err), s.lines())
	}

	// Load the result as the agent would, with the token file as it will be.
	source := schema.Source{Path: s.config.path, Content: content, ReadFile: func(name string) ([]byte, error) {
		if s.tokenFile != nil && name == s.tokenFile.path {
			return []byte(s.token), nil
		}
		f, err := open(name, name)
		if err == nil && f.info == nil || errors.Is(err, errNoDirectory) {
			err = fs.ErrNotExist
		}
		return f.content, err
	}}
	config, problems := schema.Load(source)
	errs := problems.Errors()
	if s.config.info == nil { // a new file is not written yet, so its lines cannot be viewed
		for i := range errs {
			if errs[i].File == s.config.path {
				errs[i].File, errs[i].Line, errs[i].Column = "", 0, 0
			}
		}
	}
	if err := errs.Err(); err != nil {
		return nil, nil, cli.Usagef("nothing has been changed; the result would be invalid:\n%w", err)
	}
	return content, config, nil
}

// lines returns the changes as indented lines of a configuration, without secrets.
func (s *session) lines() string {
	shown := slices.Clone(s.changes)
	for i, change := range shown {
		shown[i].Comment = ""
		if change.Value != "" && (change.Key == "token" || secret.ContainsToken(change.Value)) {
			shown[i].Value = "<not shown>"
		}
	}
	text, _ := schema.Edit(nil, shown) // the values have been checked
	return "  " + strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n  ")
}

// write writes the token file, if there is one, and the configuration. It prints
// what it did and which commands come next.
func (s *session) write(content []byte) error {
	var lines []string
	if s.tokenFile != nil {
		done, err := s.tokenFile.replace([]byte(s.token + "\n"))
		if err != nil {
			return fmt.Errorf("write %s: %w: nothing has been changed", s.tokenFile.name, err)
		}
		lines = append(lines, fmt.Sprintf(done, s.tokenFile.name))
	}
	done, err := s.config.replace(content)
	if err != nil {
		err = fmt.Errorf("write %s: %w: it has not been changed", s.config.name, err)
		if s.tokenFile != nil {
			err = fmt.Errorf("%w, but %s has the new token", err, s.tokenFile.name)
		}
		return err
	}
	lines = append(lines, fmt.Sprintf(done, s.config.name))
	s.warn()
	lines = append(lines, next(s.config)...)
	_, err = fmt.Fprintln(s.o.Stdout, strings.Join(lines, "\n"))
	return err
}

// next returns lines with the commands that come next. A file in /etc/cmwa is for the systemd unit,
// whose user must be able to read it. The person who runs these commands often cannot, so vet runs with sudo.
func next(config file) []string {
	quoted := printable.ShellArgument(config.path)
	if filepath.Dir(config.resolved) == "/etc/cmwa" {
		return []string{"next:", "  sudo cmwa vet " + quoted, "  sudo chown -R cmwa /etc/cmwa",
			"  sudo systemctl enable --now cmwa"}
	}
	return []string{
		"next:", "  cmwa vet " + quoted, "  cmwa doctor --config " + quoted, "  cmwa run --config " + quoted,
	}
}

// warn prints a warning for each variable that overrides a changed key.
func (s *session) warn() {
	for _, change := range s.changes {
		if variable := s.fields[change.Key].Variable; strings.TrimSpace(s.o.Environ[variable]) != "" {
			fmt.Fprintf(s.o.Stderr, "cmwa: the variable %s is set here, and overrides the file\n", variable)
		}
	}
}
