package configure

import (
	"bytes"
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
	"github.com/cmwa-project/cmwa/schema"
)

// canary is a token that no output may show.
const canary = filetest.Canary

// configured is the result of one call of Run without a terminal.
type configured struct {
	code           int
	stdout, stderr string
}

// configure calls Run in the current directory, without a terminal.
func configure(t *testing.T, stdin string, environ map[string]string, args ...string) configured {
	t.Helper()
	o := options(t, args)
	o.Stdin, o.Environ = strings.NewReader(stdin), environ
	got := run(t.Context(), o)
	if out := got.stdout + got.stderr; strings.Contains(out, canary[4:12]) {
		t.Errorf("the output shows the token:\n%s", out)
	}
	return got
}

// run calls Run with options, without a terminal.
func run(ctx context.Context, o Options) configured {
	var stdout, stderr bytes.Buffer
	o.Stdout, o.Stderr = &stdout, &stderr
	code := cli.Exit(&stderr, "cmwa", Run(ctx, o))
	return configured{code, stdout.String(), stderr.String()}
}

// mustConfigure is [configure] for a call that must succeed.
func mustConfigure(t *testing.T, stdin string, args ...string) configured {
	t.Helper()
	got := configure(t, stdin, nil, args...)
	if got.code != cli.ExitOK {
		t.Fatalf("%q: %+v", args, got)
	}
	return got
}

// options returns the options for flags of the same names.
func options(t *testing.T, args []string) Options {
	t.Helper()
	o := Options{Targets: []string{"docker", "process"}}
	flags := flag.NewFlagSet("configure", flag.ContinueOnError)
	for name, p := range map[string]*string{
		"config": &o.Config, "token-file": &o.TokenFile, "oidc-token-file": &o.OIDCTokenFile,
		"organization": &o.Organization, "pool-id": &o.PoolID, "service-url": &o.ServiceURL, "target": &o.Target,
	} {
		flags.StringVar(p, name, "", "")
	}
	flags.BoolVar(&o.TokenStdin, "token-stdin", false, "")
	flags.BoolVar(&o.Yes, "yes", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		t.Fatalf("%q: %v", args, err)
	}
	return o
}

func TestRunNewFile(t *testing.T) {
	t.Chdir(t.TempDir())
	got := mustConfigure(t, canary+"\n", "--token-stdin", "--service-url", "https://pulumi.example.com/",
		"--target", "process")
	if got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	const name = schema.FileName
	filetest.Holds(t, name)
	if m := filetest.Mode(t, name); m != 0o600 {
		t.Errorf("the file has mode %v, want 0600", m)
	}
	p := filetest.Settings(t, name)
	if p.Token.Reveal() != canary || p.ServiceURL != "https://pulumi.example.com" || p.DeployTarget != "process" {
		t.Errorf("%+v", p)
	}
	for line := range strings.Lines(filetest.Content(t, name)) {
		if len(line) > 111 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
	if !strings.Contains(filetest.Content(t, name), "\n# Base URL of the service.") {
		t.Errorf("the file lacks the documentation of service_url:\n%s", filetest.Content(t, name))
	}
	for _, want := range []string{"wrote " + name, "cmwa vet " + name, "cmwa run --config " + name} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is not in %q", want, got.stdout)
		}
	}
}

