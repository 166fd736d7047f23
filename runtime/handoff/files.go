package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names of files in the instance.
const (
	Program = "workflow-runner" // the program, in the directory given to Prepare
	KeyFile = "key/private"     // the private key, below that directory

	SealedFile     = "sealed"     // the sealed text; empty or missing until the agent has sent it
	PackedFile     = "packed"     // the packed text of a handoff that is not sealed; may be missing at first
	PodFile        = "pod"        // the Pod's uid, next to SealedFile
	JobFile        = "job"        // the job, next to SealedFile
	GenerationFile = "generation" // the generation, next to SealedFile
)

const (
	// receiveLimit is how long the runner waits for the sealed or packed text. It is long,
	// so that an API server that is down for a while does not end a job. The agent's
	// timeout for sending the text is shorter.
	receiveLimit = 10 * time.Minute
	receivePoll  = 10 * time.Millisecond // between two checks of the file
)

// Prepare copies a program into directory, creates a key there, and writes its public half to
// the file report. The program must be static, because the instance that runs the copy has
// other libraries.
func Prepare(program, directory, report string) error {
	if err := copyProgram(program, filepath.Join(directory, Program)); err != nil {
		return fmt.Errorf("copy the runner: %w", err)
	}
	return PrepareKey(directory, report)
}

// PrepareKey creates a key in directory, and writes its public half to the file report. An
// instance that already has the program needs only this call.
func PrepareKey(directory, report string) error {
	private, public, err := NewKey()
	if err != nil {
		return err
	}
	// MkdirAll applies the umask, and Chmod does not. The user of the job must be able to
	// delete the key.
	key := filepath.Join(directory, KeyFile)
	if err := os.MkdirAll(filepath.Dir(key), 0o777); err != nil {
		return fmt.Errorf("create the key's directory: %w", err)
	}
	if err := os.Chmod(filepath.Dir(key), 0o777); err != nil {
		return fmt.Errorf("create the key's directory: %w", err)
	}
	if err := os.WriteFile(key, private, 0o444); err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	if err := os.WriteFile(report, []byte(public), 0o644); err != nil {
		return fmt.Errorf("report the key: %w", err)
	}
	return nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(0o755), target.Close())
}

// Receive reads and deletes the key, waits for the sealed text in file, and
// returns the text. It returns an error if the text is not from the sender with this public
// key. It times out after ten minutes, or with ctx.
func Receive(ctx context.Context, key, sender, file string) ([]byte, error) {
	private, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	if err := os.Remove(key); err != nil { // so that steps cannot read it
		return nil, fmt.Errorf("delete the key: %w", err)
	}
	sealed, err := await(ctx, file)
	if err != nil {
		return nil, err
	}
	directory := filepath.Dir(file)
	as := Recipient{}
	for name, field := range map[string]*string{PodFile: &as.Pod, JobFile: &as.Job, GenerationFile: &as.Generation} {
		text, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return nil, fmt.Errorf("read the recipient: %w", err)
		}
		*field = strings.TrimSpace(string(text))
	}
	return Open(private, sender, as, string(sealed))
}

// ReceivePacked waits for the packed text in file, and returns the text. It returns an error if
// the text is not from the sender with this public key. It times out after ten minutes, or with
// ctx.
func ReceivePacked(ctx context.Context, sender, file string) ([]byte, error) {
	packed, err := await(ctx, file)
	if err != nil {
		return nil, err
	}
	return Unpack(sender, packed)
}

// await returns the content of file once it is not empty. It times out after receiveLimit.
func await(ctx context.Context, file string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, receiveLimit,
		fmt.Errorf("the agent has not sent the handoff within %s: %s is empty or missing", receiveLimit, file))
	defer cancel()
	ticker := time.NewTicker(receivePoll)
	defer ticker.Stop()
	for {
		text, err := os.ReadFile(file)
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("read the handoff: %w", err)
		case len(text) > 0:
			return text, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
