package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/moby/client"
)

const (
	deliverLimit = time.Minute            // for the runner to read its handover
	receiptLimit = 100 * time.Millisecond // for the engine to close the connection afterwards
)

// attach opens a connection to the runner's standard input.
func (e *Executor) attach(ctx context.Context, id string) (*client.HijackedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	attached, err := e.engine.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return nil, refused("attach to the container", e.host, because(ctx, err))
	}
	return &attached.HijackedResponse, nil
}

// deliver writes the handover and ends the input. An engine closes the
// connection when it has passed everything on, which is waited for, but not for
// long: Docker 20.10 forgets to in one case of some fifty, and what was written
// arrives all the same. The end of ctx ends the delivery.
func deliver(ctx context.Context, input *client.HijackedResponse, handover []byte) error {
	if err := input.Conn.SetDeadline(time.Now().Add(deliverLimit)); err != nil {
		return err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = input.Conn.SetDeadline(time.Now())
	})
	_, err := input.Conn.Write(handover)
	if err == nil {
		err = input.CloseWrite()
	}
	if !stop() {
		<-interrupted
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if err := input.Conn.SetReadDeadline(time.Now().Add(receiptLimit)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, input.Reader); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// undelivered explains a handover that did not reach the runner: most often the
// runner has ended before it read it, and its last words say why.
func (e *Executor) undelivered(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if message := e.lastWords(ctx, id); message != "" {
		return refused("hand the job over to the runner", e.host, errors.New(message))
	}
	return fmt.Errorf("hand the job over to the runner: %w", err)
}
