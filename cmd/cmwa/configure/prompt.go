package configure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// errNoAnswer is how a session ends that a person or a signal interrupted.
var errNoAnswer = errors.New("there was no answer: nothing has been changed")

// attempts is how often a question is asked.
const attempts = 3

// prompt asks questions at a terminal. From the first question until close, the
// terminal is raw, so that it does not show what is typed ahead, which may be a
// token.
type prompt struct {
	in       *os.File
	terminal *term.Terminal
	before   *term.State // state to restore; nil if it was not changed
}

// newPrompt returns a prompt, or nil if one of the two streams is not a terminal.
// Questions return an error when ctx ends.
func newPrompt(ctx context.Context, in io.Reader, out io.Writer) *prompt {
	if _, ok := terminal(out); !ok {
		return nil
	}
	return newTokenPrompt(ctx, in, out)
}

// newTokenPrompt returns a prompt, or nil if in is not a terminal. If out is not a
// terminal, the prompt prints nothing.
func newTokenPrompt(ctx context.Context, in io.Reader, out io.Writer) *prompt {
	stdin, ok := terminal(in)
	if !ok {
		return nil
	}
	screen, ok := terminal(out)
	if !ok {
		return &prompt{in: stdin, terminal: term.NewTerminal(keyboard{ctx, stdin, io.Discard}, "")}
	}
	p := &prompt{in: stdin, terminal: term.NewTerminal(keyboard{ctx, stdin, out}, "")}
	if width, height, err := term.GetSize(int(screen.Fd())); err == nil && width > 0 && height > 0 {
		_ = p.terminal.SetSize(width, height) // without it, lines wrap after 80 columns
	}
	return p
}

// terminal returns the file of a stream, if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// close restores the terminal. It may be called several times, and on nil.
func (p *prompt) close() {
	if p != nil && p.before != nil {
		_ = term.Restore(int(p.in.Fd()), p.before) // an error means that the terminal is closed
		p.before = nil
	}
}

// question is one line of a prompt.
type question struct {
	text   string
	shown  string // in brackets after the text
	empty  string // the meaning of an empty answer
	hidden bool
	check  func(answer string) error // its error describes the answers that are valid
}

// confirm asks a question and reports whether the answer is yes. An empty answer
// is no.
func (p *prompt) confirm(text string) (bool, error) {
	answer, err := p.choose(text, "no", "yes", "no", "y", "n")
	return err == nil && answer[0] == 'y', err
}

// choose asks for one of some words.
func (p *prompt) choose(text, empty string, words ...string) (string, error) {
	return p.ask(question{text: text, shown: empty, empty: empty, check: oneOf(words...)})
}

// ask returns the first answer that passes the question's check, without space
// around it.
func (p *prompt) ask(q question) (string, error) {
	if p.before == nil {
		state, err := term.MakeRaw(int(p.in.Fd()))
		if err != nil {
			return "", fmt.Errorf("prepare the terminal: %w", err)
		}
		p.before = state
	}
	text := q.text
	if q.shown != "" {
		text += " [" + q.shown + "]"
	}
	for range attempts {
		answer, err := p.line(text+": ", q.hidden)
		if err != nil {
			return "", errNoAnswer
		}
		if answer = strings.TrimSpace(answer); answer == "" {
			answer = q.empty
		}
		if err = q.check(answer); err == nil {
			return answer, nil
		}
		fmt.Fprintf(p.terminal, "  %v\n", err)
	}
	return "", cli.Usagef("no answer of %d could be used: nothing has been changed", attempts)
}

func (p *prompt) line(text string, hidden bool) (string, error) {
	read := p.terminal.ReadPassword
	if !hidden {
		read = func(text string) (string, error) {
			p.terminal.SetPrompt(text)
			return p.terminal.ReadLine()
		}
	}
	answer, err := read(text)
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	return answer, err
}

// keyboard is a terminal whose reads return io.EOF when ctx ends.
type keyboard struct {
	ctx context.Context
	in  *os.File
	out io.Writer
}

// contextInterval is the interval in milliseconds at which a read checks ctx.
const contextInterval = 50

func (k keyboard) Read(b []byte) (int, error) {
	for {
		if k.ctx.Err() != nil || len(b) == 0 {
			return 0, io.EOF
		}
		ready := []unix.PollFd{{Fd: int32(k.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, contextInterval)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n > 0:
			return k.in.Read(b)
		}
	}
}

func (k keyboard) Write(b []byte) (int, error) { return k.out.Write(b) }
