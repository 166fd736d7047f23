package main

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

// errNoAnswer is how a dialogue ends that a person, or a signal, broke off.
var errNoAnswer = errors.New("there was no answer: nothing has been changed")

// attempts is how often a question is asked before its asker gives up.
const attempts = 3

// prompt asks a person at a terminal. From the first question until close, the
// terminal is raw, so that nothing typed ahead shows: an answer may be a token.
type prompt struct {
	in       *os.File
	terminal *term.Terminal
	before   *term.State // nil while the terminal is as it was found
}

// newPrompt returns nil if there is no person to ask: if one of the two streams
// is not a terminal. The questions end with ctx.
func newPrompt(ctx context.Context, in io.Reader, out io.Writer) *prompt {
	if !isTerminal(out) {
		return nil
	}
	return newKeyboard(ctx, in, out)
}

// newKeyboard returns nil if nobody types what comes from in. Somebody who does not
// see out, because it is no terminal, is asked in silence.
func newKeyboard(ctx context.Context, in io.Reader, out io.Writer) *prompt {
	if !isTerminal(in) {
		return nil
	}
	stdin := in.(*os.File)
	if !isTerminal(out) {
		return &prompt{in: stdin, terminal: term.NewTerminal(dialogue{ctx, stdin, io.Discard}, "")}
	}
	p := &prompt{in: stdin, terminal: term.NewTerminal(dialogue{ctx, stdin, out}, "")}
	if width, height, err := term.GetSize(int(out.(*os.File).Fd())); err == nil && width > 0 && height > 0 {
		_ = p.terminal.SetSize(width, height) // a terminal that is drawn for 80 columns works too
	}
	return p
}

// close gives the terminal back as it was found. It may be called at any time,
// also of no prompt.
func (p *prompt) close() {
	if p != nil && p.before != nil {
		_ = term.Restore(int(p.in.Fd()), p.before) // the terminal is gone
		p.before = nil
	}
}

// question is one thing that a person is asked.
type question struct {
	text   string
	shown  string // in brackets behind the text
	empty  string // what an empty answer means
	hidden bool
	check  func(answer string) error // says what to answer instead
}

// ask returns the first answer that passes the question's check, without the
// blanks around it.
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

// dialogue is the two sides of a terminal. A read ends with ctx.
type dialogue struct {
	ctx context.Context
	in  *os.File
	out io.Writer
}

// lookForSignal is how long, in milliseconds, a read may not notice that ctx has
// ended.
const lookForSignal = 50

func (d dialogue) Read(b []byte) (int, error) {
	for {
		if d.ctx.Err() != nil || len(b) == 0 {
			return 0, io.EOF
		}
		ready := []unix.PollFd{{Fd: int32(d.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, lookForSignal)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n > 0:
			return d.in.Read(b)
		}
	}
}

func (d dialogue) Write(b []byte) (int, error) { return d.out.Write(b) }