func TestRunUsageErrors(t *testing.T) {
	exchange := func(args ...string) []string {
		return append([]string{"--oidc-token-file", "jwt", "--organization", "acme", "--pool-id", "p"}, args...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--token-stdin, --token-file, or --oidc-token-file"},
		{[]string{"--service-url", "https://pulumi.example.com"}, "--token-stdin, --token-file, or --oidc-token-file"},
		{[]string{"--oidc-token-file", "jwt"}, "pass --organization"},
		{[]string{"--organization", "acme"}, "pass --oidc-token-file"},
		{[]string{"--oidc-token-file", "jwt", "--organization", "acme"}, "pass --pool-id"},
		{exchange("--organization", "a b"), "--organization: must be a text without spaces"},
		{[]string{"--oidc-token-file", "jwt", "--token-stdin"}, "pass one of the two"},
		{[]string{"--token-stdin"}, "token on standard input must not be empty"},
		{[]string{"--token-file", schema.FileName}, "there is no such file"},
		{[]string{"--token-file", canary}, "looks like a token"},
		{[]string{"--config", canary}, "looks like a token"},
		{[]string{"--organization", "eyJ" + canary}, "looks like a token"},
		{[]string{"--target", canary, "--config", canary}, "--config holds what looks like a token"},
		{exchange("--service-url", "pulumi.example.com"), "--service-url: must be a URL such as"},
		{exchange("--service-url", "https://u:"+canary+"@x"), "--service-url: must be a URL such as"},
		{exchange("--target", "dokcer"), "--target: must be one of"},
		{exchange("--target", "x\x00\n\u2028\xff"), "--target: must be"},
		{[]string{"--config", ".", "--token-file", "none"}, "not a regular file"},
		{[]string{"--config", "none/x.yaml", "--token-file", "none"}, "none/x.yaml: its directory does not exist"},
		{[]string{"--token-file", "none/token"}, "--token-file: its directory does not exist"},
		{[]string{"--token-file", "none"}, "--token-file: there is no such file"},
		{[]string{"--token-file", "."}, "--token-file: not a regular file"},
	} {
		t.Chdir(t.TempDir())
		got := configure(t, "", nil, c.args...)
		if strings.Contains(got.stderr, schema.FileName+":") {
			t.Errorf("%q: the message has a line of a file that does not exist: %s", c.args, got.stderr)
		}
		if got.code == cli.ExitOK || !strings.Contains(got.stderr, c.want) || got.stdout != "" {
			t.Errorf("%q: %+v", c.args, got)
		}
		if usage := !strings.Contains(c.want, ".yaml: its directory") && !strings.Contains(c.want, "token: its") &&
			!strings.Contains(c.want, "regular"); usage && got.code != cli.ExitUsage {
			t.Errorf("%q: exit code %d", c.args, got.code)
		}
		filetest.Holds(t)
	}
}

func TestRunInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	got := run(ctx, Options{TokenStdin: true, Stdin: &held{reached: stop}})
	if got.code != cli.ExitInterrupted || !strings.Contains(got.stderr, "nothing has been changed") ||
		got.stdout != "" {
		t.Errorf("%+v", got)
	}
	filetest.Holds(t)
}

func TestRunCheckToken(t *testing.T) {
	for name, c := range map[string]struct {
		problem string
		reached bool
		code    int
		stderr  string
	}{
		"an accepted token is written": {"", true, cli.ExitOK, ""},
		"a rejected token is an error": {"service rejected the token", true, cli.ExitUsage,
			"cmwa: service rejected the token: nothing has been changed\n"},
		"a token that cannot be checked is written with a note": {"cannot connect", false, cli.ExitOK,
			"cmwa: the token is not checked: cannot connect\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			checked := ""
			o := Options{TokenStdin: true, Stdin: strings.NewReader(canary)}
			o.CheckToken = func(_ context.Context, config *schema.Config, pool string) (string, bool) {
				checked = pool + " " + config.Pools[0].Token.Reveal()
				return c.problem, c.reached
			}
			got := run(t.Context(), o)
			if got.code != c.code || got.stderr != c.stderr || (got.stdout != "") != (got.code == cli.ExitOK) {
				t.Errorf("%+v", got)
			}
			if checked != "default "+canary {
				t.Error("another token or pool is checked")
			}
		})
	}
}

// held is a pipe that stays open and empty.
type held struct{ reached func() }

func (h *held) Read([]byte) (int, error) {
	h.reached()
	select {}
}

