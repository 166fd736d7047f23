package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Folder is the name of the journal in the folder of an agent.
const Folder = "claims"

const (
	damagedSuffix = ".damaged" // of a file that was renamed because it cannot be read

	maxFiles = 10_000         // largest number of files that Open reads
	maxFree  = 16             // largest number of free files that are kept
	maxAge   = 24 * time.Hour // time for which an unchanged record of an earlier run, or a damaged file, is kept
)

// Journal is a [runtime.Journal] in files. Its methods block until the disk has answered,
// even if their context has ended.
type Journal struct {
	folder string
	log    *slog.Logger

	mu      sync.Mutex
	entries map[string]*entry // by job
	free    []*entry
	last    int // largest number of a file
	closed  bool
}

// Open opens the journal in the folder of an agent, which the caller has locked, and reads
// its records. It returns an error if the folder cannot be used; a bad file in it is
// renamed and logged.
func Open(folder string, log *slog.Logger) (*Journal, error) {
	// Find the files.
	j := &Journal{folder: filepath.Join(folder, Folder), log: log, entries: map[string]*entry{}}
	if err := makeFolder(j.folder); err != nil {
		return nil, err
	}
	dir, err := os.Open(j.folder)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(maxFiles)
	_ = dir.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}

	// Read each file. Create a free file if there is none, so that a job can be recorded
	// while the disk is full.
	slices.Sort(names)
	for _, name := range names {
		j.read(filepath.Join(j.folder, name))
	}
	if len(j.free) == 0 {
		if e, err := j.create(); err != nil {
			log.Warn("cannot create a file for the records of jobs", "folder", j.folder, "error", err)
		} else {
			j.free = append(j.free, e)
		}
	}
	return j, nil
}

// Close closes all files. The records stay in the files. Later calls change no record: Add
// and SetStage return an error, and List returns no record.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		e.close()
	}
	for _, e := range j.free {
		e.close()
	}
	j.entries, j.free, j.closed = map[string]*entry{}, nil, true
}

// Add implements [runtime.Journal].
func (j *Journal) Add(ctx context.Context, record runtime.Record) error {
	// Encode the record, and remove an earlier record of the job.
	contents, err := Encode(record)
	if err != nil {
		return err
	}
	if err := j.Remove(ctx, record.Job); err != nil {
		return err
	}

	// Write it to a free file. After an error the file stays assigned to the job until
	// Remove, because it may contain the record.
	e, err := j.take(record.Job)
	if err != nil {
		return fmt.Errorf("create a file for the record: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(record, contents, time.Now())
	e.added = true
	if _, err := e.file.WriteAt(contents, 0); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	if err := syncData(e.file); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// SetStage implements [runtime.Journal]. Only [runtime.RecordHandedOff] is synced.
func (j *Journal) SetStage(_ context.Context, job string, stage runtime.RecordStage) error {
	e := j.find(job)
	if e == nil {
		return fmt.Errorf("set the stage of job %s: %w", job, runtime.ErrNoRecord)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.writeSlot(stage, e.record.Progress); err != nil {
		return fmt.Errorf("write the stage: %w", err)
	}
	if stage != runtime.RecordHandedOff {
		return nil
	}
	if err := syncData(e.file); err != nil {
		return fmt.Errorf("write the stage: %w", err)
	}
	return nil
}

// SetProgress implements [runtime.Journal]. It takes some microseconds.
func (j *Journal) SetProgress(job string, progress runtime.Progress) {
	e := j.find(job)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.writeSlot(e.record.Stage, progress) // an error is ignored: only the job's log depends on the progress
}

// Remove implements [runtime.Journal]. It overwrites the record with zeros and does not
// sync: the kernel writes the zeros to the disk later.
func (j *Journal) Remove(_ context.Context, job string) error {
	// Overwrite the record.
	e := j.find(job)
	if e == nil {
		return nil
	}
	e.mu.Lock()
	err := e.clear()
	e.mu.Unlock()
	if err != nil {
		return fmt.Errorf("overwrite the record: %w", err)
	}

	// Keep some free files.
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries[job] == e { // otherwise another call has removed it
		delete(j.entries, job)
		j.release(e)
	}
	return nil
}

// List implements [runtime.Journal]. It removes the records of an earlier run of the agent
// that were claimed and last changed more than a day ago: the execution target of such a
// job no longer exists or cannot be opened.
func (j *Journal) List(ctx context.Context) ([]runtime.Record, error) {
	// Copy the records.
	j.mu.Lock()
	entries := slices.Collect(maps.Values(j.entries))
	j.mu.Unlock()
	var all []runtime.Record
	for _, e := range entries {
		e.mu.Lock()
		record, used, added := e.record, e.used, e.added
		e.mu.Unlock()
		if record.Job == "" { // it was just removed
			continue
		}
		if added || time.Since(used) < maxAge || time.Since(record.Claimed) < maxAge {
			all = append(all, record)
			continue
		}
		j.log.Warn("record of an old job removed", "job", record.Job, "pool", record.PoolName,
			"claimed", record.Claimed, "stage", record.Stage)
		if err := j.Remove(ctx, record.Job); err != nil {
			j.log.Warn("cannot remove the record of an old job", "job", record.Job, "error", err)
		}
	}

	// Sort them.
	slices.SortFunc(all, func(a, b runtime.Record) int {
		return cmp.Or(a.Claimed.Compare(b.Claimed), strings.Compare(a.Job, b.Job))
	})
	return all, nil
}

// find returns the file of a job's record, or nil if there is none.
func (j *Journal) find(job string) *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[job]
}

// take assigns a free file, or a new one, to a job.
func (j *Journal) take(job string) (e *entry, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := len(j.free)
	switch {
	case j.closed:
		return nil, os.ErrClosed
	case n > 0:
		e, j.free = j.free[n-1], j.free[:n-1]
	default:
		if e, err = j.create(); err != nil {
			return nil, err
		}
	}
	j.entries[job] = e
	return e, nil
}

// release keeps a free file, or removes it if maxFree files are already kept. The caller
// holds the lock, or is Open.
func (j *Journal) release(e *entry) {
	if !j.closed && len(j.free) < maxFree {
		j.free = append(j.free, e)
		return
	}
	if !j.closed && syncData(e.file) == nil { // if the sync fails, keep the file: its tokens may still be on the disk
		_ = os.Remove(e.path)
	}
	e.close()
}

// create creates a free file. The caller holds the lock, or is Open.
func (j *Journal) create() (*entry, error) {
	for range maxFiles {
		j.last++
		path := filepath.Join(j.folder, strconv.Itoa(j.last))
		file, err := createFile(path)
		switch {
		case errors.Is(err, os.ErrExist):
			continue
		case err != nil:
			return nil, err
		}
		return &entry{path: path, file: file}, nil
	}
	return nil, fmt.Errorf("%s has too many files", j.folder)
}
