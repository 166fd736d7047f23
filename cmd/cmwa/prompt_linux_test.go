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
	"github.com/cmwa-project/cmwa/schema"
)

// personLimit is how long a program may take to its next word: far longer than it
// does, so that only a fault reaches it.
const personLimit = 30 * time.Second

// person sits at a terminal in which the real cmwa configure runs.
type person struct {
	t        *testing.T
	master   *os.File // the person's side
	terminal *os.File // the program's side
	before   unix.Termios
	cmd      *exec.Cmd
	chunks   chan string
	seen     string // everything on the screen
	read     int    // how much of it has been expected
}

// desk makes a new folder the current one, once the programs are built.
func desk(t *testing.T) {
	t.Helper()
	if _, err := programs(); err != nil {
		t.Fatal(err)
	}
	emptyFolder(t)
}

// sit starts cmwa configure at a new terminal, in the current folder.
func sit(t *testing.T, args ...string) *person {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, chunks: make(chan string)}
	if p.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(p.master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(p.master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if p.terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(p.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200}); err != nil {
		t.Fatal(err)
	}
	p.before = p.state()
	p.cmd = exec.Command(filepath.Join(bin, "cmwa"), append([]string{"configure"}, args...)...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.terminal, p.terminal, p.terminal
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		p.t.Fatal(err)
	}
	return *state
}

// expect waits until a text is on the screen, behind the one expected before.
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
			p.t.Fatalf("%q does not come to the screen:\n%s", text, p.seen)
		}
	}
}

// answer waits for a question and answers it.
func (p *person) answer(question, text string) {
	p.t.Helper()
	p.expect(question)
	p.expect(": ")
	p.press(text + "\r")
}

