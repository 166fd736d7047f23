package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/schema"
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

func configureCommand(s streams) *ffcli.Command {
	flags := s.flags("cmwa configure")
	var o configureOptions
	flags.StringVar(&o.config, "config", "", "file to write; otherwise the one that PULUMI_AGENT_CONFIG names, or ./"+schema.FileName)
	flags.StringVar(&o.tokenFile, "token-file", "", "file that holds the pool access token; with --token-stdin, that it is written to")
	flags.BoolVar(&o.tokenStdin, "token-stdin", false, "read the pool access token from standard input")
	flags.StringVar(&o.oidcTokenFile, "oidc-token-file", "", "file that holds an OIDC token to exchange, in place of a pool access token")
	flags.StringVar(&o.organization, "organization", "", "organisation for the exchange")
	flags.StringVar(&o.poolID, "pool-id", "", "pool to join by the exchange")
	flags.StringVar(&o.serviceURL, "service-url", "", "URL of the service")
	flags.StringVar(&o.target, "target", "", "where jobs run: docker, kubernetes, ecs or process")
	flags.BoolVar(&o.yes, "yes", false, "change files that are there already, without a question")
	return &ffcli.Command{
		Name: "configure", ShortUsage: "cmwa configure [FLAGS]",
		ShortHelp: "write a configuration file, or change one",
		LongHelp: "On a terminal, asks what no flag says. Elsewhere, the flags must say how the agent authenticates.\n" +
			"There is no flag for the token itself, because every user of a machine can see its command lines: it is typed\n" +
			"without being shown, comes through --token-stdin, or lies in a file. The file is written with mode 0600, at once\n" +
			"or not at all, and only if it is a configuration that the agent can use. Of a file that is there, all comments and\n" +
			"all other keys are kept. Unlike the vendor's agent, which writes beside its program, this one writes to the current\n" +
			"directory unless --config or PULUMI_AGENT_CONFIG says otherwise.",
		FlagSet: flags,
		Exec: func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usageError{errors.New("configure takes flags only: see cmwa configure --help")}
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
		return usageError{err}
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
		if tokenLike(value) {
			return fmt.Errorf("--%s holds what looks like a token: pass a token through --token-stdin, or name a file that holds it", name)
		}
	}
	return nil
}

// tokenLike recognises pool access tokens of the service, and OIDC tokens.
func tokenLike(text string) bool {
	return strings.HasPrefix(text, "pul-") || strings.HasPrefix(text, "eyJ")
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
		return usageError{c.inFile(err)}
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
	var problems schema.Problems
	if !errors.As(err, &problems) {
		return err
	}
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i].File = c.file.path
	}
	return fmt.Errorf("nothing has been changed, because of what must be mended first:\n%w", problems)
}

// overwrite asks whether a file that is there may be changed.
func (c *configuring) overwrite() error {
	return c.mayChange(c.file, "Change it, and keep its comments and other keys?")
}

func (c *configuring) mayChange(file onDisk, text string) error {
	state := file.name + " is there already"
	switch {
	case file.info == nil || c.o.yes:
		return nil
	case c.prompt == nil:
		return usageError{fmt.Errorf("%s: to change it, add --yes", state)}
	}
	answer, err := c.prompt.ask(question{text: state + ". " + text, shown: "no", empty: "no", check: oneOf("yes", "no", "y", "n")})
	if err == nil && answer[0] == 'n' {
		err = errors.New("nothing has been changed")
	}
	return err
}

// oneOf makes the check of a choice.
func oneOf(words ...string) func(string) error {
	return func(answer string) error {
		if !slices.Contains(words, answer) {
			return fmt.Errorf("must be one of: %s", strings.Join(words, ", "))
		}
		return nil
	}
}

// valid makes the check of an answer by the rules of the schema for its key.
func (c *configuring) valid(key string) func(string) error {
	return func(answer string) error {
		if answer == "" {
			return errors.New("must not be empty")
		}
		content, err := schema.Edit(nil, []schema.Change{{Key: key, Value: answer}})
		if err != nil {
			return errors.New("must be plain text")
		}
		_, problems := schema.Load(schema.Source{Content: content, Elsewhere: true})
		for _, p := range problems.Errors() {
			if p.Path != key {
				continue
			}
			if p.Hint != "" {
				return fmt.Errorf("%s: %s", p.Message, p.Hint)
			}
			return errors.New(p.Message)
		}
		return nil
	}
}

