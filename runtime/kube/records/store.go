package records

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	// unadoptedTime is how long a record is kept if its job has not run and no agent adopts the
	// record. Then any agent of the namespace sweeps it.
	unadoptedTime = 24 * time.Hour

	conflictDelay = 50 * time.Millisecond // after a conflict: the next attempt has the new version
	unsureLimit   = time.Minute           // timeout for the removal of a record that may exist
)

// backoff is for requests that change an object.
var backoff = runtime.Backoff{First: 500 * time.Millisecond, Max: 10 * time.Second}

// ErrAdopted is the reason why this agent must not start a job.
var ErrAdopted = errors.New("another agent has adopted the job, because this agent's own Pod no longer exists")

// errGone is returned for a record that another agent has adopted: this agent must not report the
// job either.
var errGone = fmt.Errorf("%w: %w", ErrAdopted, runtime.ErrGone)

// Options are the arguments of [New].
type Options struct {
	Cluster Cluster
	Agent   Agent  // this agent
	Pool    string // key of the pool
	Tuning  runtime.Tuning
	Log     *slog.Logger
}

// Store is the [runtime.Journal] of one pool. It adopts records of agents that no longer exist
// ([runtime.RecordAdopter]), and uses changed credentials for new records ([runtime.JournalTuner]).
// The zero value has no records. It is safe for concurrent use.
type Store struct {
	options Options

	mu       sync.Mutex
	key      Key
	resource string // of new records
	jobs     map[string]*recorded
	listed   time.Time // start of the last list of AdoptRecords
	left     bool      // that list had a record of an agent that is gone, and it was not adopted

	// uids of objects
	unreadable map[string]bool // the log has a warning that they cannot be read
	unresolved map[string]bool // it is unknown whether this agent has adopted them
}

// recorded is one record. Calls about one job do not overlap, except calls that only read or change
// fields. The lock of the Store guards the fields.
type recorded struct {
	Entry
	object  Object // without a resource if the job has no object
	unsure  bool   // the object may exist, although Add has returned an error
	podGone bool
	stale   bool // a change of the stage failed, so the stored stage is unknown
	lost    bool // another agent has adopted the record
}

// New returns the store of a pool. It returns false if the pool cannot protect the tokens of jobs:
// it has no static token to seal them with, and its objects are not Secrets.
func New(options Options) (*Store, bool) {
	s := &Store{
		options: options, jobs: map[string]*recorded{},
		unreadable: map[string]bool{}, unresolved: map[string]bool{},
	}
	s.Tune(options.Tuning)
	return s, s.resource != ""
}

// Tune sets the credentials and the settings for records that are written from now on.
func (s *Store) Tune(tuning runtime.Tuning) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tuning.Token != s.options.Tuning.Token {
		clear(s.unreadable)
	}
	s.options.Tuning, s.key = tuning, NewKey(tuning.Token)
	switch {
	case tuning.Instance.Kubernetes.Handoff == "secret":
		s.resource = Secrets
	case s.key.Seals():
		s.resource = ConfigMaps
	}
}

// Add creates the object of a record.
func (s *Store) Add(ctx context.Context, record runtime.Record) error {
	s.mu.Lock()
	r := &recorded{
		Entry: Entry{Record: record}, object: Object{Resource: s.resource, Name: objectName(record.Job)},
	}
	if before := s.jobs[record.Job]; before != nil && before.object.Resource == s.resource {
		r.object.UID, r.object.Version = before.object.UID, before.object.Version
	}
	s.jobs[record.Job] = r
	s.mu.Unlock()
	err := s.saveClaimed(ctx, r, r.Entry)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		kind := kindOf(err)
		if r.unsure = kind == Temporary || kind == Conflict; !r.unsure {
			r.object.Resource = ""
		}
	}
	return err
}

