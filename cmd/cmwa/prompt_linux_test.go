package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
	"github.com/cmwa-project/cmwa/schema"
)

// personLimit limits the time until a program prints an expected output or ends. Only a
// faulty program takes longer.
const personLimit = 30 * time.Second

// noService is an environment variable with a proxy that does not exist. With it, the check
// of a token at a service on another machine fails at once. Requests to services on this
// machine do not use the proxy.
const noService = "HTTPS_PROXY=http://127.0.0.1:1"

// person is a user at a pseudo-terminal in which the real cmwa configure runs.
type person struct {
	t        *testing.T
	master   *os.File // the person's side
	terminal *os.File // the program's side
	before   unix.Termios
	cmd      *exec.Cmd
	chunks   chan string
	seen     string // everything that the program has printed
	read     int    // length of the part of seen in which expect has found its texts
}

// desk builds the programs, and then makes a new directory the current one.
func desk(t *testing.T) {
	t.Helper()
	staticCmwa(t)
	t.Chdir(t.TempDir())
}

// openTerminal returns the two sides of a new pseudo-terminal: that of a person, and that of a program.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	noError(t, err)
	noError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	noError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	noError(t, err)
	return master, terminal
}

// sit starts cmwa configure at a new terminal, in the current directory.
func sit(t *testing.T, args ...string) *person {
	t.Helper()
	p := &person{t: t, chunks: make(chan string)}
	p.master, p.terminal = openTerminal(t)
	noError(t, unix.IoctlSetWinsize(int(p.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200}))
	p.before = p.state()
	p.cmd = exec.Command(staticCmwa(t), append([]string{"configure"}, args...)...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.terminal, p.terminal, p.terminal
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), noService}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	noError(t, p.cmd.Start())
	go func() {
		defer close(p.chunks)
		b := make([]byte, 4096)
		for {
			n, err := p.master.Read(b)
			if n > 0 {
				p.chunks <- string(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.terminal.Close()
		for range p.chunks { // until the reader has ended
		}
		_ = p.master.Close()
	})
	return p
}

func (p *person) state() unix.Termios {
	p.t.Helper()
	state, err := unix.IoctlGetTermios(int(p.terminal.Fd()), unix.TCGETS)
	noError(p.t, err)
	return *state
}

// expect waits until a text is on the screen, after the text of the previous call.
func (p *person) expect(text string) {
	p.t.Helper()
	limit := time.After(personLimit)
	for {
		if at := strings.Index(p.seen[p.read:], text); at >= 0 {
			p.read += at + len(text)
			return
		}
		select {
		case chunk, ok := <-p.chunks:
			if !ok {
				p.t.Fatalf("%q is not on the screen:\n%s", text, p.seen)
			}
			p.seen += chunk
		case <-limit:
			p.t.Fatalf("%q did not appear on the screen:\n%s", text, p.seen)
		}
	}
}

// answer waits for a prompt and answers it.
func (p *person) answer(prompt, text string) {
	p.t.Helper()
	p.expect(prompt)
	p.expect(": ")
	p.press(text + "\r")
}

func (p *person) press(keys string) {
	p.t.Helper()
	_, err := p.master.WriteString(keys)
	noError(p.t, err)
}

func (p *person) signal(s os.Signal) {
	p.t.Helper()
	noError(p.t, p.cmd.Process.Signal(s))
}

// end waits for the end of the program. It checks the exit code, that the mode of the terminal is
// restored, and that the screen does not show the token.
func (p *person) end(code int) {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	limit := time.After(personLimit)
	for running := true; running; {
		select {
		case chunk := <-p.chunks:
			p.seen += chunk
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				p.t.Fatal(err)
			}
			running = false
		case <-limit:
			p.t.Fatalf("configure does not end:\n%s", p.seen)
		}
	}
	if p.state() != p.before {
		p.t.Error("the mode of the terminal is not restored")
	}
	_ = p.terminal.Close()
	for chunk := range p.chunks {
		p.seen += chunk
	}
	if strings.Contains(p.seen, canary[4:12]) {
		p.t.Errorf("the screen shows the token:\n%s", p.seen)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
}

func TestConfigurePrompt(t *testing.T) {
	desk(t)
	p := sit(t)
	p.answer("URL of the service [https://api.pulumi.com]", "")
	p.answer("(token or oidc) [token]", "")
	p.answer("Pool access token", canary)
	p.expect(fmt.Sprintf("(%d characters)", len(canary)))
	p.answer("(config or file) [config]", "")
	p.answer("Where jobs run (docker, kubernetes, process) [docker]", "process")
	p.expect("wrote " + schema.FileName)
	p.expect("cmwa vet " + schema.FileName)
	p.end(cli.ExitOK)
	if s := filetest.Settings(t, schema.FileName); s.Token.Reveal() != canary ||
		s.ServiceURL != "https://api.pulumi.com" || s.DeployTarget != "process" {
		t.Errorf("%+v", s)
	}
	if filetest.Mode(t, schema.FileName) != 0o600 {
		t.Error("other users may read the file")
	}
	filetest.Holds(t, schema.FileName)
}

func TestConfigurePromptWrongAnswer(t *testing.T) {
	desk(t)
	p := sit(t, "--config", "x.yaml")
	p.answer("URL of the service", "pulumi.example.com")
	p.expect("must be a URL such as https://api.pulumi.com")
	p.answer("URL of the service", "https://pulumi.example.com")
	p.answer("(token or oidc)", "password")
	p.expect("must be one of: token, oidc")
	p.answer("(token or oidc)", "token")
	p.answer("Pool access token", "")
	p.expect("must not be empty")
	p.answer("Pool access token", canary+" "+canary)
	p.expect("must be printable ASCII characters")
	p.answer("Pool access token", "https://pulumi.example.com")
	p.expect("is not a pool access token, which begins with pul-")
	p.answer("Pool access token", canary)
	p.answer("(config or file)", "file")
	p.answer("Where jobs run", "dokcer")
	p.expect("must be one of")
	p.answer("Where jobs run", "docker")
	p.expect("wrote ")
	p.end(cli.ExitOK)
	if s := filetest.Settings(t, "x.yaml"); s.Token.Reveal() != canary ||
		s.ServiceURL != "https://pulumi.example.com" || filepath.Base(s.TokenFile) != "x.token" {
		t.Errorf("%+v", s)
	}
	if filetest.Mode(t, "x.token") != 0o600 {
		t.Error("other users may read the file of the token")
	}
	wantContent(t, "x.token", canary+"\n")
	filetest.Holds(t, "x.token", "x.yaml")
}

func TestConfigurePromptRepeats(t *testing.T) {
	desk(t)
	p := sit(t, "--token-stdin=false", "--target", "docker")
	p.answer("URL of the service", "")
	for range 5 {
		p.answer("(token or oidc)", "what?")
		p.expect("must be one of: token, oidc")
	}
	p.press("\x03")
	p.expect("nothing has been changed")
	p.end(cli.ExitInterrupted)
	filetest.Holds(t)
}

func TestConfigureChecksToken(t *testing.T) {
	w := newWorld(t, "process")
	t.Run("after a rejected token only the prompt for the token is repeated", func(t *testing.T) {
		desk(t)
		p := sit(t, "--config", "x.yaml")
		p.answer("URL of the service", w.url)
		p.answer("(token or oidc)", "token")
		p.answer("Pool access token", canary)
		p.answer("(config or file)", "file")
		p.answer("Where jobs run", "process")
		p.expect("rejects the token")
		p.answer("Pool access token (not shown)", w.pool)
		p.expect("wrote ")
		p.end(cli.ExitOK)
		wantContent(t, "x.token", w.pool+"\n")
	})
	t.Run("without a terminal a rejected token is an error", func(t *testing.T) {
		t.Chdir(t.TempDir())
		got := runConfigure(t, canary, "--token-stdin", "--service-url", w.url)
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, "nothing has been changed") {
			t.Errorf("%+v", got)
		}
		filetest.Holds(t)
	})
	t.Run("a service that does not respond causes only a note", func(t *testing.T) {
		t.Chdir(t.TempDir())
		got := runConfigure(t, canary, "--token-stdin", "--service-url", "http://127.0.0.1:1")
		if got.code != cli.ExitOK || !strings.Contains(got.stderr,
			"cmwa: the token is not checked: cannot connect to ") {
			t.Errorf("%+v", got)
		}
	})
}

