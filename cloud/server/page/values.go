package page

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/state"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Session is how long a sign-in is valid.
const Session = 12 * time.Hour

// Source is how a page gets its values. The functions are called concurrently. They return a [*Problem] for
// a mistake of the caller, such as the name of a missing stack. The details of other errors are not shown.
type Source struct {
	// SignIn returns a new session for an access token, or ErrToken. The address is that of the client.
	SignIn func(ctx context.Context, address string, token secret.String) (session secret.String, err error)
	// SignOut ends a session. An unknown session is not an error.
	SignOut func(ctx context.Context, session secret.String) error
	// User returns the name of the user of a session, or "" if the session has ended.
	User func(ctx context.Context, session secret.String) (user string, err error)

	// Deployments returns the newest deployments of the organization, of all stacks: those with a smaller
	// Key than before, or all if it is 0. With active, only those that have not ended.
	Deployments func(ctx context.Context, active bool, before int64) (Deployments, error)
	// Deployment returns one deployment, with a page of its log from a position on: "", or the Next of a Log.
	Deployment func(ctx context.Context, stack StackName, version int64, from string) (Deployment, error)
	// Stacks returns stacks in the order of their names, after a name. Their names contain the text of search.
	Stacks func(ctx context.Context, search string, after StackName) (Stacks, error)
	// Stack returns one stack, with its most recent updates and deployments.
	Stack func(ctx context.Context, stack StackName) (Stack, error)
	// Resources returns resources of the state of a stack, from an index on.
	Resources func(ctx context.Context, stack StackName, from int) (Resources, error)
	// Updates returns updates of a stack, the newest first, after a cursor: "", or the Next of Updates.
	Updates func(ctx context.Context, stack StackName, after string) (Updates, error)
	// Update returns one update by its version or its id, with a page of its events from a position on: "", or
	// the Next of a Log.
	Update func(ctx context.Context, stack StackName, id, from string) (Update, error)
	// Pools returns the agent pools of the organization with their agents.
	Pools func(ctx context.Context) ([]Pool, error)
}

// ErrToken is the error of a sign-in with a token that is unknown, has expired, or is not a user's.
var ErrToken = errors.New("the token is unknown, has expired, or is not a user's")

// Problem is a mistake of the caller, which the page shows.
type Problem struct {
	Code    int // status of the response
	Message string
}

func (p *Problem) Error() string { return p.Message }

func notFound(message string) error { return &Problem{http.StatusNotFound, message} }

// StackName is the full name of a stack.
type StackName struct{ Organization, Project, Name string }

func (n StackName) String() string { return n.Project + "/" + n.Name }

// Path returns the path of the stack's page.
func (n StackName) Path() string {
	return "/" + url.PathEscape(n.Organization) + "/" + url.PathEscape(n.Project) + "/" + url.PathEscape(n.Name)
}

// Deployments is a page of deployments.
type Deployments struct {
	List   []Deployment
	Paused bool  // no deployment is given to an agent
	Active int   // number of all deployments that have not ended
	Next   int64 // the before of the next page; 0 on the last page
}

// Deployment is a deployment. Zero times are those of events that have not happened yet.
type Deployment struct {
	Key       int64 // place in the order of all deployments
	Stack     StackName
	Version   int64
	Operation string
	Status    string // not-started, accepted, running, succeeded, failed, skipped or cancelled
	Pool      string // name; empty before the routing
	Agent     string // host of the agent that runs or ran it; empty if unknown
	Requester string
	Initiator string
	Created   time.Time // when it was queued
	Started   time.Time // when an agent claimed it
	Ended     time.Time

	Steps   []Step   // only of one deployment
	Updates []Update // only of one deployment
	Log     Log      // only of one deployment
}

// Path returns the path of the deployment's page.
func (d Deployment) Path() string {
	return d.Stack.Path() + "/deployments/" + strconv.FormatInt(d.Version, 10)
}

// Step is a step of a deployment.
type Step struct {
	Name           string
	Status         string // as of a Deployment
	Started, Ended time.Time
}

// Log is a page of a log, or of the events of an update.
type Log struct {
	Lines []Line
	Next  string // position after the lines; empty if the log is complete
	More  bool   // there are already lines after these
}

// Line is a line of a log, or the header of a step.
type Line struct {
	Header string // empty for a line
	Time   time.Time
	Text   string
}

// Stacks is a page of stacks.
type Stacks struct {
	List []StackSummary
	Next *StackName // the after of the next page; nil on the last page
}

// StackSummary is a stack in a list.
type StackSummary struct {
	Stack     StackName
	Resources int64
	Updated   time.Time // zero without an update
	Kind      string    // of the last completed update; may be empty
	Result    string    // of that update: succeeded, failed or cancelled
}

// Stack is one stack.
type Stack struct {
	StackSummary
	Version     int64 // of the state
	Created     time.Time
	Pool        string // of its deployment settings; may be empty
	Paused      bool   // its deployments are not given to agents
	Tags        map[string]string
	Outputs     []state.Property
	Config      Config // of the last update
	Updates     []Update
	Deployments []Deployment
}

// Config has the keys of a stack's configuration. Values are not shown.
type Config map[string]struct{ Secret bool }

// Updates is a page of updates.
type Updates struct {
	List []Update
	Next string // empty on the last page
}

// Update is an update of a stack's state, or its preview.
type Update struct {
	Stack     StackName
	ID        string
	Version   int64  // of the stack's state; 0 for a preview and before the start
	Kind      string // update, refresh, destroy, import, rename …
	Preview   bool
	Status    string // not-started, running, succeeded, failed or cancelled
	Requester string
	Message   string
	Created   time.Time
	Started   time.Time
	Ended     time.Time
	Changes   map[string]int64 // number of resources by the kind of change, such as create

	Deployment  int64             // version of the deployment whose job made it, or 0; only of one update
	Environment map[string]string // only of one update
	Log         Log               // only of one update
	Config      Config            // only of one update
}

// Path returns the path of the update's page.
func (u Update) Path() string {
	if u.Version > 0 {
		return u.Stack.Path() + "/updates/" + strconv.FormatInt(u.Version, 10)
	}
	return u.Stack.Path() + "/previews/" + url.PathEscape(u.ID)
}

// Resources is a page of resources.
type Resources struct {
	Total int
	List  []state.Resource
	Next  int // the from of the next page; 0 on the last page
}

// Pool is an agent pool.
type Pool struct {
	ID, Name, Description string
	Default               bool
	Status                string // as of its agent that called last
	Seen                  time.Time
	Agents                []Agent
}

// Agent is an agent of a pool.
type Agent struct {
	Host, IP, PID, Platform, Version string
	Status                           string // online or offline
	Seen                             time.Time
}