// named makes the check of the name of a file.
func (c *configuring) named(key string) func(string) error {
	return func(answer string) error {
		if tokenLike(answer) {
			return errors.New("looks like a token: give the name of a file that holds it")
		}
		return c.valid(key)(answer)
	}
}

// answer is the value of a key: that of its flag, or what the person says, or,
// with nobody to ask, what the file says. missing says which flag to add if there
// is none of these.
func (c *configuring) answer(key, flag, value, text string, check func(string) error) (string, error) {
	present := c.present[key]
	if value != "" {
		if err := check(value); err != nil {
			return "", usageError{fmt.Errorf("--%s: %w", flag, err)}
		}
		return value, nil
	}
	if c.prompt != nil {
		q := question{text: text, empty: present, check: check}
		if present != "" {
			q.shown = "as it is"
		}
		return c.prompt.ask(q)
	}
	if present == "" {
		return "", usageError{fmt.Errorf("there is nobody to ask: add --%s", flag)}
	}
	return present, nil
}

// set notes a change. A key that is not there need not be emptied.
func (c *configuring) set(key, value string) {
	if _, ok := c.present[key]; !ok && value == "" {
		return
	}
	c.changes = append(c.changes, schema.Change{Key: key, Value: value, Comment: c.fields[key].Doc})
}

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
		return false, usageError{fmt.Errorf("%s: to set these all the same, add --yes", state)}
	case c.prompt == nil:
		return false, nil
	}
	answer, err := c.prompt.ask(question{text: state + ". Set these all the same?", shown: "no", empty: "no", check: oneOf("yes", "no", "y", "n")})
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
		return c.prompt.ask(question{text: "Authenticate by pool access token or OIDC (token or oidc)", shown: had, empty: had, check: oneOf("token", "oidc")})
	case had != "":
		return "", nil
	default:
		return "", usageError{errors.New("there is nobody to ask how the agent authenticates: add --token-stdin, --token-file, or --oidc-token-file with --organization and --pool-id")}
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
			return usageError{err}
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
	if named := c.present["token_file"]; named != "" && !tokenLike(named) {
		place, beside = "file", named
	}
	if beside, err = c.absolute("token_file", beside); err != nil {
		return err
	}
	if c.prompt != nil {
		place, err = c.prompt.ask(question{text: "Token in the configuration or in a file of its own (config or file)", shown: place, empty: place, check: oneOf("config", "file")})
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
			return "", usageError{fmt.Errorf("the token on standard input %w", err)}
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
		return usageError{errors.New("the token file cannot be the configuration itself: name another with --token-file")}
	}
	c.token, c.secrets = token, &file
	return c.mayChange(file, "Put the new token into it?")
}

