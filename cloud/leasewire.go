package cloud

// The calls about leased work (scans and policy evaluations) are an extension of cmwa-cloud.
// Two facts are known about Pulumi Cloud: the path of acquire, and its response 204 if there is
// no work.

// The capability of a service with this extension, as GET /api/capabilities lists it.
const (
	LeaseCapability = "cmwa-leases"
	LeaseVersion    = 1
)

// Capabilities is the response of GET /api/capabilities.
type Capabilities struct {
	Capabilities []Capability `json:"capabilities"`
}

// Capability is one capability of a service.
type Capability struct {
	Name    string `json:"capability"`
	Version int    `json:"version"`
}

// AcquireRequest is the body of POST /api/background-activities/worker/lease/acquire.
type AcquireRequest struct {
	Kinds []string `json:"cmwaKinds"` // that the agent can carry out; if empty, it gets no lease
}

// Lease is the response of acquire: a job with a lease. It contains tokens in plain text.
// TypeSpecificID is the id of the activity.
type Lease struct {
	Poll
	Kind string `json:"cmwaKind"`

	LeaseID      string  `json:"cmwaLeaseID"`
	LeaseToken   string  `json:"cmwaLeaseToken"`   // for the calls about the lease
	LeaseSeconds float64 `json:"cmwaLeaseSeconds"` // until the lease expires
}

// Renewal is the response of begin and renew.
type Renewal struct {
	LeaseSeconds float64 `json:"cmwaLeaseSeconds"` // until the lease expires
}

// The results of leased work.
const (
	ResultSucceeded = "succeeded"
	ResultFailed    = "failed" // the service does not lease the work again
	ResultRetry     = "retry"  // the service may lease the work again
)

// LeaseResult is the body of complete.
type LeaseResult struct {
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"` // for people
}
