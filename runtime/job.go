package runtime

import (
	"encoding/json"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Kind is a kind of workflow, as enabled_workflow_types names it.
type Kind string

// The kinds of workflow.
const (
	Deployment       Kind = "deployment"
	InsightsScan     Kind = "insights_scan"
	PolicyEvaluation Kind = "policy_evaluation"
)

// Job is one claimed job. It does not change after the claim: later edits of the
// configuration have no effect on it, except for the interval of its status polls.
// Definition is filled in once, after the claim.
type Job struct {
	ID         string // used in each call about the job
	Kind       Kind
	WorkflowID string        // id of what the job works on, such as the deployment
	Token      secret.String // valid for calls about this job only
	OIDC       secret.String // for cloud providers; often empty
	Pool       string        // key of the pool that claimed the job
	PoolName   string
	Identity   Identity // of the pool
	Agent      string   // id of the agent that claimed the job
	Generation uint64   // of the configuration at the claim
	Service    string   // base URL for the job, without a trailing slash
	Tuning     Tuning   // at the claim
	Definition Definition
	Lease      Lease // of a scan or policy evaluation; empty for a deployment
}

// Definition is the definition of a job, as far as the agent needs it. Raw contains the
// steps, which only the runner reads.
type Definition struct {
	Image        Image
	OS           string        // "linux" if the service does not set it
	Architecture string        // as Go names it; empty if the service does not set it
	Timeout      time.Duration // of the whole job; 0 is no limit
	Steps        int           // number of steps, including step 0
	Work         Work
	Raw          json.RawMessage
}

// Image is the container image that a job requests.
type Image struct {
	Reference string
	Default   bool   // the service leaves the choice to the agent
	Username  string // login at the image's registry; empty without a login
	Password  secret.String
}

// Status is the state of one step.
type Status string

// The states of a step. A step that has failed stays failed.
const (
	NotStarted Status = "not-started"
	Running    Status = "running"
	Succeeded  Status = "succeeded"
	Failed     Status = "failed"
)

// Final reports whether the step has ended.
func (s Status) Final() bool { return s == Succeeded || s == Failed }

// Phase is the phase of a job in the agent.
type Phase string

// The phases of a job, in order.
const (
	Claimed  Phase = "claimed"
	Starting Phase = "starting"
	Started  Phase = "running"
	Stopping Phase = "stopping"
	Done     Phase = "done"
)
