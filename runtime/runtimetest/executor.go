package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Executor is a fake of [runtime.Executor] with state. Its jobs take time, in a
// bubble of testing/synctest virtual time, and do what their [Script] says; no
// goroutine stands behind them. It is the engine and the agent's door to it in
// one, so a test lets an agent restart by giving the same Executor to the next
// pool. Methods are safe for concurrent use.
type Executor struct {
	mu           sync.Mutex
	scripts      map[string]Script
	otherwise    Script
	environments map[string]*environment
	handovers    map[string]*runtime.Handover
	diary        []Event
	peak         int
	made         int
	fails        func(context.Context, runtime.Tuning) error
	checks       []time.Time
}

// NewExecutor makes an engine on which every job succeeds one second after its
// start, unless [Executor.Script] or [Executor.Otherwise] say something else.
func NewExecutor() *Executor {
	return &Executor{
		scripts:      map[string]Script{},
		otherwise:    Script{Running: time.Second, OnTerm: runtime.Exit{Code: runtime.CodeFailed}},
		environments: map[string]*environment{},
		handovers:    map[string]*runtime.Handover{},
	}
}

// Script arranges what becomes of a job.
func (e *Executor) Script(jobID string, script Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scripts[jobID] = script
}

// Otherwise arranges what becomes of jobs that have no script of their own.
func (e *Executor) Otherwise(script Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.otherwise = script
}

// FailWhen makes Check and Start fail with what fails returns of a job's
// settings; nil lets them go on. It may block until its context ends.
func (e *Executor) FailWhen(fails func(context.Context, runtime.Tuning) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails = fails
}

// Checks returns when Check was called, in order.
func (e *Executor) Checks() []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.checks)
}

// Adopt puts an environment there that an earlier agent has started at a time
// that may lie in the past, and returns its id.
func (e *Executor) Adopt(job *runtime.Job, started time.Time) (id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(Adopted, job.ID)
	return e.make(job, e.scriptOf(job.ID), started)
}

// Diary returns what was done, in order.
func (e *Executor) Diary() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.diary)
}

// Deeds returns what was done to one job, in order.
func (e *Executor) Deeds(jobID string) []Deed {
	var deeds []Deed
	for _, event := range e.Diary() {
		if event.Job == jobID {
			deeds = append(deeds, event.Deed)
		}
	}
	return deeds
}

// Peak returns the largest number of environments that there ever were at a
// time.
func (e *Executor) Peak() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peak
}

// Present returns the jobs whose environments are there, running or ended,
// sorted.
func (e *Executor) Present() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var jobs []string
	for _, env := range e.environments {
		jobs = append(jobs, env.job.ID)
	}
	slices.Sort(jobs)
	return jobs
}

// Handover returns what a job was handed over, or nil.
func (e *Executor) Handover(jobID string) *runtime.Handover {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.handovers[jobID]
}

// Check returns what [Executor.FailWhen] has arranged.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	e.mu.Lock()
	e.checks = append(e.checks, time.Now())
	e.mu.Unlock()
	return e.able(ctx, tuning)
}

// able calls the function of FailWhen.
func (e *Executor) able(ctx context.Context, tuning runtime.Tuning) error {
	e.mu.Lock()
	fails := e.fails
	e.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(ctx, tuning)
}

// Start does what the job's script says.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (string, error) {
	e.mu.Lock()
	e.note(Start, job.ID)
	script := e.scriptOf(job.ID)
	e.mu.Unlock()
	id, err := e.start(ctx, job, setup, script)
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.note(NotStart, job.ID)
	}
	return id, err
}