func TestRunUnusedToken(t *testing.T) {
	const warning = "each pool of x.yaml has its own credentials"
	t.Chdir(t.TempDir())
	filetest.Put(t, "token", "pul-0", 0o600)
	for name, args := range map[string][]string{
		"a token":         {"--token-stdin"},
		"a token file":    {"--token-file", "token"},
		"an exchange":     {"--oidc-token-file", "jwt", "--organization", "acme", "--pool-id", "q"},
		"only the target": {"--target", "docker"},
	} {
		filetest.Put(t, "x.yaml", filetest.OwnTokens, 0o600)
		want := 1
		if name == "only the target" {
			want = 0
		}
		got := mustConfigure(t, canary, append(args, "--config", "x.yaml", "--yes")...)
		if strings.Count(got.stderr, warning) != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	filetest.Put(t, "x.yaml", filetest.OwnTokens+"- name: c\n", 0o600)
	if got := mustConfigure(t, canary, "--token-stdin", "--config", "x.yaml", "--yes"); got.stderr != "" {
		t.Errorf("with a pool that inherits the credentials: %+v", got)
	}
}

func TestRunInvalidToken(t *testing.T) {
	for _, token := range []string{
		"", " \n", canary + " " + canary, canary + "\n" + canary, canary + "é", canary + "\x00", canary + "\xff",
		strings.Repeat("\n", 1<<20) + canary,
	} {
		t.Chdir(t.TempDir())
		got := configure(t, token, nil, "--token-stdin")
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, "the token on standard input must") {
			t.Errorf("%+v", got)
		}
		filetest.Holds(t)
	}
}

func TestRunExistingFile(t *testing.T) {
	t.Chdir(t.TempDir())
	filetest.Put(t, "x.yaml", filetest.Existing, 0o600)
	got := configure(t, canary, nil, "--config", "x.yaml", "--token-stdin")
	if got.code != cli.ExitUsage || !strings.Contains(got.stderr, "x.yaml exists: to change it, add --yes") ||
		filetest.Content(t, "x.yaml") != filetest.Existing {
		t.Errorf("%+v", got)
	}
	got = mustConfigure(t, canary, "--config", "x.yaml", "--token-stdin", "--target", "process", "--yes")
	if filetest.Content(t, "x.yaml.bak") != filetest.Existing || filetest.Mode(t, "x.yaml.bak") != 0o600 ||
		!strings.Contains(got.stdout, "wrote x.yaml; the file with .bak after its name has the previous content") {
		t.Errorf("%+v; x.yaml.bak contains %q", got, filetest.Content(t, "x.yaml.bak"))
	}
	text := filetest.Content(t, "x.yaml")
	kept, added, _ := strings.Cut(text, "# end")
	want := strings.ReplaceAll(strings.TrimSuffix(filetest.Existing, "# end"), "  'pul-old'  ", canary+" ")
	if kept != want {
		t.Errorf("the old part of the file is %q, want %q", kept, want)
	}
	if strings.Count(added, "\n") != strings.Count(added, "\r\n") ||
		!strings.HasSuffix(added, "\r\ndeploy_target: process\r\n") || strings.Contains(added, "service_url") {
		t.Errorf("the new part of the file is %q", added)
	}

	got = mustConfigure(t, canary, "--config", "x.yaml", "--token-stdin", "--target", "process", "--yes")
	if filetest.Content(t, "x.yaml") != text || !strings.Contains(got.stdout, "x.yaml is unchanged") {
		t.Errorf("the same command again: %+v\n%q", got, filetest.Content(t, "x.yaml"))
	}
	mustConfigure(t, "", "--config", "x.yaml", "--service-url", "http://localhost:9000", "--yes")
	c, problems := schema.Load(schema.Source{Content: []byte(filetest.Content(t, "x.yaml"))})
	if c == nil {
		t.Fatal(problems)
	}
	if p := c.Pools[0]; p.ServiceURL != "http://localhost:9000" || p.Token.Reveal() != canary {
		t.Errorf("with only --service-url: want the new URL and the old token, got %+v", p)
	}
	filetest.Holds(t, "x.yaml", "x.yaml.bak")
}

