package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/claims"
)

const (
	recordValue  = "claim"                  // value of labelRecord
	recordPrefix = "pulumi-workflow-claim-" // prefix of the names of records
	recordKey    = "record"                 // key in the data of an object

	// recordTime is how long a record is kept if its job has not run and no agent adopts the
	// record. Then any agent of the namespace sweeps it.
	recordTime = 24 * time.Hour

	// Intervals between two lists of the records of other agents: if the last list had such records
	// (recordRecheck), and if it had none.
	recordRecheck  = 10 * time.Second
	recordInterval = time.Minute
)

// errRecordLost is returned for a record that another agent has adopted. The job is that
// agent's, so this agent must neither start nor report it.
var errRecordLost = fmt.Errorf("another agent has adopted the job, because this agent's own Pod no longer exists: %w",
	runtime.ErrGone)

// errForeignRecord is returned for a job of which another agent has a record.
var errForeignRecord = errors.New("another agent has a record of the same job")

// journal is the [runtime.Journal] of one pool. A record is a ConfigMap or a Secret in the
// namespace of the pool's Pods.
type journal struct {
	executor *Executor
	pool     string // key of the pool

	mu       sync.Mutex
	key      claims.Key
	resource string // of new records
	entries  map[string]*recorded
	listed   time.Time // last list of AdoptRecords
	foreign  bool      // that list had records of other agents

	// uids of records
	unreadable map[types.UID]bool // the log has a warning that they cannot be read
	unresolved map[types.UID]bool // it is unknown whether this agent has adopted them
}

// recorded is one record. Calls about one job do not overlap, except calls that only read or change
// fields. The journal's lock guards the fields.
type recorded struct {
	claims.Entry
	resource string // empty if the job has no object
	name     string
	uid      types.UID
	version  string
	unsure   bool // the object may exist, although Add has returned an error
	tied     bool // the cluster deletes the object with the Pod
	podGone  bool
	stale    bool // a change of the stage failed, so the stored stage is unknown
	lost     bool // another agent has adopted the record
}

// Journal returns a journal in the cluster for the executor's pool, which has this key. It adopts
// records of agents that no longer exist ([runtime.RecordAdopter]), and uses changed credentials for
// new records ([runtime.JournalTuner]). The executor must own its Pods, see Owned. Journal returns
// false if the pool cannot protect the tokens of jobs; with OIDC credentials, it logs the effect and
// the cure.
func (e *Executor) Journal(pool string, tuning runtime.Tuning) (runtime.Journal, bool) {
	j := &journal{
		executor: e, pool: pool, entries: map[string]*recorded{},
		unreadable: map[types.UID]bool{}, unresolved: map[types.UID]bool{},
	}
	j.Tune(tuning)
	if j.resource == "" {
		if tuning.OIDCTokenFile != "" {
			e.log.Info("jobs are recorded in the state folder, which is lost with the agent's pod",
				"reason", "a pool with OIDC credentials can store the tokens of its jobs in Secrets only",
				"effect", "a job that is claimed and not started when the pod is lost ends when the service gives up",
				"cure", "set kubernetes.handoff to secret")
		}
		return nil, false
	}
	e.records.Store(j)
	return j, true
}

// Tune sets the credentials and the settings for records that are written from now on.
func (j *journal) Tune(tuning runtime.Tuning) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.key = claims.NewKey(tuning.Token)
	switch {
	case tuning.Instance.Kubernetes.Handoff == handoffSecret:
		j.resource = secrets
	case j.key.Seals():
		j.resource = configMaps
	}
}

// Add creates the object of a record.
func (j *journal) Add(ctx context.Context, record runtime.Record) error {
	r := &recorded{Entry: claims.Entry{Record: record}, name: recordName(record.Job)}
	j.mu.Lock()
	if before := j.entries[record.Job]; before != nil && before.resource == j.resource {
		r.uid, r.version = before.uid, before.version
	}
	resource := j.resource
	r.resource, j.entries[record.Job] = resource, r
	j.mu.Unlock()
	err := j.save(ctx, r, r.Entry)
	if isNotFound(err) { // an earlier record that the cluster has deleted with its Pod
		r.uid, r.version = "", ""
		err = j.save(ctx, r, r.Entry)
	}
	if err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		r.unsure = temporary(err) && !errors.Is(err, errForeignRecord)
		if !r.unsure {
			r.resource = ""
		}
		return j.executor.explainObject("create", resource, err)
	}
	return nil
}

