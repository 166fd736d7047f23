package journal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Directory is the name of the journal in the directory of an agent.
const Directory = "records"

const (
	newSuffix     = ".new"     // of a file that replaces another one
	damagedSuffix = ".damaged" // of a file that was renamed because it cannot be read

	reserveName = "reserve" // of a file whose space is for records while the disk is full
	reserveSize = 64 << 10  // in bytes: a few records, and the new file of a change beside the old one

	linesInterval = time.Second // between two changes of a file for the number of lines only

	maxFiles = 10_000         // largest number of files that Open reads
	maxAge   = 24 * time.Hour // time for which an unchanged record of an earlier run, or a damaged file, is kept
)

// Journal is a [runtime.Journal] in files. Its methods block until the disk has answered,
// even if their context has ended.
type Journal struct {
	directory string
	log       *slog.Logger

	mu       sync.Mutex
	entries  map[string]*entry // by job
	reserved bool              // the file reserve exists
	closed   bool
}

// entry is the record of a job, in a file.
type entry struct {
	path  string
	added bool // after the journal was opened: the job may be running

	mu      sync.Mutex // guards the fields below, and the file
	record  runtime.Record
	changed time.Time
	removed bool // the record was removed or replaced: a late change must not write the file again
}

// Open opens the journal in the directory of an agent, which the caller has locked, and reads
// its records. It returns an error if the directory cannot be used; a bad file in it is
// renamed and logged.
func Open(directory string, log *slog.Logger) (*Journal, error) {
	j := &Journal{directory: filepath.Join(directory, Directory), log: log, entries: map[string]*entry{}}
	if err := secret.MakeDirectory(j.directory); err != nil {
		return nil, err
	}
	dir, err := os.Open(j.directory)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(maxFiles)
	_ = dir.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, name := range names {
		j.read(filepath.Join(j.directory, name))
	}
	if err := j.reserve(); err != nil {
		log.Warn("cannot reserve space for the records of jobs", "directory", j.directory, "error", err)
	}
	return j, nil
}

// read reads a file when the journal is opened.
func (j *Journal) read(path string) {
	name := filepath.Base(path)
	switch {
	case name == reserveName:
		j.reserved = true
		return
	case strings.HasSuffix(name, damagedSuffix):
		if info, err := os.Lstat(path); err != nil || time.Since(info.ModTime()).Abs() <= maxAge {
			return
		}
		fallthrough
	case strings.HasSuffix(name, newSuffix):
		if err := os.Remove(path); err != nil {
			j.log.Warn("cannot remove a file of the journal", "file", path, "error", err)
		}
		return
	}

	contents, changed, err := readFile(path)
	if err != nil && !errors.Is(err, errForeign) {
		j.log.Warn("cannot read the record of a job; "+runtime.DeclaredFailed, "file", path, "error", err)
		return
	}
	var record runtime.Record
	if err == nil {
		record, err = Decode(contents)
	}
	if err == nil && path != j.path(record.Job) {
		err = errDamaged
	}
	if err != nil {
		j.putAside(path, err)
		return
	}
	j.entries[record.Job] = &entry{path: path, record: record, changed: changed}
}

// putAside renames a file whose record this release cannot read.
func (j *Journal) putAside(path string, reason error) {
	aside := path + "." + strconv.FormatInt(time.Now().UnixNano(), 36) + damagedSuffix
	if err := os.Rename(path, aside); err != nil {
		j.log.Warn("cannot read or rename the record of a job", "file", path, "reason", reason, "error", err)
		return
	}
	j.log.Warn("cannot read the record of a job; its file is kept for a day; if the job has not ended, "+
		runtime.DeclaredFailed, "file", aside, "error", reason)
}

// path returns the path of the file of a job. The id of a job may contain any bytes.
func (j *Journal) path(job string) string {
	sum := sha256.Sum256([]byte(job))
	return filepath.Join(j.directory, fmt.Sprintf("%x.json", sum[:8]))
}

// Close closes the journal. The records stay in the files. Later calls change no record: Add
// and SetStage return an error, and List returns no record.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries, j.closed = map[string]*entry{}, true
}

