package records

import (
	"context"
	"errors"
	"time"
)

// Resources of the objects that contain records.
const (
	ConfigMaps = "configmaps"
	Secrets    = "secrets"
)

// Cluster sends the requests of a [Store]. A failed request is an [Error].
type Cluster interface {
	// List returns the objects of a resource that contain records and match a filter.
	List(ctx context.Context, resource string, filter Filter) ([]Object, error)

	// Put makes this agent the owner of an object and stores it. It creates an object that
	// has no version, otherwise it replaces that version. It returns the stored object.
	Put(ctx context.Context, o Object) (Object, error)

	// Delete deletes an object, if the object still has this uid and version.
	Delete(ctx context.Context, o Object) error

	// Gone reports whether the Pod of an agent no longer exists or has ended.
	Gone(ctx context.Context, agent Agent) (bool, error)

	// Outdated returns a time. An agent of the group may have ended since, so lists of records
	// that are older than this time are outdated.
	Outdated() time.Time

	// Pods returns the Pods of a job, of every owner.
	Pods(ctx context.Context, job string) ([]Pod, error)
}

// Object is a ConfigMap or a Secret that contains a record.
type Object struct {
	Resource string
	Name     string
	UID      string // empty if the object is not stored
	Version  string // empty if the object is not stored

	Owner    Agent
	Pool     string // key of the pool, or a digest of a key that is not valid in a label
	Job      string
	Text     []byte    // the record, encoded
	Needed   time.Time // when a sweep deletes the object; zero if the cluster deletes it with the Pod
	Pod      string    // with which the cluster deletes the object; empty if there is none
	PodUID   string
	Deleting bool // the object is being deleted
}

// Filter selects objects of records: the one with a name, or else those of a scope and a pool.
type Filter struct {
	Name  string
	Scope Scope
	Pool  string // key of the pool; empty selects those of all pools

	WithoutText bool // do not read the records themselves
}

// Scope selects the owners of objects.
type Scope int

// The scopes.
const (
	OfAll    Scope = iota // every agent of the namespace
	OfGroup               // the agents that adopt each other's jobs
	OfOthers              // the same without this agent
	OfSelf                // this agent
)

// Agent identifies an agent by its Pod.
type Agent struct{ Namespace, Name, UID string }

// Pod is what a record's stage and owner depend on.
type Pod struct {
	Name, UID string
	Foreign   bool // another agent owns the Pod, which is not kept for inspection
	MayRun    bool // the Pod may have its handoff, or has run
}

// Error is the error of a request. Its text is for users.
type Error struct {
	error
	kind ErrorKind
}

// NewError returns an error of a request with this text.
func NewError(kind ErrorKind, text error) *Error { return &Error{text, kind} }

// ErrorKind is what a [Store] needs to know about an error.
type ErrorKind int

// The kinds. Errors of other types are permanent.
const (
	Permanent ErrorKind = iota
	Temporary           // the same request may succeed later
	Missing             // the object does not exist
	Conflict            // the object has another version, or exists already
	Forbidden           // the agent lacks the right
)

// kindOf returns the kind of an error; Permanent if the error is nil.
func kindOf(err error) ErrorKind {
	if failed, ok := errors.AsType[*Error](err); ok {
		return failed.kind
	}
	return Permanent
}
