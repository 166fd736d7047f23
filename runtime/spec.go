package runtime

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// PoolSpec is the desired state of one pool. It is immutable: [Pool.Tune] replaces it.
type PoolSpec struct {
	Name       string
	Identity   Identity
	Tuning     Tuning
	Generation uint64 // of the configuration

	// Leftover marks a pool that is not configured: only its name and identity are known,
	// from the labels of its instances. Such a pool drains.
	Leftover bool
}

// Key returns the key of the pool: its name and a digest of its identity. A change of the
// identity gives another key; a change of the tuning does not.
func (s PoolSpec) Key() string {
	sum := sha256.Sum256([]byte(s.Identity.Text()))
	return s.Name + "-" + hex.EncodeToString(sum[:4])
}

// Identity identifies a pool. It does not change while a pool runs: after an edit of the
// identity, the old pool drains and a new one starts.
type Identity struct {
	Service      string // base URL without a trailing slash
	Organization string
	PoolID       string
	Credentials  string // kind: "token" or "oidc"
	Target       string // deploy_target
	Namespace    string `json:",omitempty"` // of Pods; empty is the agent's namespace; other targets have none
	Context      string `json:",omitempty"` // of the kubeconfig; empty is the agent's cluster or the current context
}

// Text returns the identity in JSON, for a label of an instance.
func (i Identity) Text() string {
	text, _ := json.Marshal(i) // strings: never fails
	return string(text)
}

// ParseIdentity returns the identity in the label of an instance of a target. A damaged label
// gives an identity that no configured pool has.
func ParseIdentity(label, target string) Identity {
	var i Identity
	if json.Unmarshal([]byte(label), &i) != nil {
		i = Identity{}
	}
	i.Target = cmp.Or(i.Target, target)
	return i
}

// Location returns the location of the pool's instances: the target, and after colons the
// namespace and the context, if these are set. It is valid as a file name.
func (i Identity) Location() string {
	switch {
	case i.Context != "":
		return i.Target + ":" + i.Namespace + ":" + url.PathEscape(i.Context)
	case i.Namespace != "":
		return i.Target + ":" + i.Namespace
	}
	return i.Target
}

// ParseLocation returns the target, the namespace and the context of an
// [Identity.Location]; other fields are empty.
func ParseLocation(location string) Identity {
	parts := append(strings.SplitN(location, ":", 3), "", "")
	context, err := url.PathUnescape(parts[2])
	if err != nil {
		context = parts[2]
	}
	return Identity{Target: parts[0], Namespace: parts[1], Context: context}
}

// Tuning is the settings that can change while a pool runs. New values are used from the
// next turn of the pool's loop. A job keeps the Instance of its claim.
type Tuning struct {
	Token           secret.String // static pool token; empty with OIDC
	OIDCTokenFile   string
	OIDCSum         string        // digest of that file; a new one causes a new exchange
	TokenExpiration time.Duration // requested at an exchange; 0 lets the service decide
	CA              string        // PEM certificates to trust in addition to the system's, also in jobs; may be empty

	Kinds           []Kind        // that may be claimed
	Paused          bool          // by the operator: claim no jobs
	MaxJobs         int           // deployments at a time, at least 1
	SingleRun       bool          // end after one job, counted from when this is switched on
	IdleTimeout     time.Duration // time without a job after which a single run ends; 0 is no limit
	LeasedWork      LeasedWork    // when Kinds other than deployments are leased; empty is off
	MaxLeased       int           // jobs of each leased kind at a time, in addition to MaxJobs
	PollingInterval time.Duration
	PollingOverride bool          // ignore Retry-After on polls
	StatusInterval  time.Duration // of the status polls of a job; 0 for a leftover pool, which has no credentials
	CancelGrace     time.Duration // of an interrupted step before it gets a SIGTERM; 0 sends no interrupt

	RequestTimeout  time.Duration // of one attempt of one call
	RetryCount      int           // attempts after the first
	RetryWait       time.Duration // before the first retry
	RetryMaxWait    time.Duration // before each later retry at most
	BreakerFailures int           // failed polls in a row, retries included, that open the circuit breaker
	BreakerTimeout  time.Duration // for which the circuit breaker stays open

	Instance InstanceSpec
}

// SameCredentials reports whether t and other authenticate with the same credentials. A
// service that rejects or throttles calls with one of them does the same with the other.
func (t Tuning) SameCredentials(other Tuning) bool {
	return t.Token == other.Token && t.OIDCTokenFile == other.OIDCTokenFile && t.OIDCSum == other.OIDCSum
}

// SameStart reports whether t and other start jobs with the same settings.
func (t Tuning) SameStart(other Tuning) bool {
	return t.CA == other.CA && reflect.DeepEqual(t.Instance, other.Instance)
}

// InstanceSpec is the settings for the instances of jobs.
type InstanceSpec struct {
	WorkingDirectory      string   // of the runner programs
	SharedVolumeDirectory string   // parent of the directories that jobs mount; may be empty
	PullImage             bool     // pull the image for each job
	OverrideImage         string   // used in place of the image that the service requests
	Forward               []string // names of the agent's variables that jobs get
	LocalLog              bool     // write the output of steps to the log of the instance too
	Docker                Docker
	Kubernetes            Kubernetes
}

// Docker is the settings for containers.
type Docker struct {
	Network      string   // empty is the engine's default
	Volumes      []string // in the engine's notation, source:target[:options]
	ExtraHosts   []string // name:address
	Memory       int64    // limit in bytes; 0 is no limit
	CPUs         float64  // limit in cores; 0 is no limit
	PidsLimit    int      // limit of processes and threads; 0 is no limit
	StorageLimit int64    // limit in bytes of what is written to the container, without volumes; 0 is no limit
	User         string   // user[:group], names or numbers; empty is the image's
	Labels       []string // name=value, in addition to the agent's own

	AllowNewPrivileges bool // for programs with the setuid bit or file capabilities
}

// Kubernetes is the settings for Pods. The namespace is part of a pool's Identity.
type Kubernetes struct {
	Image            string         // that contains the runner; empty is that of the agent's release
	ImagePullPolicy  string         // of that image; empty is the cluster's default
	ServiceAccount   string         // of the Pod; empty is the namespace's default, without a token
	Requests         Resources      // of the job's container
	Limits           Resources      // of the job's container
	StartTimeout     time.Duration  // for the Pod to start; 0 is the executor's default
	ImagePullTimeout time.Duration  // for which the pull of an image may fail; 0 is the executor's default
	Handoff          string         // how the handoff is sent: sealed or secret; empty is sealed
	KeepPods         string         // whose Pods are kept for a while after the job: failed or all; if empty, no
	QPS              int            // requests per second to the API server; 0 is the executor's default
	Template         []byte         // strategic merge patch on the Pod, in JSON; may be empty
	TemplateRules    []TemplateRule // merged after Template, in order
}

// Resources are amounts of resources, each a quantity of Kubernetes. Empty is no amount.
type Resources struct {
	CPU              string
	Memory           string
	EphemeralStorage string
}

// TemplateRule is a patch for the Pods of the jobs whose names match all four patterns. An empty
// pattern matches every name; the others have the form of [path.Match].
type TemplateRule struct {
	Organization, Project, Stack, Operation string

	Patch []byte // strategic merge patch on the Pod, in JSON
}

// Matches reports whether the rule applies to a job with this work.
func (r TemplateRule) Matches(work Work) bool {
	return matches(r.Organization, work.Organization) && matches(r.Project, work.Project) &&
		matches(r.Stack, work.Stack) && matches(r.Operation, work.Operation)
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || ok && err == nil
}