// service settles where the service is, and where jobs run.
func (c *configuring) service() error {
	for _, q := range []struct{ key, flag, value, text string }{
		{"service_url", "service-url", c.o.serviceURL, "URL of the service"},
		{"deploy_target", "target", c.o.target, "Where jobs run (" + strings.Join(c.fields["deploy_target"].Choices, ", ") + ")"},
	} {
		standard := strings.Trim(c.fields[q.key].Default, `"`)
		value, had := q.value, c.present[q.key]
		check := c.valid(q.key)
		if had == "" {
			had = standard
		}
		switch {
		case value != "":
			if err := check(value); err != nil {
				return usageError{fmt.Errorf("--%s: %w", q.flag, err)}
			}
		case c.prompt != nil:
			shown := had
			if check(had) != nil || strings.Contains(had, "pul-") {
				shown = "as it is"
			}
			var err error
			if value, err = c.prompt.ask(question{text: q.text, shown: shown, empty: had, check: check}); err != nil {
				return err
			}
		default:
			value = had
		}
		if c.file.info != nil && q.value == "" && value == had {
			continue // nobody said that it should stand there
		}
		c.set(q.key, value)
	}
	return nil
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
		return nil, usageError{c.inFile(err)}
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
		return nil, usageError{fmt.Errorf("nothing has been changed, because the result could not be used:\n%w", err)}
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
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// onDisk is a file that is going to be written, as it was found.
type onDisk struct {
	path    string      // as it was named
	name    string      // for people
	place   string      // with links followed
	content []byte      // nil if there is none
	info    fs.FileInfo // nil if there is none
}

var errNoFolder = errors.New("its folder is not there: make it, or name another")

// open finds a file and reads it, where there is one. Its folder must be there.
// Errors call it by the name for people.
func open(path, name string) (onDisk, error) {
	f := onDisk{path: path, name: name, place: path}
	refuse := func(err error) (onDisk, error) { return onDisk{}, fmt.Errorf("%s: %w", f.name, pathless(err)) }
	const most = 40 // links in a row, as systems have it
	for range most {
		info, err := os.Lstat(f.place)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			switch _, err := os.Stat(filepath.Dir(f.place)); {
			case errors.Is(err, fs.ErrNotExist):
				return refuse(errNoFolder)
			case err != nil:
				return refuse(errors.New("its folder cannot be used: name another"))
			}
			return f, nil
		case err != nil:
			return refuse(err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(f.place)
			if err != nil {
				return refuse(err)
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(f.place), target)
			}
			f.place = target
			continue
		case !info.Mode().IsRegular():
			return refuse(errors.New("is not a regular file"))
		}
		file, err := os.Open(f.place)
		if err != nil {
			return refuse(err)
		}
		defer file.Close()
		f.info = info
		if f.content, err = io.ReadAll(io.LimitReader(file, schema.MaxFile+1)); err != nil {
			return refuse(err)
		}
		return f, nil
	}
	return refuse(syscall.ELOOP)
}

// pathless returns the cause of an error without the name of a file in it: the
// name is said once, or may not be said.
func pathless(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	default:
		return err
	}
}

// replace puts content in place of the file: all of it or, with an error, none.
// The file keeps its owner, and of its permissions those of the owner to read and
// write; a new one is for its owner alone. A file that is not as it was found any
// more is left alone. It returns what was done, in words.
func (f onDisk) replace(content []byte) (done string, err error) {
	now, err := open(f.path, f.name)
	if err != nil {
		return "", err
	}
	if now.place != f.place || (now.info == nil) != (f.info == nil) || !bytes.Equal(now.content, f.content) {
		return "", errors.New("it has been changed by another in the meantime: begin again")
	}
	mode := fs.FileMode(0o600)
	done = "wrote %s"
	if f.info != nil {
		tighter := now.info.Mode().Perm() & mode
		switch {
		case tighter != now.info.Mode().Perm():
			done = "wrote %s, which others cannot read or write any more"
		case bytes.Equal(content, f.content):
			return "left %s as it is, since it says so already", nil
		}
		mode = tighter
	}
	temp, err := os.CreateTemp(filepath.Dir(f.place), "."+filepath.Base(f.place)+".*")
	if err != nil {
		return "", pathless(err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	if err == nil && f.info != nil {
		err = keepOwner(temp, now.info)
	}
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return "", pathless(err)
	}
	if err = os.Rename(temp.Name(), f.place); err != nil {
		return "", pathless(err)
	}
	// The file is in place. A folder that cannot be synced is as it would be
	// without the attempt.
	if folder, err := os.Open(filepath.Dir(f.place)); err == nil {
		_ = folder.Sync()
		_ = folder.Close()
	}
	return done, nil
}

// keepOwner gives a new file the owner and group of the one it replaces.
func keepOwner(file *os.File, old fs.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	was, ok := old.Sys().(*syscall.Stat_t)
	is, okToo := info.Sys().(*syscall.Stat_t)
	if !ok || !okToo || was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return errors.New("it belongs to another user or group: begin again as that user")
	}
	return nil
}

// undo takes back what replace has done.
func (f onDisk) undo() error {
	if f.info == nil {
		return os.Remove(f.place)
	}
	now, err := open(f.path, f.name)
	if err == nil {
		_, err = now.replace(f.content)
	}
	return err
}