func TestRunCredentials(t *testing.T) {
	t.Chdir(t.TempDir())
	filetest.Put(t, "token", "pul-0", 0o600)
	filetest.Put(t, "x.yaml", "token: "+canary+" # mine\n", 0o600)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--config", "x.yaml", "--yes"}

	mustConfigure(t, "", append(args, "--oidc-token-file", "jwt", "--organization", "acme", "--pool-id", "p1")...)
	if p := filetest.Settings(t, "x.yaml"); p.OIDCTokenFile != filepath.Join(here, "jwt") ||
		p.OrganizationName != "acme" || p.RunnerPoolID != "p1" {
		t.Errorf("%+v", p)
	}
	if text := filetest.Content(t, "x.yaml"); strings.Contains(text, canary) ||
		!strings.HasPrefix(text, "token: \"\" # mine\n") {
		t.Errorf("the token is still in\n%s", text)
	}

	mustConfigure(t, "", append(args, "--pool-id", "p2")...)
	if p := filetest.Settings(t, "x.yaml"); p.RunnerPoolID != "p2" || p.OrganizationName != "acme" {
		t.Errorf("%+v", p)
	}

	mustConfigure(t, "", append(args, "--token-file", "token")...)
	if p := filetest.Settings(t, "x.yaml"); p.OIDCTokenFile != "" || p.Token.Reveal() != "pul-0" ||
		p.TokenFile != filepath.Join(here, "token") {
		t.Errorf("%+v", p)
	}

	mustConfigure(t, canary, append(args, "--token-file", "token", "--token-stdin")...)
	if p := filetest.Settings(t, "x.yaml"); p.Token.Reveal() != canary || filetest.Content(t, "token") != canary+"\n" {
		t.Errorf("%+v", p)
	}

	mustConfigure(t, "pul-1", append(args, "--token-stdin")...)
	if p := filetest.Settings(t, "x.yaml"); p.Token.Reveal() != "pul-1" || filetest.Content(t, "token") != "pul-1\n" {
		t.Errorf("the token did not go to the file that token_file names: %+v", p)
	}

	got := configure(t, canary, nil, append(args, "--token-stdin", "--token-file", "x.yaml")...)
	if got.code != cli.ExitUsage || !strings.Contains(got.stderr, "configuration itself") {
		t.Errorf("%+v", got)
	}
	filetest.Holds(t, "token", "token.bak", "x.yaml", "x.yaml.bak")
}

// TestRunRelativeTokenFile replaces the token of a configuration that names a relative token
// file. The file is next to the configuration, also if there is one in the working directory.
func TestRunRelativeTokenFile(t *testing.T) {
	for name, c := range map[string]struct {
		directory string // of the configuration
		token     string // in the token file; empty if the file is missing
	}{
		"relative path of the configuration": {"conf", "pul-0"},
		"absolute path of the configuration": {t.TempDir(), "pul-0"},
		"missing token file":                 {t.TempDir(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.MkdirAll(c.directory, 0o700); err != nil {
				t.Fatal(err)
			}
			config, file := filepath.Join(c.directory, "x.yaml"), filepath.Join(c.directory, "x.token")
			filetest.Put(t, config, "token_file: x.token\n", 0o600)
			if c.token != "" {
				filetest.Put(t, file, c.token, 0o600)
			}
			filetest.Put(t, "x.token", "pul-1", 0o600)
			checked := ""
			o := Options{Config: config, TokenStdin: true, Yes: true, Stdin: strings.NewReader(canary)}
			o.CheckToken = func(_ context.Context, config *schema.Config, _ string) (string, bool) {
				checked = config.Pools[0].Token.Reveal()
				return "", true
			}
			if got := run(t.Context(), o); got.code != cli.ExitOK {
				t.Fatalf("%+v", got)
			}
			if checked != canary {
				t.Errorf("the token %q is checked, want the new one", checked)
			}
			for path, want := range map[string]string{
				file: canary + "\n", config: "token_file: x.token\n", "x.token": "pul-1",
			} {
				if got := filetest.Content(t, path); got != want {
					t.Errorf("%s contains %q, want %q", path, got, want)
				}
			}
		})
	}
}