// SetStage replaces the object of a record. From the handoff on, the Pod is its owner, so that the
// cluster deletes both. The stage reported is not stored: if an agent ends directly before or
// directly after its report, the next agent must find out in both cases what the service knows.
func (s *Store) SetStage(ctx context.Context, job string, stage runtime.RecordStage) error {
	s.mu.Lock()
	r := s.jobs[job]
	if r == nil {
		s.mu.Unlock()
		return fmt.Errorf("set the stage of job %s: %w", job, runtime.ErrNoRecord)
	}
	next, lost := r.Entry, r.lost
	stored := r.object.Resource == "" || stage == runtime.RecordReported || next.Record.Stage == stage && !r.stale
	next.Record.Stage = stage
	if stored && !lost {
		r.Entry = next
	}
	s.mu.Unlock()
	switch {
	case lost:
		return errGone
	case stored:
		return nil
	}

	var err error
	if stage == runtime.RecordClaimed {
		next.Pod, next.UID = "", ""
		err = s.saveClaimed(ctx, r, next)
	} else if err = s.save(ctx, r, next); kindOf(err) == Missing {
		err = s.deleted(ctx, r)
	}
	s.mu.Lock()
	r.stale = err != nil
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("set the stage of job %s: %w", job, err)
	}
	return nil
}

// deleted returns the error for a record that was deleted before its job could start. A user has
// deleted it, or another agent that had adopted it.
func (s *Store) deleted(ctx context.Context, r *recorded) error {
	ended, err := s.options.Cluster.Gone(ctx, s.options.Agent)
	if err == nil && !ended {
		if err = s.checkPods(ctx, r); err == nil {
			return runtime.ErrNoRecord
		}
	}
	gone := s.lose(r)
	if err == nil || errors.Is(err, runtime.ErrGone) {
		return gone
	}
	return fmt.Errorf("the record was deleted, and it is unknown whether another agent starts the job: %w", err)
}

// lose gives up a record that another agent has adopted.
func (s *Store) lose(r *recorded) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.lost = true
	return errGone
}

// SetProgress changes the progress in memory. The object gets the progress with the next stage.
func (s *Store) SetProgress(job string, progress runtime.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.jobs[job]; r != nil {
		r.Record.Progress = progress
	}
}

// Remove deletes the object of a record, unless the cluster deletes it with the Pod.
func (s *Store) Remove(ctx context.Context, job string) error {
	s.mu.Lock()
	r := s.jobs[job]
	if r == nil || r.object.Resource == "" || r.object.Pod != "" && r.podGone {
		delete(s.jobs, job)
		s.mu.Unlock()
		return nil
	}
	lost := r.lost
	s.mu.Unlock()
	if lost {
		return errGone
	}
	if err := s.delete(ctx, r); err != nil {
		return fmt.Errorf("remove the record of job %s: %w", job, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, job)
	return nil
}

// List returns the records of this agent's Pod for the pool. It does not read those of other
// pools, whose jobs may be starting. It fails if it cannot find out whether the job of a record
// may have run.
func (s *Store) List(ctx context.Context) ([]runtime.Record, error) {
	var all []runtime.Record
	for _, resource := range []string{ConfigMaps, Secrets} {
		objects, err := s.options.Cluster.List(ctx, resource, Filter{Scope: OfSelf, Pool: s.options.Pool})
		if resource == Secrets && kindOf(err) == Forbidden {
			continue // then the agent has no records in Secrets
		}
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if o.Owner != s.options.Agent { // an earlier Pod with the same name
				continue
			}
			record, err := s.take(ctx, o)
			if err != nil {
				return nil, err
			}
			if record != nil {
				all = append(all, *record)
			}
		}
	}
	slices.SortFunc(all, func(a, b runtime.Record) int {
		return cmp.Or(a.Claimed.Compare(b.Claimed), cmp.Compare(a.Job, b.Job))
	})
	return all, nil
}