// SetStage replaces the object of a record. From the handoff on, the Pod is its owner, so that the
// cluster deletes both. The stage reported is not stored: if an agent ends directly before or
// directly after its report, the next agent must find out in both cases what the service knows.
func (j *journal) SetStage(ctx context.Context, job string, stage runtime.RecordStage) error {
	// Find the record.
	j.mu.Lock()
	r := j.entries[job]
	if r == nil {
		j.mu.Unlock()
		return fmt.Errorf("set the stage of job %s: %w", job, runtime.ErrNoRecord)
	}
	next := r.Entry
	lost := r.lost
	stored := r.resource == "" || stage == runtime.RecordReported || next.Record.Stage == stage && !r.stale
	next.Record.Stage = stage
	if stored && !lost {
		r.Entry = next
	}
	j.mu.Unlock()
	switch {
	case lost:
		return errRecordLost
	case stored:
		return nil
	}

	// Replace the object.
	if stage == runtime.RecordClaimed {
		next.Pod, next.UID = "", ""
	}
	err := j.save(ctx, r, next)
	switch {
	case isNotFound(err) && stage == runtime.RecordClaimed: // the cluster has deleted it with the Pod
		r.uid, r.version = "", ""
		err = j.save(ctx, r, next)
	case isNotFound(err):
		err = j.checkDeleted(ctx, r)
	}
	j.mu.Lock()
	r.stale = err != nil
	j.mu.Unlock()
	if err != nil {
		return fmt.Errorf("set the stage of job %s: %w", job, err)
	}
	return nil
}

// SetProgress changes the progress in memory. The object gets the progress with the next stage.
func (j *journal) SetProgress(job string, progress runtime.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.entries[job]; r != nil {
		r.Record.Progress = progress
	}
}