func (e *Executor) start(ctx context.Context, job *runtime.Job, setup *runtime.Setup, script Script) (string, error) {
	setup.Say("Starting a pretended environment")
	if err := pause(ctx, script.Starting); err != nil {
		return "", fmt.Errorf("start a pretended environment: %w", err)
	}
	if script.Fail != nil {
		return "", script.Fail
	}
	if err := e.able(ctx, job.Tuning); err != nil {
		return "", err
	}
	text, err := setup.Handover(ctx, "/")
	if err != nil {
		return "", err
	}
	handover, err := runtime.ReadHandover(bytes.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("a real runner would refuse what it is handed over: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, env := range e.environments {
		if env.job.ID == job.ID {
			return "", fmt.Errorf("start %s: it is there already", job.ID)
		}
	}
	e.handovers[job.ID] = handover
	e.note(StartDone, job.ID)
	return e.make(job, script, time.Now()), nil
}

// Follow streams the progress of the job's script.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	env, err := e.find(id)
	if err != nil {
		return nil, err
	}
	if breaks := env.script.Breaks; env.script.FollowErr != nil && (len(breaks) == 0 || time.Now().Before(after(env.started, breaks[0]))) {
		return nil, env.script.FollowErr
	}
	return &stream{ctx: ctx, env: env, opened: time.Now(), closed: make(chan struct{})}, nil
}

// Wait blocks until the job's script has come to its end.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	env, err := e.find(id)
	if err != nil {
		return runtime.Exit{}, err
	}
	if err := env.nextWaitError(); err != nil {
		return runtime.Exit{}, err
	}
	return env.wait(ctx)
}

// Remove asks, waits, forces and removes, as the job's script lets it.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	env, err := e.find(id)
	if errors.Is(err, runtime.ErrNoEnvironment) {
		return nil
	}
	e.mu.Lock()
	e.note(Remove, env.job.ID)
	if len(env.faults) > 0 {
		fault := env.faults[0]
		env.faults = env.faults[1:]
		e.note(NotEnded, env.job.ID)
		e.mu.Unlock()
		return fault
	}
	e.mu.Unlock()
	if env.script.Hung {
		err := pause(ctx, Forever)
		e.write(NotEnded, env.job.ID)
		return err
	}
	if env.term() {
		e.write(Term, env.job.ID)
	}
	bounded, cancel := context.WithTimeout(ctx, grace)
	_, err = env.wait(bounded)
	cancel()
	if ctx.Err() != nil {
		return fmt.Errorf("end a pretended environment: %w", context.Cause(ctx))
	}
	if err != nil && env.kill() {
		e.write(Kill, env.job.ID)
	}
	if err := pause(ctx, env.script.Removal); err != nil {
		return fmt.Errorf("remove a pretended environment: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.environments[id] == env {
		delete(e.environments, id)
		e.note(RemoveEnd, env.job.ID)
	}
	return nil
}

// List returns the environments of an agent.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []runtime.Found
	for id, env := range e.environments {
		if env.job.Agent != agent {
			continue
		}
		found := runtime.Found{
			ID:         id,
			Pool:       env.job.Pool,
			PoolName:   env.job.PoolName,
			Identity:   env.job.Identity,
			Job:        env.job.ID,
			Subject:    env.job.Subject,
			Generation: env.job.Generation,
			Started:    env.started,
		}
		if ends, _ := env.end(); ends.After(time.Now()) {
			found.Running = true
		} else {
			found.Ended = ends
		}
		all = append(all, found)
	}
	slices.SortFunc(all, func(a, b runtime.Found) int { return a.Started.Compare(b.Started) })
	return all, nil
}

func (e *Executor) scriptOf(jobID string) Script {
	if script, ok := e.scripts[jobID]; ok {
		return script
	}
	return e.otherwise
}

func (e *Executor) make(job *runtime.Job, script Script, started time.Time) string {
	e.made++
	id := fmt.Sprintf("pretended-%d", e.made)
	e.environments[id] = newEnvironment(*job, script, started)
	e.peak = max(e.peak, len(e.environments))
	return id
}

func (e *Executor) find(id string) (*environment, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	env, ok := e.environments[id]
	if !ok {
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoEnvironment)
	}
	return env, nil
}

func (e *Executor) note(deed Deed, jobID string) {
	e.diary = append(e.diary, Event{time.Now(), deed, jobID})
}

func (e *Executor) write(deed Deed, jobID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(deed, jobID)
}