// interruptions end a prompt with [cli.ExitInterrupted].
var interruptions = map[string]func(p *person){
	"Ctrl-C":         func(p *person) { p.press("\x03") },
	"half an answer": func(p *person) { p.press(canary + "\x03") },
	"INT":            func(p *person) { p.signal(syscall.SIGINT) },
	"TERM":           func(p *person) { p.signal(syscall.SIGTERM) },
}

func TestConfigurePromptInterrupted(t *testing.T) {
	story := func(leave func(p *person), code int) func(t *testing.T) {
		return func(t *testing.T) {
			desk(t)
			filetest.Put(t, "x.yaml", filetest.Existing, 0o640)
			p := sit(t, "--config", "x.yaml")
			p.answer("x.yaml exists. Change only the keys that prompts and flags set, "+
				"and keep all other keys? [y/N]", "yes")
			p.answer("URL of the service", "")
			p.answer("(token or oidc) [token]", "token")
			p.expect("Pool access token (not shown) [unchanged]")
			leave(p)
			p.expect(": \r\n") // the message has its own line
			p.expect("cmwa: ")
			p.expect("nothing has been changed\r\n")
			p.end(code)
			wantContent(t, "x.yaml", filetest.Existing)
			if filetest.Mode(t, "x.yaml") != 0o640 {
				t.Error("the mode of the file was changed")
			}
			filetest.Holds(t, "x.yaml")
		}
	}
	for name, leave := range interruptions {
		t.Run(name, story(leave, cli.ExitInterrupted))
	}
	t.Run("Ctrl-D", story(func(p *person) { p.press("\x04") }, cli.ExitFailure))
}