// Add implements [runtime.Journal].
func (j *Journal) Add(_ context.Context, record runtime.Record) error {
	e := &entry{path: j.path(record.Job), added: true}
	e.mu.Lock()
	defer e.mu.Unlock()
	j.mu.Lock()
	earlier, closed := j.entries[record.Job], j.closed
	if !closed {
		j.entries[record.Job] = e
	}
	j.mu.Unlock()
	if closed {
		return fmt.Errorf("write the record: %w", os.ErrClosed)
	}
	if earlier != nil {
		earlier.mu.Lock()
		earlier.removed = true
		earlier.mu.Unlock()
	}
	e.record = record // also after an error, because the file may contain it
	return j.write(e, record, true)
}

// SetStage implements [runtime.Journal]. Only [runtime.RecordHandedOff] is synced.
func (j *Journal) SetStage(_ context.Context, job string, stage runtime.RecordStage) error {
	return j.change(job, stage == runtime.RecordHandedOff, func(r *runtime.Record) { r.Stage = stage })
}

// SetProgress implements [runtime.Journal]. It writes the number of lines at most once a second:
// a new file for each batch of lines would cost more than the other changes of a job together.
func (j *Journal) SetProgress(job string, progress runtime.Progress) {
	e := j.find(job)
	e.mu.Lock()
	last, age := e.record.Progress, time.Since(e.changed)
	if last.Step == progress.Step && last.Status == progress.Status && age < linesInterval {
		e.record.Progress = progress // written with the next change
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	// An error is ignored: only the job's log depends on the progress.
	_ = j.change(job, false, func(r *runtime.Record) { r.Progress = progress })
}

func (j *Journal) change(job string, sync bool, edit func(*runtime.Record)) error {
	e := j.find(job)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.removed {
		return fmt.Errorf("job %s: %w", job, runtime.ErrNoRecord)
	}
	record := e.record
	edit(&record)
	return j.write(e, record, sync)
}

// write writes the record of an entry. If the disk is full, it uses the reserve. The caller holds
// the lock of the entry.
func (j *Journal) write(e *entry, record runtime.Record, sync bool) error {
	contents, err := Encode(record)
	if err != nil {
		return err
	}
	err = writeFile(e.path, contents, sync)
	if errors.Is(err, syscall.ENOSPC) && j.useReserve() {
		err = writeFile(e.path, contents, sync)
	}
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	e.record, e.changed = record, time.Now()
	return nil
}

// Remove implements [runtime.Journal]. It does not sync.
func (j *Journal) Remove(_ context.Context, job string) error {
	e := j.find(job)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.removed {
		return nil
	}
	if err := os.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	e.removed = true
	j.mu.Lock()
	if j.entries[job] == e {
		delete(j.entries, job)
	}
	j.mu.Unlock()
	_ = j.reserve() // if the disk is still full, the next removal tries again
	return nil
}

// List implements [runtime.Journal]. It removes the records of an earlier run of the agent
// that were claimed and last changed more than a day ago: the execution target of such a
// job no longer exists or cannot be opened.
func (j *Journal) List(ctx context.Context) ([]runtime.Record, error) {
	j.mu.Lock()
	entries := slices.Collect(maps.Values(j.entries))
	j.mu.Unlock()
	var all []runtime.Record
	for _, e := range entries {
		e.mu.Lock()
		record, changed, removed := e.record, e.changed, e.removed
		e.mu.Unlock()
		switch {
		case removed:
		case e.added, time.Since(changed) < maxAge, time.Since(record.Claimed) < maxAge:
			all = append(all, record)
		default:
			j.log.Warn("record of an old job removed", "job", record.Job, "pool", record.PoolName,
				"claimed", record.Claimed, "stage", record.Stage)
			if err := j.Remove(ctx, record.Job); err != nil {
				j.log.Warn("cannot remove the record of an old job", "job", record.Job, "error", err)
			}
		}
	}
	slices.SortFunc(all, func(a, b runtime.Record) int {
		return cmp.Or(a.Claimed.Compare(b.Claimed), strings.Compare(a.Job, b.Job))
	})
	return all, nil
}

// find returns the entry of a job. If the job has none, the result counts as removed.
func (j *Journal) find(job string) *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return cmp.Or(j.entries[job], &entry{removed: true})
}

// reserve creates the file whose space useReserve releases, unless it exists.
func (j *Journal) reserve() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reserved || j.closed {
		return nil
	}
	err := writeFile(filepath.Join(j.directory, reserveName), make([]byte, reserveSize), true)
	j.reserved = err == nil
	return err
}

// useReserve removes the reserve, and reports whether there was one.
func (j *Journal) useReserve() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	removed := j.reserved && os.Remove(filepath.Join(j.directory, reserveName)) == nil
	j.reserved = false
	return removed
}