// PodOfJob notes the Pod of a job before its handoff is sent. It returns an error if the
// job must not start: its record may exist and cannot be removed, so that another agent
// would start the job again.
func (s *Store) PodOfJob(ctx context.Context, job, pod, uid string) error {
	s.mu.Lock()
	r := s.jobs[job]
	if r == nil {
		s.mu.Unlock()
		return nil
	}
	r.Pod, r.UID, r.podGone = pod, uid, false
	unsure := r.unsure
	s.mu.Unlock()
	if !unsure {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unsureLimit)
	defer cancel()
	if err := s.delete(ctx, r); err != nil {
		return fmt.Errorf("remove the record of the job, which may exist: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.unsure, r.object.Resource = false, ""
	return nil
}

// PodRemoved notes that a Pod was deleted.
func (s *Store) PodRemoved(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.jobs {
		if r.UID == uid {
			r.podGone = true
		}
	}
}

// Leave leaves the record of a job to the agent that has adopted the job's Pod: the record is not
// changed or removed any more.
func (s *Store) Leave(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.jobs[job]; r != nil {
		r.lost = true
	}
}

// Has reports whether a job has a record.
func (s *Store) Has(job string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.jobs[job]
	return r != nil && r.object.Resource != ""
}

// take returns the record in an object of this agent, with the stage that the Pods of its job show.
// The stored stage proves nothing: a user may have replaced the object by an earlier version of it,
// for example from a backup of the namespace.
//
//  1. If another agent has a Pod of the job, take returns nil, and AdoptRecords tries again.
//  2. If a Pod may have its handoff, the job may have run.
//  3. If the Pod in the record has no handoff, the job has not run: only the old agent could send
//     the handoff. The Pod is removed next, so take first removes the Pod from the owners of the
//     object.
//
// It also returns nil if the object cannot be read.
func (s *Store) take(ctx context.Context, o Object) (*runtime.Record, error) {
	s.mu.Lock()
	for _, r := range s.jobs {
		if r.object.Name == o.Name && r.object.Resource == o.Resource && r.object.Version != "" {
			defer s.mu.Unlock()
			return new(r.record()), nil // this process has written it
		}
	}
	s.mu.Unlock()
	entry, ok := s.read(o)
	if !ok {
		return nil, nil
	}
	pods, err := s.options.Cluster.Pods(ctx, entry.Record.Job)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(pods, isForeign) {
		s.setUnresolved(o.UID, true)
		return nil, nil
	}
	r := &recorded{Entry: entry, object: o}
	if next := entry.at(pods); next.Record.Stage != entry.Record.Stage {
		if err := s.save(ctx, r, next); err != nil && kindOf(err) != Missing {
			return nil, err
		}
		r.Entry = next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[r.Record.Job] = r
	return new(r.record()), nil
}

// record returns the record with the id of the Pod that got the handoff, in the form of package kube.
func (e Entry) record() runtime.Record {
	record := e.Record
	if record.Stage == runtime.RecordHandedOff && e.UID != "" {
		record.Instance = e.Pod + "/" + e.UID
	}
	return record
}

func isForeign(pod Pod) bool { return pod.Foreign }

// at returns the entry with the stage that the Pods of its job show.
func (e Entry) at(pods []Pod) Entry {
	for _, pod := range pods {
		switch {
		case pod.MayRun && e.Record.Stage == runtime.RecordClaimed:
			e.Record.Stage, e.Pod, e.UID = runtime.RecordHandedOff, pod.Name, pod.UID
		case !pod.MayRun && pod.UID == e.UID && len(pods) == 1:
			e.Record.Stage, e.Pod, e.UID = runtime.RecordClaimed, "", ""
		}
	}
	return e
}

// read returns the entry in an object. If the object cannot be read, it logs a warning once and
// returns false. From ConfigMaps it accepts only sealed entries, because more users may write
// ConfigMaps.
func (s *Store) read(o Object) (entry Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := ErrSealed
	if o.Resource == Secrets || s.key.Seals() {
		entry, err = s.key.Decode(o.Name, o.Text)
	}
	if err != nil && !s.unreadable[o.UID] {
		s.unreadable[o.UID] = true
		s.options.Log.Warn("cannot read the record of a job; unless another agent can, "+runtime.DeclaredFailed,
			"job", o.Job, "object", o.Resource+"/"+o.Name, "error", err)
	}
	return entry, err == nil
}

// saveClaimed stores an entry whose job has not run. The cluster may have deleted an earlier object
// of the job with its Pod.
func (s *Store) saveClaimed(ctx context.Context, r *recorded, next Entry) error {
	err := s.save(ctx, r, next)
	if kindOf(err) == Missing {
		s.setVersion(r, "", "")
		err = s.save(ctx, r, next)
	}
	return err
}

func (s *Store) save(ctx context.Context, r *recorded, next Entry) error {
	return s.change(ctx, r, func() error {
		o, err := s.objectFor(r, next)
		if err != nil {
			return err
		}
		stored, err := s.options.Cluster.Put(ctx, o)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		next.Record.Progress = r.Record.Progress
		r.Entry, r.object, r.unsure = next, stored, false
		return nil
	})
}

// delete deletes the object of a record, if it still belongs to this agent.
func (s *Store) delete(ctx context.Context, r *recorded) error {
	return s.change(ctx, r, func() error {
		if r.object.Version == "" {
			if err := s.refresh(ctx, r); err != nil || r.object.Version == "" {
				return err
			}
		}
		err := s.options.Cluster.Delete(ctx, r.object)
		if kindOf(err) == Missing {
			return nil
		}
		return err
	})
}

// change sends a request that changes the object of a record. It retries temporary errors until ctx
// ends. After a conflict, it reads the version of the object first.
func (s *Store) change(ctx context.Context, r *recorded, request func() error) error {
	for delay := backoff.First; ; delay = backoff.Next(delay) {
		err := request()
		if kindOf(err) == Conflict {
			if failed := s.refresh(ctx, r); failed != nil {
				err = failed
			} else {
				delay = conflictDelay
			}
		}
		if kind := kindOf(err); kind != Conflict && kind != Temporary {
			return err
		}
		if !runtime.Sleep(ctx, nil, runtime.Jitter(delay)) {
			return err
		}
	}
}

// refresh reads the version of a record that this agent may replace. A user may have edited the owner
// of the record, so this agent loses a record that it has written only to an agent that exists, or if
// another agent has a Pod of the job.
func (s *Store) refresh(ctx context.Context, r *recorded) error {
	current, err := s.find(ctx, r.object.Resource, r.object.Name)
	if err != nil {
		return err
	}
	written := r.object.Version != ""
	if written {
		if err := s.checkPods(ctx, r); err != nil {
			return err
		}
	}
	switch {
	case current == nil:
		s.setVersion(r, "", "")
		return nil
	case current.Owner == s.options.Agent, current.Owner.Name == "":
	default:
		gone, err := s.options.Cluster.Gone(ctx, current.Owner)
		if err == nil && gone && written { // or did an agent adopt it that has ended since?
			gone, err = s.options.Cluster.Gone(ctx, s.options.Agent)
			gone = !gone
		}
		switch {
		case err != nil:
			return err
		case !gone && written:
			return s.lose(r)
		case !gone:
			return errors.New("another agent has a record of the same job: Pod " + current.Owner.Name)
		}
	}
	s.setVersion(r, current.UID, current.Version)
	return nil
}

// checkPods loses a record if another agent has a Pod of the job. If two agents start the same job,
// each of them creates its Pod before the check, so at most one passes the check.
func (s *Store) checkPods(ctx context.Context, r *recorded) error {
	pods, err := s.options.Cluster.Pods(ctx, r.Record.Job)
	switch {
	case err != nil:
		return NewError(Temporary, err)
	case slices.ContainsFunc(pods, isForeign):
		return s.lose(r)
	}
	return nil
}

// find returns the object with this name, or nil if there is none.
func (s *Store) find(ctx context.Context, resource, name string) (*Object, error) {
	objects, err := s.options.Cluster.List(ctx, resource, Filter{Name: name})
	if err != nil || len(objects) == 0 {
		return nil, err
	}
	return &objects[0], nil
}

func (s *Store) setVersion(r *recorded, uid, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.object.UID, r.object.Version = uid, version
}

func (s *Store) objectFor(r *recorded, next Entry) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := s.key.Encode(r.object.Name, next)
	if err != nil {
		return Object{}, err
	}
	o := Object{
		Resource: r.object.Resource, Name: r.object.Name, UID: r.object.UID, Version: r.object.Version,
		Pool: next.Record.Pool, Job: next.Record.Job, Text: text,
	}
	switch {
	case next.Record.Stage != runtime.RecordHandedOff:
		o.Needed = time.Now().Add(unadoptedTime)
	case next.UID == "":
		o.Needed = time.Now().Add(runtime.LeftoverAge)
	default:
		o.Pod, o.PodUID = next.Pod, next.UID
	}
	return o, nil
}

func objectName(job string) string {
	sum := sha256.Sum256([]byte(job))
	return fmt.Sprintf("pulumi-workflow-record-%x", sum[:10])
}
