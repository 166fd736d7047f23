package journal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// entry is one file of the journal.
type entry struct {
	path string
	file *os.File

	mu     sync.Mutex // guards the fields below, and writes to the file
	record runtime.Record
	sum    string    // checksum of the line
	size   int       // of the contents, in bytes
	used   time.Time // last change
	added  bool      // whether the record was added since the journal was opened: the job may be running
}

// set sets the fields for a record that is in the file, or is about to be written.
func (e *entry) set(record runtime.Record, contents []byte, used time.Time) {
	e.record, e.size, e.used = record, len(contents), used
	e.sum = string(contents[slotSize : slotSize+sumSize])
}

// writeSlot writes the stage and the progress of the record. The caller holds the lock.
func (e *entry) writeSlot(stage runtime.RecordStage, progress runtime.Progress) error {
	if e.record.Job == "" { // another call has removed the record
		return runtime.ErrNoRecord
	}
	if _, err := e.file.WriteAt(encodeSlot(e.sum, stage, progress), 0); err != nil {
		return err
	}
	e.record.Stage, e.record.Progress, e.used = stage, progress, time.Now()
	return nil
}

// clear overwrites the record. The caller holds the lock.
func (e *entry) clear() error {
	if err := clearFile(e.file, e.size); err != nil {
		return err
	}
	e.record, e.size, e.added = runtime.Record{}, 0, false
	return nil
}

func (e *entry) close() { _ = e.file.Close() }

// read reads a file of the folder, when the journal is opened.
func (j *Journal) read(path string) {
	// Remove a damaged file that is older than a day, and keep a younger one.
	name := filepath.Base(path)
	if strings.HasSuffix(name, damagedSuffix) {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()).Abs() > maxAge {
			if err := shred(path); err != nil {
				j.log.Warn("cannot remove a damaged record", "file", path, "error", err)
			}
		}
		return
	}
	if number, err := strconv.Atoi(name); err == nil && number < maxFiles {
		j.last = max(j.last, number)
	}

	// Read the record.
	file, contents, used, err := openFile(path)
	switch {
	case errors.Is(err, errForeign):
		j.putAside(path, err)
		return
	case err != nil:
		j.log.Warn("cannot read the record of a job; "+runtime.DeclaredFailed, "file", path, "error", err)
		return
	}
	e := &entry{path: path, file: file}
	record, err := Decode(contents)
	switch {
	case errors.Is(err, ErrFree) && e.wipe(contents) == nil:
		j.release(e)
		return
	case err == nil && j.entries[record.Job] != nil:
		err = ErrDamaged // only one file can have the record of a job
	}
	if err != nil {
		e.close()
		j.putAside(path, err)
		return
	}
	e.set(record, contents, used)
	j.entries[record.Job] = e
}

// wipe completes an interrupted removal: it overwrites the rest of the record in a free file.
func (e *entry) wipe(contents []byte) error {
	if !slices.ContainsFunc(contents, func(b byte) bool { return b != 0 }) {
		return nil
	}
	return clearFile(e.file, len(contents))
}

// putAside renames a file whose record this release cannot read.
func (j *Journal) putAside(path string, reason error) {
	aside := path + "." + strconv.FormatInt(time.Now().UnixNano(), 36) + damagedSuffix
	err := os.Rename(path, aside)
	if err != nil {
		j.log.Warn("cannot read or rename the record of a job", "file", path, "reason", reason, "error", err)
		return
	}
	j.log.Warn("cannot read the record of a job; its file is kept for a day; if the job has not ended, "+
		runtime.DeclaredFailed, "file", aside, "error", reason)
}
