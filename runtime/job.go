package runtime

import (
	"encoding/json"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Kind is a kind of workflow, in the words of enabled_workflow_types.
type Kind string

// The kinds of workflow.
const (
	Deployment       Kind = "deployment"
	InsightsScan     Kind = "insights_scan"
	PolicyEvaluation Kind = "policy_evaluation"
)

// Job is one claimed piece of work. It is frozen at the claim: later edits of
// the configuration do not reach it, except for what [Tuning] marks as live.
// Only Definition is filled in afterwards, once.
type Job struct {
	ID         string        // names the job in every call about it
	Kind       Kind          //
	Subject    string        // what it works on: for a deployment, the deployment's id
	Token      secret.String // good for this job's calls only
	OIDC       secret.String // for cloud providers; often empty
	Pool       string        // key of the pool that claimed it
	PoolName   string        // its name
	Identity   Identity      // of the pool
	Agent      string        // the agent that claimed it
	Generation uint64        // of the configuration it was claimed under
	Service    string        // base URL, as the job shall reach it, without a trailing slash
	Tuning     Tuning        // as it was at the claim
	Definition Definition    //
}

// Definition is what a job is made of, as far as the agent must know it. The
// steps stay in Raw: they are the runner's business.
type Definition struct {
	Image        Image
	OS           string        // "linux" when the service says nothing
	Architecture string        // as Go names it; empty when the service says nothing
	Timeout      time.Duration // of the whole job; 0 is no limit
	Steps        int           // how many there are, step 0 included
	Raw          json.RawMessage
}

// Image is the container image a job asks for.
type Image struct {
	Reference string
	Default   bool          // the service leaves the choice to the agent
	Username  string        // login at the image's registry; empty is none
	Password  secret.String //
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

// final reports whether nothing can follow.
func (s Status) final() bool { return s == Succeeded || s == Failed }

// Phase is where a job is in its life here.
type Phase string

// The phases of a job, in order.
const (
	Claimed  Phase = "claimed"
	Starting Phase = "starting"
	Started  Phase = "running"
	Stopping Phase = "stopping"
	Done     Phase = "done"
)
