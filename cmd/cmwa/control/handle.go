package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Agent is the running agent.
type Agent struct {
	Directory string // for its state; empty if it has none
	Started   time.Time
	Loop      interface {
		Status() reconcile.Status
		Pause(name string) (changed bool)
		Resume(name string) (changed bool)
		StopJob(id string) (found bool)
	}
	Drain  func()              // does what the first TERM does
	Status func() any          // returns the status, which is encoded in JSON
	Plan   func(file File) any // returns what a reload to a file would do, which is encoded in JSON
}

// Handle carries out a request.
func (a Agent) Handle(request Request) Response {
	before := a.Loop.Status()
	switch request.Command {
	case Drain:
		a.Drain()
		response := a.response(a.Loop.Status())
		if response.Changed = !before.Stopping; response.Changed && response.StopAt.IsZero() { // the loop stops soon
			response.StopAt = time.Now().Add(before.Process.ShutdownTimeout)
		}
		return response
	case Pause, Resume:
		return a.setPaused(request.Pool, request.Command == Pause, before)
	case Stop:
		return a.stopJob(request.Job, before)
	case Status:
		return a.withResult(before, a.Status())
	case Plan:
		return a.withResult(before, a.Plan(*request.File))
	}
	return a.response(before)
}

func (a Agent) withResult(before reconcile.Status, result any) Response {
	response := a.response(before)
	text, err := json.Marshal(result)
	if err != nil {
		response.Error = fmt.Sprintf("encode the response: %v", err)
	}
	response.Result = text
	return response
}

// setPaused pauses or resumes a pool, and stores the names of the paused pools.
func (a Agent) setPaused(name string, paused bool, before reconcile.Status) Response {
	// Find the pool. A paused pool can be resumed even if it is no longer configured.
	if names := namesOf(before); !slices.Contains(names, name) && (paused || !before.Paused[name]) {
		response := a.response(before)
		response.Error = unknown(name, names)
		return response
	}

	// Pause the pool before the names are stored, or resume it after they are stored: the
	// pool claims no job in the meantime. The names are also stored if nothing changes, because
	// an earlier command may have failed to store them.
	changed := paused != before.Paused[name]
	if paused {
		a.Loop.Pause(name)
	}
	stored := writePaused(a.Directory, pausedNames(before, name, paused))
	if !paused {
		a.Loop.Resume(name)
	}

	response := a.response(a.Loop.Status())
	response.Changed = changed
	switch {
	case stored != nil && paused:
		response.Warning = fmt.Sprintf("the pause ends when the agent ends, because it cannot be stored: %v", stored)
	case stored != nil:
		response.Warning = fmt.Sprintf("the agent will pause the pool again at its next start, "+
			"because the change cannot be stored: %v", stored)
	}
	return response
}

// stopJob stops the job that a text picks.
func (a Agent) stopJob(text string, before reconcile.Status) Response {
	response := a.response(before)
	var jobs []runtime.JobState
	for _, pool := range before.Pools {
		jobs = append(jobs, pool.Jobs...)
	}
	job, err := Pick(jobs, text, func(j runtime.JobState) []string { return []string{j.ID, j.WorkflowID} })
	switch {
	case err != nil:
		response.Error = err.Error()
	case !a.Loop.StopJob(job.ID):
		response.Error = fmt.Sprintf("job %s has ended: cmwa jobs list has the jobs", printable.QuoteName(text))
	default:
		response.Changed, response.Job = true, job.Work.FullStack()
	}
	return response
}

// pausedNames returns the names of the pools that are paused after one pool is paused or
// resumed.
func pausedNames(before reconcile.Status, name string, paused bool) []string {
	names := slices.Collect(maps.Keys(before.Paused))
	names = slices.DeleteFunc(names, func(other string) bool { return other == name })
	if paused {
		names = append(names, name)
	}
	return names
}

// namesOf returns the names of all pools, sorted and without duplicates.
func namesOf(s reconcile.Status) []string {
	names := slices.Collect(maps.Values(s.Names))
	for _, pool := range s.Pools {
		names = append(names, pool.Spec.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func unknown(name string, names []string) string {
	message := "no pool " + printable.QuoteName(name)
	if best := position.Closest(name, slices.Clone(names)); best != "" {
		message += ": did you mean " + printable.Text(best) + "?"
	}
	const most = 20
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d others", len(names)-most)
	}
	if len(names) == 0 {
		return message + " (the agent has no pools)"
	}
	return message + " (pools: " + printable.Text(strings.Join(names, ", ")) + more + ")"
}

func (a Agent) response(s reconcile.Status) Response {
	r := Response{Started: a.Started.UTC(), StopAt: s.StopAt.UTC(), Pools: []Pool{}}
	for _, pool := range s.Pools {
		r.Pools = append(r.Pools, Pool{Name: pool.Spec.Name, Jobs: len(pool.Jobs)})
	}
	return r
}
