package runtime

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
)

// module is the path of this module.
const module = "github.com/cmwa-project/cmwa"

// CheckRunner returns an error if a file is a Go program of another module, or a runner for handoffs of
// another version. Pulumi's own agent has a program workflow-runner too, which does not understand the
// handoff of a job. CheckRunner returns nil for a file that is not a Go program.
func CheckRunner(path string) error {
	info, err := buildinfo.ReadFile(path)
	switch {
	case err != nil || info.Main.Path == "":
		return nil
	case info.Main.Path != module:
		return fmt.Errorf("is a program of another project (%s)", info.Main.Path)
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close()
	switch found, err := contains(file, RunnerMark); {
	case err != nil:
		return fmt.Errorf("cannot be read: %w", err)
	case !found:
		return errors.New("is of another release")
	}
	return nil
}

// contains reports whether the text is in the stream.
func contains(stream io.Reader, text string) (bool, error) {
	buffer, kept := make([]byte, 64<<10), 0
	for {
		n, err := stream.Read(buffer[kept:])
		read := buffer[:kept+n]
		switch {
		case bytes.Contains(read, []byte(text)):
			return true, nil
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		}
		kept = copy(buffer, read[max(0, len(read)-len(text)+1):]) // the text may begin there
	}
}
