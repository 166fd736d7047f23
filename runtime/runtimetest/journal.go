package runtimetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cmwa-project/cmwa/runtime"
)

// JournalCall names a call of a [runtime.Journal] that can fail.
type JournalCall string

// The calls.
const (
	AddRecord    JournalCall = "add"
	SetStage     JournalCall = "set stage"
	RemoveRecord JournalCall = "remove"
	ListRecords  JournalCall = "list"
)

// Journal is a fake of [runtime.Journal] with state: a test restarts an agent by giving the
// same Journal to the next pool. Its calls take no time. Methods are safe for concurrent
// use.
type Journal struct {
	mu      sync.Mutex
	records map[string]runtime.Record
	faults  map[JournalCall][]error
	before  func(call JournalCall, job string)
	events  map[string][]string // by job
}

// NewJournal returns a journal without records.
func NewJournal() *Journal {
	return &Journal{
		records: map[string]runtime.Record{}, faults: map[JournalCall][]error{}, events: map[string][]string{},
	}
}

// Fail makes calls of a kind fail with err, and times is their number. These are the next calls
// after those for which a fault is already arranged. A call that fails changes nothing.
func (j *Journal) Fail(call JournalCall, times int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for range times {
		j.faults[call] = append(j.faults[call], err)
	}
}

// Before sets a function that is called at the beginning of each call except SetProgress. The
// job is empty for a call of List. The function may block.
func (j *Journal) Before(f func(call JournalCall, job string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.before = f
}

// Record returns the record of a job, and whether there is one.
func (j *Journal) Record(job string) (runtime.Record, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	record, ok := j.records[job]
	return record, ok
}

// Operations returns the calls about a job that succeeded, in order, without those of
// SetProgress: "add", a stage, or "remove".
func (j *Journal) Operations(job string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events[job])
}

// Add stores a record.
func (j *Journal) Add(_ context.Context, record runtime.Record) error {
	return j.call(AddRecord, record.Job, string(AddRecord), func() error {
		j.records[record.Job] = record
		return nil
	})
}

// SetStage changes the stage of a record.
func (j *Journal) SetStage(_ context.Context, job string, stage runtime.RecordStage) error {
	return j.call(SetStage, job, string(stage), func() error {
		record, ok := j.records[job]
		if !ok {
			return fmt.Errorf("set the stage of %s: %w", job, runtime.ErrNoRecord)
		}
		record.Stage = stage
		j.records[job] = record
		return nil
	})
}

// SetProgress changes the progress of a record.
func (j *Journal) SetProgress(job string, progress runtime.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if record, ok := j.records[job]; ok {
		record.Progress = progress
		j.records[job] = record
	}
}

// Remove removes a record.
func (j *Journal) Remove(_ context.Context, job string) error {
	return j.call(RemoveRecord, job, string(RemoveRecord), func() error {
		delete(j.records, job)
		return nil
	})
}

// List returns the records in the order of their claims.
func (j *Journal) List(context.Context) (all []runtime.Record, err error) {
	err = j.call(ListRecords, "", string(ListRecords), func() error {
		all = slices.Collect(maps.Values(j.records))
		return nil
	})
	slices.SortFunc(all, func(a, b runtime.Record) int {
		return cmp.Or(a.Claimed.Compare(b.Claimed), strings.Compare(a.Job, b.Job))
	})
	return all, err
}

// call makes one call: it applies the next fault of its kind, or makes the change.
func (j *Journal) call(call JournalCall, job, event string, change func() error) error {
	j.mu.Lock()
	before := j.before
	j.mu.Unlock()
	if before != nil {
		before(call, job)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if arranged := j.faults[call]; len(arranged) > 0 {
		j.faults[call] = arranged[1:]
		return arranged[0]
	}
	if err := change(); err != nil {
		return err
	}
	j.events[job] = append(j.events[job], event)
	return nil
}
