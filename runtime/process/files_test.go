//go:build linux || darwin

package process_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// withoutFiles calls do while this process cannot open files.
func withoutFiles(t *testing.T, do func()) {
	t.Helper()
	var limit syscall.Rlimit
	noError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 1
	noError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	defer func() {
		noError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	}()
	if file, err := os.Open("/dev/null"); err == nil {
		_ = file.Close()
		t.Fatal("files can be opened in spite of the limit")
	}
	do()
}

func TestWaitWithoutFiles(t *testing.T) {
	e := newExecutor(t, t.TempDir())
	fifo := newFIFO(t)
	job := jobIn(scriptRunner(t, `read x; read y <`+fifo+`; exit 10`))
	id := mustStart(t, e, job)
	type end struct {
		exit runtime.Exit
		err  error
	}
	early, late := make(chan end, 1), make(chan end, 1)
	wait := func(to chan<- end) {
		exit, err := e.Wait(t.Context(), id)
		to <- end{exit, err}
	}
	go wait(early)
	withoutFiles(t, func() {
		go wait(late)
		if found, err := e.List(t.Context(), job.Agent); err == nil {
			t.Errorf("while no file can be opened, List returns %+v, want an error", found)
		}
		if err := e.Remove(t.Context(), id, 0); err == nil {
			t.Error("while no file can be opened, Remove returns nil, want an error")
		}
		limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for limited.Err() == nil {
			select {
			case e := <-early:
				wantTemporary(t, "a waiting call", e.exit, e.err)
			case e := <-late:
				wantTemporary(t, "a new call", e.exit, e.err)
			case <-limited.Done():
			}
		}
	})
	release(t, fifo, "\n")
	for range 2 {
		if exit, err := e.Wait(t.Context(), id); err != nil || exit.Code != 10 {
			t.Errorf("afterwards the end is %+v, %v; want code 10", exit, err)
		}
	}
	if found, err := e.List(t.Context(), job.Agent); err != nil || len(found) != 1 {
		t.Errorf("afterwards the list is %+v, %v; want one job", found, err)
	}
}

// wantTemporary checks that Wait returned an error after which the caller waits again.
func wantTemporary(t *testing.T, call string, exit runtime.Exit, err error) {
	t.Helper()
	if err == nil || errors.Is(err, runtime.ErrNoInstance) {
		t.Errorf("%s of Wait returns %+v, %v; want an error other than ErrNoInstance", call, exit, err)
	}
}
