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

// withoutFiles does something while this process can open no file.
func withoutFiles(t *testing.T, do func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 1
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	if file, err := os.Open("/dev/null"); err == nil {
		_ = file.Close()
		t.Fatal("files can be opened")
	}
	do()
}

func TestAJobIsNotTakenForDeadWhenThisProcessCanOpenNoFile(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	job := jobIn(pretend(t, `read x; sleep 1; exit 10`))
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
			t.Errorf("without files the list is %+v, want an error", found)
		}
		if err := e.Remove(t.Context(), id, 0); err == nil {
			t.Error("without files a job counts as removed")
		}
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for short.Err() == nil {
			select {
			case e := <-early:
				passing(t, "who waits", e.exit, e.err)
			case e := <-late:
				passing(t, "who begins to wait", e.exit, e.err)
			case <-short.Done():
			}
		}
	})
	for range 2 {
		if exit, err := e.Wait(t.Context(), id); err != nil || exit.Code != 10 {
			t.Errorf("afterwards the end is %+v, %v; want code 10", exit, err)
		}
	}
	if found, err := e.List(t.Context(), job.Agent); err != nil || len(found) != 1 {
		t.Errorf("afterwards the list is %+v, %v", found, err)
	}
}

// passing checks that Wait gave an error after which the caller waits again.
func passing(t *testing.T, who string, exit runtime.Exit, err error) {
	t.Helper()
	if err == nil || errors.Is(err, runtime.ErrNoEnvironment) {
		t.Errorf("%s is told %+v, %v; want an error that is no end", who, exit, err)
	}
}
