package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A pipe that takes a file's place after a look at it, and before it is opened,
// would hold an opener until somebody writes.
func TestAPipeThatTakesAFilesPlaceHoldsNoComparisonUp(t *testing.T) {
	folder := t.TempDir()
	path, file, pipe := filepath.Join(folder, "agent.yaml"), filepath.Join(folder, "file"), filepath.Join(folder, "pipe")
	for _, err := range []error{os.WriteFile(file, []byte("content"), 0o600), syscall.Mkfifo(pipe, 0o600), os.Symlink(file, path)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	content := printOf(file)
	const enough = 2000 // looks at each of the two
	read := make(chan error, 1)
	stop := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.Symlink([]string{pipe, file}[i%2], path+".new")
				_ = os.Rename(path+".new", path)
			}
		}
	}()
	go func() {
		for files, pipes := 0, 0; files < enough || pipes < enough; {
			switch p := printOf(path); p {
			case content:
				files++
			case print{fault: "not a regular file"}:
				pipes++
			default:
				read <- fmt.Errorf("read %+v", p)
				return
			}
		}
		read <- nil
	}()
	select {
	case err := <-read:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a reader waits for a writer of the pipe")
	}
	close(stop)
	<-swapped
	if t.Failed() {
		if writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = writer.Close() // and the reader goes on
		}
	}
}