func TestConfigurePromptExistingFile(t *testing.T) {
	for _, answer := range []string{"", "no", "n"} {
		desk(t)
		filetest.Put(t, "x.yaml", filetest.Existing, 0o640)
		p := sit(t, "--config", "x.yaml")
		p.answer("Change only", answer)
		p.expect("nothing has been changed")
		p.end(cli.ExitFailure)
		wantContent(t, "x.yaml", filetest.Existing)
	}
}

func TestConfigurePromptEmptyAnswer(t *testing.T) {
	desk(t)
	before := strings.ReplaceAll(filetest.Existing, "pul-old", canary)
	filetest.Put(t, "x.yaml", before, 0o600)
	p := sit(t, "--config", "x.yaml")
	p.answer("Change only", "y")
	for range 4 { // URL, kind of credentials, token, target
		p.answer("]", "")
	}
	p.expect("x.yaml is unchanged")
	p.end(cli.ExitOK)
	wantContent(t, "x.yaml", before)

	p = sit(t, "--config", "x.yaml", "--yes")
	p.answer("URL of the service", "")
	p.answer("(token or oidc) [token]", "oidc")
	p.answer("File that holds the OIDC token", "pul-x")
	p.expect("looks like a token")
	p.answer("File that holds the OIDC token", "jwt")
	p.answer("Organization", "acme")
	p.answer("ID of the pool", "p1")
	p.answer("Where jobs run", "")
	p.expect("wrote x.yaml")
	p.end(cli.ExitOK)
	want := strings.ReplaceAll(filetest.Existing, "  'pul-old'  ", `"" `)
	if text := filetest.Content(t, "x.yaml"); !strings.HasPrefix(text, want) ||
		!strings.Contains(text, "runner_pool_id: p1\r\n") {
		t.Errorf("%q", text)
	}
}

func TestConfigurePromptTypedAhead(t *testing.T) {
	desk(t)
	p := sit(t, "--config", "x.yaml")
	p.expect("URL of the service [https://api.pulumi.com]: ")
	p.press("http://localhost:9\rtoken\r" + canary + "\rconfig\rprocess\r")
	p.expect("wrote x.yaml")
	p.end(cli.ExitOK)
	if filetest.Settings(t, "x.yaml").Token.Reveal() != canary {
		t.Error("the file has another token")
	}
}

func TestConfigureTokenStdin(t *testing.T) {
	for name, keys := range map[string]string{
		"Enter": canary + "\r", "Enter and Ctrl-D": canary + "\r\x04", "blanks": " " + canary + " \r",
	} {
		t.Run(name, func(t *testing.T) {
			desk(t)
			p := sit(t, "--token-stdin")
			p.expect("Pool access token (not shown): ")
			p.press(keys)
			p.expect("wrote " + schema.FileName)
			p.end(cli.ExitOK)
			if filetest.Settings(t, schema.FileName).Token.Reveal() != canary {
				t.Error("the file has another token")
			}
		})
	}
}

func TestConfigureTokenStdinInterrupted(t *testing.T) {
	for name, leave := range interruptions {
		t.Run(name, func(t *testing.T) {
			desk(t)
			p := sit(t, "--token-stdin")
			p.expect("Pool access token (not shown): ")
			leave(p)
			p.expect("nothing has been changed")
			p.end(cli.ExitInterrupted)
			filetest.Holds(t)
		})
	}
}

func TestConfigurePromptUnusedToken(t *testing.T) {
	const prompt = "each pool of x.yaml has its own credentials, " +
		"so no pool would use credentials at the top level. Set them anyway? [y/N]"
	for _, answer := range []string{"", "no", "yes"} {
		desk(t)
		filetest.Put(t, "x.yaml", filetest.OwnTokens, 0o600)
		p := sit(t, "--config", "x.yaml")
		p.answer("Change only", "yes")
		p.answer("URL of the service", "")
		p.answer(prompt, answer)
		if answer == "yes" {
			p.answer("(token or oidc) [token]", "token")
			p.answer("Pool access token", canary)
			p.answer("(config or file)", "config")
		}
		p.answer("Where jobs run", "process")
		p.expect("wrote x.yaml")
		p.end(cli.ExitOK)
		if text := filetest.Content(t, "x.yaml"); strings.Contains(text, canary) != (answer == "yes") ||
			!strings.Contains(text, "deploy_target: process") {
			t.Errorf("%q", text)
		}
	}
	desk(t)
	filetest.Put(t, "x.yaml", filetest.OwnTokens, 0o600)
	filetest.Put(t, "token", "pul-0", 0o600)
	p := sit(t, "--config", "x.yaml", "--token-file", "token")
	p.answer("Change only", "yes")
	p.answer("URL of the service", "")
	p.answer(prompt, "no")
	p.expect("nothing has been changed")
	p.end(cli.ExitFailure)
	wantContent(t, "x.yaml", filetest.OwnTokens)
}