// Remove deletes the object of a record, unless the cluster deletes it with the Pod.
func (j *journal) Remove(ctx context.Context, job string) error {
	j.mu.Lock()
	r := j.entries[job]
	if r == nil || r.resource == "" || r.tied && r.podGone {
		delete(j.entries, job)
		j.mu.Unlock()
		return nil
	}
	lost := r.lost
	j.mu.Unlock()
	if lost {
		return errRecordLost
	}
	if err := j.delete(ctx, r); err != nil {
		return fmt.Errorf("remove the record of job %s: %w", job, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.entries, job)
	return nil
}

// List returns the records of this agent's Pod for the pool. It does not read those of other
// pools, whose jobs may be starting. It fails if it cannot find out whether the job of a record
// may have run.
func (j *journal) List(ctx context.Context) ([]runtime.Record, error) {
	e := j.executor
	selector := recordSelector(e.self) + "," + labelOwner + "=" + labelValue(e.self.owner.Name) +
		"," + labelPool + "=" + labelValue(j.pool)
	var all []runtime.Record
	for _, resource := range []string{configMaps, secrets} {
		objects, err := e.client.records(ctx, resource, e.namespace, selector)
		if resource == secrets && apierrors.IsForbidden(err) {
			continue // then the agent has no records in Secrets
		}
		if err != nil {
			return nil, e.explainObject("list", resource, err)
		}
		for _, o := range objects {
			if ownerOf(o) != e.self.owner {
				continue
			}
			record, err := j.take(ctx, resource, o)
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

// take returns the record in an object of this agent; nil if the object cannot be read. If the
// job's Pod has no handoff, the job has not run, regardless of the stage: only the old agent could
// send the handoff. The Pod is removed next, so take first removes the Pod from the owners of the
// object. If an object carries the handoff, the kubelet may have read it, and the stage stays: see
// completeDelivery.
func (j *journal) take(ctx context.Context, resource string, o object) (*runtime.Record, error) {
	// Decode the object, unless this process has written it.
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.entries {
		if r.name == o.GetName() && r.resource == resource && r.version != "" {
			return new(r.Record), nil
		}
	}
	entry, ok := j.read(resource, o)
	if !ok {
		return nil, nil
	}
	r := &recorded{
		Entry: entry, resource: resource, name: o.GetName(), uid: o.GetUID(), version: o.GetResourceVersion(),
		tied: len(o.GetOwnerReferences()) > 0,
	}
	if entry.Pod != "" {
		// Check whether the Pod has the handoff.
		j.mu.Unlock()
		pod, err := j.executor.client.get(ctx, j.executor.namespace, entry.Pod)
		if err == nil && string(pod.UID) == entry.UID && pod.Annotations[annotationHandoff] == "" &&
			carrierOf(pod) == inAnnotation {
			entry.Record.Stage, entry.Pod, entry.UID = runtime.RecordClaimed, "", ""
			err = j.save(ctx, r, entry)
		}
		j.mu.Lock()
		if err != nil && !isNotFound(err) {
			return nil, j.executor.explain("find the Pod of a recorded job", err)
		}
	}
	j.entries[entry.Record.Job] = r
	return new(r.Record), nil
}

// decode returns the entry in an object. It accepts only sealed entries from ConfigMaps, because
// more users may write ConfigMaps. The caller holds the lock.
func (j *journal) decode(resource string, o object) (claims.Entry, error) {
	if resource == configMaps && !j.key.Seals() {
		return claims.Entry{}, claims.ErrSealed
	}
	return j.key.Decode(o.GetName(), recordText(o))
}

// save stores a new entry of a record. It retries temporary errors until ctx ends.
func (j *journal) save(ctx context.Context, r *recorded, next claims.Entry) error {
	for delay := createRetry; ; delay = min(2*delay, createRetryMax) {
		// Send the object.
		o, err := j.object(r, next)
		if err != nil {
			return err
		}
		stored, err := j.executor.client.storeObject(ctx, r.resource, o)

		// Store the result, or retry.
		switch {
		case err == nil:
			j.mu.Lock()
			defer j.mu.Unlock()
			next.Record.Progress = r.Record.Progress
			r.Entry, r.uid, r.version = next, stored.GetUID(), stored.GetResourceVersion()
			r.tied, r.unsure = len(o.GetOwnerReferences()) > 0, false
			return nil
		case (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) && !fromProxy(err):
			if err := j.refresh(ctx, r); err != nil {
				return err
			}
			delay = createRetry / 10
		case !temporary(err):
			return err
		}
		if !sleep(ctx, delay) {
			return err
		}
	}
}

// refresh reads the version of a record that this agent may replace.
func (j *journal) refresh(ctx context.Context, r *recorded) error {
	// Find the object.
	e := j.executor
	selector := managedSelector + "," + labelRecord + "=" + recordValue +
		"," + labelJob + "=" + labelValue(r.Record.Job)
	objects, err := e.client.records(ctx, r.resource, e.namespace, selector)
	if err != nil {
		return err
	}
	found := slices.IndexFunc(objects, func(o object) bool { return o.GetName() == r.name })
	if found < 0 {
		r.uid, r.version = "", ""
		return nil
	}

	// Check its owner.
	current, known := objects[found], r.version != ""
	if o := ownerOf(current); o != e.self.owner {
		gone, err := e.ownerGone(ctx, o)
		switch {
		case known:
			j.mu.Lock()
			r.lost = true
			j.mu.Unlock()
			return errRecordLost
		case err != nil:
			return err
		case !gone:
			return fmt.Errorf("%w: Pod %s", errForeignRecord, o.Name)
		}
	}
	r.uid, r.version = current.GetUID(), current.GetResourceVersion()
	return nil
}

// delete deletes the object of a record, if it still belongs to this agent.
func (j *journal) delete(ctx context.Context, r *recorded) error {
	for delay := createRetry; ; delay = min(2*delay, createRetryMax) {
		err := error(nil)
		if r.version == "" {
			if err = j.refresh(ctx, r); err == nil && r.version == "" {
				return nil
			}
		}
		if err == nil {
			err = j.executor.client.deleteRecord(ctx, r.resource, j.executor.namespace, r.name, r.uid, r.version)
		}
		switch {
		case err == nil || isNotFound(err):
			return nil
		case apierrors.IsConflict(err) && !fromProxy(err):
			if err := j.refresh(ctx, r); err != nil {
				return err
			}
		case errors.Is(err, errRecordLost), errors.Is(err, errForeignRecord), !temporary(err), !sleep(ctx, delay):
			return j.executor.explainObject("delete", r.resource, err)
		}
	}
}
