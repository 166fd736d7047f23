package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/moby/moby/api/types/registry"
)

const maxHelper = 1 << 20 // bytes of the output of a credential helper

// runHelper gets the login for a registry from a credential helper. The protocol is that
// of docker-credential-helpers: the helper reads the server from standard input, and writes
// JSON to standard output. If it has no login, it writes a fixed text and exits with an error;
// runHelper then returns an empty result. No error contains the output of the helper, because
// it may contain the secret.
func runHelper(ctx context.Context, name, server string) (registry.AuthConfig, error) {
	var none registry.AuthConfig
	program := "docker-credential-" + name
	if strings.ContainsAny(name, `/\`) {
		return none, errors.New("the Docker configuration names a credential helper by a path, which is not allowed")
	}

	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	var answer bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.Stdout = &limitedWriter{w: &answer, remaining: maxHelper}
	cmd.WaitDelay = helperGrace
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return none, fmt.Errorf("%s did not respond within %v", program, helperLimit)
	case errors.Is(err, exec.ErrNotFound):
		return none, fmt.Errorf(
			"the Docker configuration names the credential helper %s, which is not on PATH", program)
	case err != nil && strings.Contains(answer.String(), "credentials not found"):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("get the login at %s from %s: %w", server, program, err)
	}

	var got struct{ Username, Secret string }
	if json.Unmarshal(answer.Bytes(), &got) != nil {
		return none, fmt.Errorf("the output of %s is not valid JSON", program)
	}
	if got.Username == "<token>" {
		return registry.AuthConfig{IdentityToken: got.Secret, ServerAddress: server}, nil
	}
	return registry.AuthConfig{Username: got.Username, Password: got.Secret, ServerAddress: server}, nil
}

// limitedWriter returns an error when it gets more bytes than remaining.
type limitedWriter struct {
	w         io.Writer
	remaining int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > l.remaining {
		return 0, errors.New("the output is too long")
	}
	l.remaining -= len(p)
	return l.w.Write(p)
}