func TestRunInvalidResult(t *testing.T) {
	for before, want := range map[string]string{
		"log_level: loud\n":         "x.yaml:1:12: log_level: must be one of",
		"a: [\n" + canary:           "x.yaml:",
		"token: [" + canary + "]\n": "x.yaml:1:8: token: is a list or a mapping",
		"token: a\ntoken: b\n":      "x.yaml:2:1: token: duplicate key",
		"\xff":                      "x.yaml:1:1: the file is not UTF-8",
		"a: b\n---\nc: d\n":         "one document",
		"pools: 5\n":                "x.yaml:1:8: pools: must be",
		strings.Repeat("#", 2<<20):  "larger than",
	} {
		t.Chdir(t.TempDir())
		filetest.Put(t, "x.yaml", before, 0o640)
		got := configure(t, canary, nil, "--config", "x.yaml", "--token-stdin", "--yes")
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) ||
			!strings.Contains(got.stderr, "nothing has been changed") || got.stdout != "" {
			t.Errorf("%.40q: %+v", before, got)
		}
		if filetest.Content(t, "x.yaml") != before || filetest.Mode(t, "x.yaml") != 0o640 {
			t.Errorf("the content or the mode of the file with %.40q was changed", before)
		}
		filetest.Holds(t, "x.yaml")
	}
}

func TestRunNotEditable(t *testing.T) {
	for before, want := range map[string]string{
		`{"token": "` + canary + `"}`:     "x.yaml:1:1: a file in brackets",
		"token: |\n  " + canary + "\n":    "x.yaml:1:8: token: cannot be set without changing other parts",
		"a: &a " + canary + "\ntoken: *a": "x.yaml:2:8: token: cannot be set without changing other parts",
	} {
		t.Chdir(t.TempDir())
		filetest.Put(t, "x.yaml", before, 0o600)
		got := configure(t, canary, nil, "--config", "x.yaml", "--token-stdin", "--target", "process", "--yes")
		const lines = "\ncmwa: or write these lines manually:\n  token: <not shown>\n  deploy_target: process\n"
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) || !strings.HasSuffix(got.stderr, lines) {
			t.Errorf("%q: %+v", before, got)
		}
		filetest.Holds(t, "x.yaml")
	}
}

func TestRunLinksOwnersAndModes(t *testing.T) {
	for _, c := range []struct {
		mode, want fs.FileMode
		warns      bool
	}{{0o600, 0o600, false}, {0o400, 0o400, false}, {0o644, 0o600, true}, {0o440, 0o400, true}, {0o777, 0o600, true}} {
		t.Chdir(t.TempDir())
		if err := os.MkdirAll("real/deep", 0o700); err != nil {
			t.Fatal(err)
		}
		filetest.Put(t, "real/x.yaml", "# old\n", c.mode)
		owner, group := os.Geteuid(), os.Getegid()
		if owner == 0 {
			owner, group = 12345, 54321
		}
		if err := os.Chown("real/x.yaml", owner, group); err != nil {
			t.Fatal(err)
		}
		for link, target := range map[string]string{"x.yaml": "real/deep/link", "real/deep/link": "../x.yaml"} {
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
		}
		got := mustConfigure(t, canary, "--config", "x.yaml", "--token-stdin", "--yes")
		if strings.Contains(got.stdout, "removed access for other users") != c.warns {
			t.Errorf("%v: %+v", c.mode, got)
		}
		if filetest.Mode(t, "x.yaml")&fs.ModeSymlink == 0 || filetest.Mode(t, "real/deep/link")&fs.ModeSymlink == 0 ||
			filetest.Mode(t, "real/x.yaml") != c.want || filetest.Mode(t, "real/x.yaml.bak") != c.want {
			t.Errorf("a link was replaced, or mode %v became %v, want %v", c.mode,
				filetest.Mode(t, "real/x.yaml"), c.want)
		}
		info, err := os.Stat("x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); int(stat.Uid) != owner || int(stat.Gid) != group {
			t.Errorf("the file belongs to %d:%d, want %d:%d", stat.Uid, stat.Gid, owner, group)
		}
		if !strings.HasPrefix(filetest.Content(t, "real/x.yaml"), "# old\n") ||
			!strings.Contains(filetest.Content(t, "x.yaml"), canary) {
			t.Errorf("%q", filetest.Content(t, "x.yaml"))
		}
	}
}

