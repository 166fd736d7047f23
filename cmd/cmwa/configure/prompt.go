package configure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Errors that end a session without a change.
var (
	errInterrupted = errors.New("interrupted: nothing has been changed") // by Ctrl-C or a signal
	errNoAnswer    = errors.New("no answer: nothing has been changed")   // the input ended
)

// prompt reads answers at a terminal. From the first query until close, the terminal is
// raw, so that it does not show keys that are typed early, which may be a token.
type prompt struct {
	in       *os.File
	keyboard *keyboard
	terminal *term.Terminal
	before   *term.State // state to restore; nil if it was not changed
}

// newPrompt returns a prompt, or nil if one of the two streams is not a terminal. The
// methods of the prompt return an error when ctx ends.
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
		out = io.Discard
	}
	keys := &keyboard{ctx: ctx, in: stdin, out: out}
	p := &prompt{in: stdin, keyboard: keys, terminal: term.NewTerminal(keys, "")}
	if !ok {
		return p
	}
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

type query struct {
	text         string
	defaultText  string // in brackets after the text
	defaultValue string // the meaning of an empty answer
	hidden       bool
	check        func(answer string) error // its error describes the answers that are valid
}

// confirm prompts for yes or no, and reports whether the answer is yes. An empty answer
// is no.
func (p *prompt) confirm(text string) (bool, error) {
	answer, err := p.ask(query{text: text, defaultText: "y/N", defaultValue: "n", check: func(answer string) error {
		return oneOf("y", "n", "yes", "no")(strings.ToLower(answer))
	}})
	return err == nil && strings.ToLower(answer)[0] == 'y', err
}

func (p *prompt) choose(text, defaultValue string, choices ...string) (string, error) {
	return p.ask(query{text: text, defaultText: defaultValue, defaultValue: defaultValue, check: oneOf(choices...)})
}

// note prints an indented line between two prompts.
func (p *prompt) note(format string, args ...any) {
	fmt.Fprintf(p.terminal, "  "+format+"\n", args...)
}

// ask repeats the prompt until an answer passes the check of the query, and returns this
// answer without white space around it. After a hidden answer it prints the number of
// characters, so that users see that something was typed or pasted.
func (p *prompt) ask(q query) (string, error) {
	if p.before == nil {
		state, err := term.MakeRaw(int(p.in.Fd()))
		if err != nil {
			return "", fmt.Errorf("prepare the terminal: %w", err)
		}
		p.before = state
	}
	text := q.text
	if q.defaultText != "" {
		text += " [" + q.defaultText + "]"
	}
	for {
		answer, err := p.line(text+": ", q.hidden)
		if err != nil {
			_, _ = io.WriteString(p.keyboard, "\r\n") // the message follows on a new line
			if p.keyboard.interrupted {
				return "", errInterrupted
			}
			return "", errNoAnswer
		}
		if answer = strings.TrimSpace(answer); q.hidden && answer != "" {
			p.note("(%d characters)", utf8.RuneCountInString(answer))
		}
		if answer == "" {
			answer = q.defaultValue
		}
		if err = q.check(answer); err == nil {
			return answer, nil
		}
		p.note("%v", err)
	}
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
	ctx         context.Context
	in          *os.File
	out         io.Writer
	interrupted bool // ctx has ended, or Ctrl-C was typed
}

// contextInterval is the interval in milliseconds at which a read checks ctx.
const contextInterval = 50

func (k *keyboard) Read(b []byte) (int, error) {
	const ctrlC = 3
	for {
		if k.ctx.Err() != nil || len(b) == 0 {
			k.interrupted = k.interrupted || k.ctx.Err() != nil
			return 0, io.EOF
		}
		ready := []unix.PollFd{{Fd: int32(k.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, contextInterval)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n > 0:
			n, err := k.in.Read(b)
			k.interrupted = k.interrupted || bytes.IndexByte(b[:n], ctrlC) >= 0
			return n, err
		}
	}
}

func (k *keyboard) Write(b []byte) (int, error) { return k.out.Write(b) }
