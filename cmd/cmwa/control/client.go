package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// waitInterval is the time between two requests of [Wait].
const waitInterval = 200 * time.Millisecond

// errNoAgent means that no agent serves the socket of a directory.
var errNoAgent = errors.New("no agent runs with this state directory")

// Call sends a request to the agent with a directory, and returns the response. If the agent
// refuses the request, Call returns the agent's reason as an error.
func Call(ctx context.Context, directory string, request Request) (Response, error) {
	limit := connectionLimit
	if request.Command == Plan {
		limit = planLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit+time.Second)
	defer cancel()
	response, err := exchange(ctx, directory, request)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return Response{}, errNoAgent
	case errors.Is(err, fs.ErrPermission):
		return Response{}, fmt.Errorf("%s: %w: run this as the agent's user or as root",
			filepath.Join(directory, socketName), cause(err))
	case err != nil && ctx.Err() != nil:
		return Response{}, fmt.Errorf("the agent does not respond: %w", context.Cause(ctx))
	case err != nil:
		return Response{}, fmt.Errorf("call the agent: %w", err)
	case response.Error != "":
		return response, errors.New(printable.Text(response.Error))
	}
	return response, nil
}

// Ask is Call for the agent with a configuration, whose name is that of its file for people. If no
// such agent runs, the error has what to do.
func Ask(ctx context.Context, directory, name string, request Request) (Response, error) {
	response, err := Call(ctx, directory, request)
	if errors.Is(err, errNoAgent) {
		err = fmt.Errorf("no agent runs with %s: name its file with --config, and run this on its machine, as "+
			"its user, with its variables (PULUMI_AGENT_STATE_DIRECTORY, STATE_DIRECTORY, XDG_STATE_HOME, HOME)", name)
	}
	return response, err
}

// exchange sends the request over a new connection, and returns the response.
func exchange(ctx context.Context, directory string, request Request) (Response, error) {
	at, release, err := address(directory)
	if err != nil {
		return Response{}, err
	}
	defer release()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, at.Net, at.Name)
	if err != nil {
		return Response{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()

	request.Version = Version
	text, err := json.Marshal(request)
	if err != nil {
		return Response{}, err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return Response{}, err
	}
	line, err := readLine(conn, maxResponse)
	if errors.Is(err, io.EOF) {
		err = errors.New("it ended the connection without a response")
	}
	if err != nil {
		return Response{}, err
	}
	return DecodeResponse(line)
}

// Wait blocks until the agent that has sent a response has ended, or ctx ends.
func Wait(ctx context.Context, directory string, agent Response) error {
	for {
		response, err := Call(ctx, directory, Request{Command: Show})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNoAgent), err == nil && !response.Started.Equal(agent.Started):
			return nil
		}
		if !runtime.Sleep(ctx, nil, waitInterval) {
			return context.Cause(ctx)
		}
	}
}
