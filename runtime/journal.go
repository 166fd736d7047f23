package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Journal keeps a [Record] of each job that this agent has claimed, so that a restarted
// agent finishes or reports each of them. Methods are safe for concurrent use.
type Journal interface {
	// Add stores the record of a job that was just claimed, and replaces an earlier record
	// of the job. The record is durable when Add returns. After an error the record may or
	// may not be stored. A pool calls Add before it does anything else for the job.
	Add(ctx context.Context, record Record) error

	// SetStage changes the stage of a record. [RecordHandedOff] is durable when SetStage
	// returns; another stage may be lost in a crash. After an error the stored stage is
	// unknown. SetStage returns [ErrNoRecord] if the job has no record.
	SetStage(ctx context.Context, job string, stage RecordStage) error

	// SetProgress changes the progress of a record. It is cheap, and the change may be lost
	// in a crash. It returns no error, and has no effect if the job has no record.
	SetProgress(job string, progress Progress)

	// Remove removes a record with its tokens. It returns nil if there is no record.
	Remove(ctx context.Context, job string) error

	// List returns the records of this agent for all its pools, the oldest claim first. A
	// record that is damaged, or of another version, is not returned and is no error.
	List(ctx context.Context) ([]Record, error)
}

// RecordAdopter is an optional interface of a [Journal] that several agents share. Its
// records outlive the agents.
type RecordAdopter interface {
	// AdoptRecords takes over the records of agents that no longer exist, and returns
	// them. If several agents call it, only one of them gets each record. Mine reports
	// whether to adopt for the pool with this key. Each pool calls AdoptRecords after
	// [Adopter].AdoptOrphans, so it must be cheap if there is nothing to adopt. If records may
	// be missing, it returns an error: the record of an adopted instance may be one of them.
	AdoptRecords(ctx context.Context, mine func(pool string) bool) ([]Record, error)
}

// JournalTuner is an optional interface of a [Journal] whose records depend on the
// credentials of its pool.
type JournalTuner interface {
	// Tune sets the tuning for records that are added from now on. It does not block.
	Tune(Tuning)
}

// Record is a claimed job in a [Journal]. It contains what an agent needs to start the job
// or to report its outcome.
type Record struct {
	Job        string // id
	WorkflowID string
	Kind       Kind
	Token      secret.String
	OIDC       secret.String
	Pool       string // key of the pool that claimed the job
	PoolName   string
	Identity   Identity // of the pool
	Generation uint64
	CA         string // PEM certificates to trust in addition to the system's; may be empty
	Claimed    time.Time

	// Restarts is how often in a row agents have started the job again because an earlier one had ended
	// before it created an instance.
	Restarts int

	Stage    RecordStage
	Progress Progress // last report that the service has accepted, as far as it was recorded

	// Instance is the id of the instance that got the handoff, in a record that a journal returns.
	// It is empty if the journal does not know the instance.
	Instance string
}

// RecordStage is how far a journalled job has come.
type RecordStage string

// The stages of a record, in order. A job that is started again goes back to the first.
const (
	RecordClaimed   RecordStage = "claimed"    // nothing of the job has run
	RecordHandedOff RecordStage = "handed_off" // the job may have run
	RecordReported  RecordStage = "reported"   // the service knows the outcome, or needs none
)

// Valid reports whether the stage is one of the constants.
func (s RecordStage) Valid() bool {
	return s == RecordClaimed || s == RecordHandedOff || s == RecordReported
}

// Format writes only the job's id and stage, for every verb.
func (r Record) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "record of job %s (%s)", r.Job, r.Stage) }

// recordTimeout is the RequestTimeout of a pool that is not configured: the default of the
// key request_timeout.
const recordTimeout = 30 * time.Second

// Spec returns the spec of a pool that finishes the job when the pool that claimed it is no
// longer configured. The settings come from the record, or are defaults.
func (r Record) Spec() PoolSpec {
	tuning := Tuning{CA: r.CA, RequestTimeout: recordTimeout}
	return PoolSpec{Name: r.PoolName, Identity: r.Identity, Tuning: tuning, Leftover: true}
}

// NewRecord returns the record of a job that was just claimed.
func NewRecord(job *Job, claimed time.Time) Record {
	return Record{
		Job: job.ID, WorkflowID: job.WorkflowID, Kind: job.Kind, Token: job.Token, OIDC: job.OIDC,
		Pool: job.Pool, PoolName: job.PoolName, Identity: job.Identity, Generation: job.Generation,
		CA: job.Tuning.CA, Claimed: claimed, Stage: RecordClaimed,
	}
}

// ErrNoRecord is returned for a job without a record in a [Journal].
var ErrNoRecord = errors.New("the job has no record")

// NoJournal is a Journal that keeps nothing.
type NoJournal struct{}

// Add implements [Journal].
func (NoJournal) Add(context.Context, Record) error { return nil }

// SetStage implements [Journal].
func (NoJournal) SetStage(context.Context, string, RecordStage) error { return nil }

// SetProgress implements [Journal].
func (NoJournal) SetProgress(string, Progress) {}

// Remove implements [Journal].
func (NoJournal) Remove(context.Context, string) error { return nil }

// List implements [Journal].
func (NoJournal) List(context.Context) ([]Record, error) { return nil, nil }
