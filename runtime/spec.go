package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// PoolSpec is one pool as it is wanted. It is a value: pools are given new ones.
type PoolSpec struct {
	Name       string
	Identity   Identity
	Tuning     Tuning
	Generation uint64 // of the configuration it comes from

	// Leftover marks a pool that no configuration describes: only its name and
	// identity are known, from the labels of its instances. Such a pool drains.
	Leftover bool
}

// Key names the pool among all that run: its name and a digest of its identity.
// So a changed identity is one key gone and one key new, and a changed tuning
// is the same key with a new value.
func (s PoolSpec) Key() string {
	text, err := json.Marshal(s.Identity)
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(text)
	return s.Name + "-" + hex.EncodeToString(sum[:4])
}

// Identity is what makes a pool this pool and no other. A change of it is never
// applied to a running pool: the old one drains and a new one starts.
type Identity struct {
	Service      string // base URL without a trailing slash
	Organization string
	PoolID       string
	Credentials  string // kind: "token" or "oidc"
	Target       string // deploy_target
	Namespace    string `json:",omitempty"` // of Pods; empty is the agent's own, and for other targets
	Context      string `json:",omitempty"` // of the kubeconfig; empty is the agent's own cluster or the current one
}

// Location names where the instances of the pool are: its target, and behind colons
// the namespace and the context if it names them. It can be the name of a file.
func (i Identity) Location() string {
	switch {
	case i.Context != "":
		return i.Target + ":" + i.Namespace + ":" + url.PathEscape(i.Context)
	case i.Namespace != "":
		return i.Target + ":" + i.Namespace
	}
	return i.Target
}

// Located returns the target, the namespace and the context of a [Identity.Location];
// other fields are empty.
func Located(location string) Identity {
	parts := append(strings.SplitN(location, ":", 3), "", "")
	context, err := url.PathUnescape(parts[2])
	if err != nil {
		context = parts[2]
	}
	return Identity{Target: parts[0], Namespace: parts[1], Context: context}
}

// Tuning is everything that can change under a running pool. Fields are used
// from the next turn of the loop, except those under Place, which a job keeps
// as they were at its claim.
type Tuning struct {
	Token           secret.String // static pool token; empty with OIDC
	OIDCTokenFile   string
	OIDCSum         string        // changes with the content of that file, so that it is exchanged anew
	TokenExpiration time.Duration // asked for at an exchange; 0 lets the service decide
	CA              string        // PEM certificates that are trusted beside the system's, by the agent and in jobs; empty is none

	Kinds           []Kind        // that may be claimed
	MaxJobs         int           // at a time, at least 1
	SingleRun       bool          // end after one finished job, counted from when this is switched on
	PollingInterval time.Duration //
	PollingOverride bool          // ignore Retry-After on polls
	StatusInterval  time.Duration // between two questions whether a job is wanted; 0 asks nothing, as a leftover pool has no credentials

	RequestTimeout  time.Duration // of one attempt of one call
	RetryCount      int           // attempts after the first
	RetryWait       time.Duration // before the first repetition
	RetryMaxWait    time.Duration // ceiling of all later ones
	BreakerFailures int           // polls that failed in a row, repetitions included, until polling pauses
	BreakerTimeout  time.Duration // length of that pause

	Place Place
}

// SameCredentials reports whether a service that refuses the one, or wants to
// hear less of it, would do so with the other.
func (t Tuning) SameCredentials(other Tuning) bool {
	return t.Token == other.Token && t.OIDCTokenFile == other.OIDCTokenFile && t.OIDCSum == other.OIDCSum
}

// SameStart reports whether jobs are started with the same settings.
func (t Tuning) SameStart(other Tuning) bool {
	return t.CA == other.CA && reflect.DeepEqual(t.Place, other.Place)
}

// Place is how a job's environment is made.
type Place struct {
	WorkingDirectory      string   // where the runner programs lie
	SharedVolumeDirectory string   // parent of the directories that are mounted into jobs; empty is none
	PullImage             bool     // pull the image for each job
	OverrideImage         string   // used in place of the image the service asks for
	Forward               []string // names of the agent's variables that go along
	Docker                Docker
	Kubernetes            Kubernetes
}

// Docker is how a container is made.
type Docker struct {
	Network    string   // empty is the engine's default
	Volumes    []string // in the engine's notation, source:target[:options]
	ExtraHosts []string // name:address
	Memory     int64    // limit in bytes; 0 is none
	CPUs       float64  // limit in cores; 0 is none
	User       string   // user[:group], names or numbers; empty is the image's
	Labels     []string // name=value, beside the agent's own
}

// Kubernetes is how a Pod is made. The namespace is part of a pool's Identity.
type Kubernetes struct {
	Image           string        // from which the runner is copied; empty is that of the agent's release
	ImagePullPolicy string        // of that image; empty is the cluster's default
	ServiceAccount  string        // of the Pod; empty is the namespace's default, without a token
	CPU             string        // request, a quantity; empty is none
	Memory          string        // request, a quantity; empty is none
	StartTimeout    time.Duration // for the Pod to start; 0 is the executor's default
	Runner          string        // how the runner gets into the Pod: copy or image; empty is copy
	Handoff         string        // how the handoff is sent: sealed, secret or configmap; empty is sealed
	KeepFailedPods  bool          // keep the Pods of failed jobs for a while
	Template        []byte        // strategic merge patch on the Pod, in JSON; empty is none
}