func TestRunUnusableLink(t *testing.T) {
	t.Chdir(t.TempDir())
	for link, target := range map[string]string{"x.yaml": "new.yaml", "loop.yaml": "loop.yaml"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	for link, want := range map[string]string{
		"x.yaml":    "is a symbolic link to a file that does not exist: create that file, or remove the link",
		"loop.yaml": "too many links",
	} {
		got := configure(t, canary, nil, "--config", link, "--token-stdin")
		if got.code != cli.ExitFailure || !strings.Contains(got.stderr, link+": ") ||
			!strings.Contains(got.stderr, want) {
			t.Errorf("%+v", got)
		}
	}
	filetest.Holds(t, "loop.yaml", "x.yaml")
}

func TestRunNotes(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("etc", 0o700); err != nil {
		t.Fatal(err)
	}
	environ := map[string]string{
		"PULUMI_AGENT_CONFIG": " etc/x y.yaml ", "PULUMI_AGENT_DEPLOY_TARGET": "ecs", "PULUMI_AGENT_TOKEN": canary,
		"PULUMI_AGENT_CA_FILE": "x",
	}
	got := configure(t, canary, environ, "--token-stdin")
	if got.code != cli.ExitOK || !strings.Contains(got.stdout, "cmwa vet 'etc/x y.yaml'") {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		"PULUMI_AGENT_DEPLOY_TARGET is set here, and overrides", "PULUMI_AGENT_TOKEN is set here",
	} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("%q is not in %s", want, got.stderr)
		}
	}
	if strings.Contains(got.stderr, "CA_FILE") {
		t.Errorf("stderr names PULUMI_AGENT_CA_FILE, although ca_file was not written: %s", got.stderr)
	}
}

func TestSessionWriteFailure(t *testing.T) {
	for _, was := range []string{"", "pul-0\n"} {
		t.Chdir(t.TempDir())
		names := []string{"token", "x.yaml"}
		if was != "" {
			filetest.Put(t, "token", was, 0o600)
			names = []string{"token", "token.bak", "x.yaml"}
		}
		config, err := open("x.yaml", "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		token, err := open("token", "token")
		if err != nil {
			t.Fatal(err)
		}
		filetest.Put(t, "x.yaml", "# of another\n", 0o600)
		var stdout, stderr bytes.Buffer
		s := &session{o: Options{Stdout: &stdout, Stderr: &stderr}, config: config, tokenFile: &token, token: canary}
		const want = "write x.yaml: another program has changed the file since this command read it: " +
			"run the command again: it has not been changed, but token has the new token"
		if err := s.write([]byte("token_file: token\n")); err == nil || err.Error() != want || stdout.Len() > 0 {
			t.Errorf("%v %s", err, &stdout)
		}
		if filetest.Content(t, "x.yaml") != "# of another\n" || filetest.Content(t, "token") != canary+"\n" ||
			was != "" && filetest.Content(t, "token.bak") != was {
			t.Error("the configuration was changed, or the token or its previous value was lost")
		}
		filetest.Holds(t, names...)
	}
}

// TestNext checks that the commands for a file of the systemd unit are those of the README.
func TestNext(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range next(file{path: schema.FileName, resolved: "/etc/cmwa/" + schema.FileName})[2:] {
		if !strings.Contains(string(readme), "\n"+strings.TrimSpace(line)+"\n") {
			t.Errorf("the README does not have %q", line)
		}
	}
}