func (p *person) press(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for the end of the program, and returns its exit code. The terminal
// must be as it was, and no token on the screen.
func (p *person) end() int {
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
		p.t.Error("the terminal is not as it was")
	}
	_ = p.terminal.Close()
	for chunk := range p.chunks {
		p.seen += chunk
	}
	if strings.Contains(p.seen, canary[4:12]) {
		p.t.Errorf("the screen shows the token:\n%s", p.seen)
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestAPersonIsAskedThreeThings(t *testing.T) {
	desk(t)
	p := sit(t)
	p.answer("(token or oidc) [token]", "")
	p.answer("Pool access token", canary)
	p.answer("(config or file) [config]", "")
	p.answer("URL of the service [https://api.pulumi.com]", "")
	p.answer("Where jobs run (docker, kubernetes, process) [docker]", "process")
	p.expect("wrote " + schema.FileName)
	p.expect("cmwa vet " + schema.FileName)
	if code := p.end(); code != cli.ExitOK {
		t.Fatalf("exit code %d", code)
	}
	if s := settings(t, schema.FileName); s.Token.Reveal() != canary || s.ServiceURL != "https://api.pulumi.com" || s.DeployTarget != "process" {
		t.Errorf("%+v", s)
	}
	if mode(t, schema.FileName) != 0o600 {
		t.Error("others may read the file")
	}
	holds(t, schema.FileName)
}

func TestAWrongAnswerIsAskedAgainWithItsCure(t *testing.T) {
	desk(t)
	p := sit(t, "--config", "x.yaml")
	p.answer("(token or oidc)", "password")
	p.expect("must be one of: token, oidc")
	p.answer("(token or oidc)", "token")
	p.answer("Pool access token", "")
	p.expect("must not be empty")
	p.answer("Pool access token", canary+" "+canary)
	p.expect("must be one word of printable ASCII")
	p.answer("Pool access token", canary)
	p.answer("(config or file)", "file")
	p.answer("URL of the service", "pulumi.example.com")
	p.expect("must be a URL such as https://api.pulumi.com")
	p.answer("URL of the service", "https://pulumi.example.com")
	p.answer("Where jobs run", "dokcer")
	p.expect("must be one of")
	p.answer("Where jobs run", "docker")
	p.expect("wrote ")
	if code := p.end(); code != cli.ExitOK {
		t.Fatalf("exit code %d", code)
	}
	if s := settings(t, "x.yaml"); s.Token.Reveal() != canary || s.ServiceURL != "https://pulumi.example.com" || filepath.Base(s.TokenFile) != "x.token" {
		t.Errorf("%+v", s)
	}
	if mode(t, "x.token") != 0o600 || content(t, "x.token") != canary+"\n" {
		t.Error("the token is not in its file, or others may read it")
	}
	holds(t, "x.token", "x.yaml")
}

func TestAPersonWhoCannotAnswerIsNotAskedForEver(t *testing.T) {
	desk(t)
	p := sit(t, "--token-stdin=false", "--target", "docker")
	for range 3 {
		p.answer("(token or oidc)", "what?")
	}
	p.expect("nothing has been changed")
	if code := p.end(); code != cli.ExitUsage {
		t.Errorf("exit code %d", code)
	}
	holds(t)
}

func TestBreakingOffLeavesEverythingAsItWas(t *testing.T) {
	for name, leave := range map[string]func(p *person) error{
		"Ctrl-C":         func(p *person) error { p.press("\x03"); return nil },
		"Ctrl-D":         func(p *person) error { p.press("\x04"); return nil },
		"TERM":           func(p *person) error { return p.cmd.Process.Signal(syscall.SIGTERM) },
		"INT":            func(p *person) error { return p.cmd.Process.Signal(syscall.SIGINT) },
		"half an answer": func(p *person) error { p.press(canary + "\x03"); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			desk(t)
			put(t, "x.yaml", existing, 0o640)
			p := sit(t, "--config", "x.yaml")
			p.answer("x.yaml is there already. Change it, and keep its comments and other keys? [no]", "yes")
			p.answer("(token or oidc) [token]", "token")
			p.expect("Pool access token, which is not shown [as it is]: ")
			if err := leave(p); err != nil {
				t.Fatal(err)
			}
			p.expect("nothing has been changed")
			if code := p.end(); code != cli.ExitFailure {
				t.Errorf("exit code %d", code)
			}
			if content(t, "x.yaml") != existing || mode(t, "x.yaml") != 0o640 {
				t.Error("the file was touched")
			}
			holds(t, "x.yaml")
		})
	}
}

func TestAFileThatIsThereIsLeftAloneWithoutAYes(t *testing.T) {
	for _, answer := range []string{"", "no", "n"} {
		desk(t)
		put(t, "x.yaml", existing, 0o640)
		p := sit(t, "--config", "x.yaml")
		p.answer("Change it", answer)
		p.expect("nothing has been changed")
		if code := p.end(); code != cli.ExitFailure || content(t, "x.yaml") != existing {
			t.Errorf("exit code %d, %q", code, content(t, "x.yaml"))
		}
	}
}

func TestAnEmptyAnswerKeepsWhatTheFileSays(t *testing.T) {
	desk(t)
	before := strings.ReplaceAll(existing, "pul-old", canary)
	put(t, "x.yaml", before, 0o600)
	p := sit(t, "--config", "x.yaml")
	p.answer("Change it", "y")
	for range 4 { // way, token, URL, target
		p.answer("]", "")
	}
	p.expect("left x.yaml as it is")
	if code := p.end(); code != cli.ExitOK || content(t, "x.yaml") != before {
		t.Errorf("exit code %d, %q", code, content(t, "x.yaml"))
	}

	p = sit(t, "--config", "x.yaml", "--yes")
	p.answer("(token or oidc) [token]", "oidc")
	p.answer("File that holds the OIDC token", "pul-x")
	p.expect("looks like a token")
	p.answer("File that holds the OIDC token", "jwt")
	p.answer("Organisation", "acme")
	p.answer("ID of the pool", "p1")
	p.answer("URL of the service", "")
	p.answer("Where jobs run", "")
	p.expect("wrote x.yaml")
	if code := p.end(); code != cli.ExitOK {
		t.Fatalf("exit code %d", code)
	}
	want := strings.ReplaceAll(existing, "'pul-old'", `""`)
	if !strings.HasPrefix(content(t, "x.yaml"), want) || !strings.Contains(content(t, "x.yaml"), "runner_pool_id: p1\r\n") {
		t.Errorf("%q", content(t, "x.yaml"))
	}
}

func TestATokenTypedAheadIsNotShown(t *testing.T) {
	desk(t)
	p := sit(t, "--config", "x.yaml")
	p.expect("(token or oidc) [token]: ")
	p.press("token\r" + canary + "\rconfig\rhttp://localhost:9\rdocker\r")
	p.expect("wrote x.yaml")
	if code := p.end(); code != cli.ExitOK || settings(t, "x.yaml").Token.Reveal() != canary {
		t.Errorf("exit code %d", code)
	}
}

func TestATokenForStandardInputIsNotShownAtATerminal(t *testing.T) {
	for name, keys := range map[string]string{"Enter": canary + "\r", "Enter and Ctrl-D": canary + "\r\x04", "blanks": " " + canary + " \r"} {
		t.Run(name, func(t *testing.T) {
			desk(t)
			p := sit(t, "--token-stdin")
			p.expect("Pool access token, which is not shown: ")
			p.press(keys)
			p.expect("wrote " + schema.FileName)
			if code := p.end(); code != cli.ExitOK || settings(t, schema.FileName).Token.Reveal() != canary {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

func TestATokenForStandardInputCanBeBrokenOff(t *testing.T) {
	for name, leave := range map[string]func(p *person) error{
		"Ctrl-C":         func(p *person) error { p.press("\x03"); return nil },
		"TERM":           func(p *person) error { return p.cmd.Process.Signal(syscall.SIGTERM) },
		"half an answer": func(p *person) error { p.press(canary + "\x03"); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			desk(t)
			p := sit(t, "--token-stdin")
			p.expect("Pool access token, which is not shown: ")
			if err := leave(p); err != nil {
				t.Fatal(err)
			}
			p.expect("nothing has been changed")
			if code := p.end(); code != cli.ExitFailure {
				t.Errorf("exit code %d", code)
			}
			holds(t)
		})
	}
}

func TestAPersonIsAskedBeforeATokenIsAddedThatNoPoolUses(t *testing.T) {
	const question = "every pool of x.yaml has credentials of its own, so that none would use those at the top level. Set these all the same? [no]"
	for _, answer := range []string{"", "no", "yes"} {
		desk(t)
		put(t, "x.yaml", ownTokens, 0o600)
		p := sit(t, "--config", "x.yaml")
		p.answer("Change it", "yes")
		p.answer(question, answer)
		if answer == "yes" {
			p.answer("(token or oidc) [token]", "token")
			p.answer("Pool access token", canary)
			p.answer("(config or file)", "config")
		}
		p.answer("URL of the service", "")
		p.answer("Where jobs run", "process")
		p.expect("wrote x.yaml")
		if code, text := p.end(), content(t, "x.yaml"); code != cli.ExitOK || strings.Contains(text, canary) != (answer == "yes") || !strings.Contains(text, "deploy_target: process") {
			t.Errorf("exit code %d, %q", code, text)
		}
	}
	desk(t)
	put(t, "x.yaml", ownTokens, 0o600)
	put(t, "token", "pul-0", 0o600)
	p := sit(t, "--config", "x.yaml", "--token-file", "token")
	p.answer("Change it", "yes")
	p.answer(question, "no")
	p.expect("nothing has been changed")
	if code := p.end(); code != cli.ExitFailure || content(t, "x.yaml") != ownTokens {
		t.Errorf("exit code %d, %q", code, content(t, "x.yaml"))
	}
}
