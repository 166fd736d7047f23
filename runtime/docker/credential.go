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
	"time"

	"github.com/moby/moby/api/types/registry"
)

const (
	helperLimit = 30 * time.Second // for a credential helper; some ask the network
	helperGrace = 2 * time.Second  // for its children to let go of its output
	maxHelper   = 1 << 20          // bytes of its answer
)

// askHelper asks a credential helper for the login at a registry. It speaks
// the protocol of the project docker-credential-helpers: the server on standard
// input, JSON on standard output, and the absence of a login as a text there
// beside a failing exit code. That the helper has none is an empty login. What it
// says otherwise is not shown, as it may be the secret.
func askHelper(ctx context.Context, name, server string) (registry.AuthConfig, error) {
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
	cmd.Stdout = &limited{to: &answer, left: maxHelper}
	cmd.WaitDelay = helperGrace
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return none, fmt.Errorf("%s did not answer within %v", program, helperLimit)
	case errors.Is(err, exec.ErrNotFound):
		return none, fmt.Errorf("the Docker configuration names the credential helper %s, which is not on PATH", program)
	case err != nil && strings.Contains(answer.String(), "credentials not found"):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("ask %s for the login at %s: %w", program, server, err)
	}
	var got struct{ Username, Secret string }
	if json.Unmarshal(answer.Bytes(), &got) != nil {
		return none, fmt.Errorf("what %s answers is not the JSON that it should be", program)
	}
	if got.Username == "<token>" {
		return registry.AuthConfig{IdentityToken: got.Secret, ServerAddress: server}, nil
	}
	return registry.AuthConfig{Username: got.Username, Password: got.Secret, ServerAddress: server}, nil
}

// limited writes so much and refuses more.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, errors.New("more than is reasonable")
	}
	l.left -= len(p)
	return l.to.Write(p)
}
