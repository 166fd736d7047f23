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

// Executor is a fake of [runtime.Executor] with state. Its jobs follow their [Script] and
// take time, which is virtual in a bubble of testing/synctest; they need no goroutine. The
// fake is both engine and executor, so a test restarts an agent by giving the same Executor
// to the next pool. Methods are safe for concurrent use.
type Executor struct {
	mu            sync.Mutex
	scripts       map[string]Script
	defaultScript Script
	instances     map[string]*instance
	handoffs      map[string]*runtime.Handoff
	late          map[string]int // number of calls of Start that have read the handoff, by job
	events        []Event
	peak          int
	created       int
	fails         func(context.Context, runtime.Tuning) error
	checks        []time.Time
}

// NewExecutor returns an engine on which every job succeeds one second after its start,
// unless [Executor.SetScript] or [Executor.SetDefaultScript] change that.
func NewExecutor() *Executor {
	return &Executor{
		scripts:       map[string]Script{},
		defaultScript: Script{Running: time.Second, OnTerm: runtime.Exit{Code: runtime.CodeFailed}},
		instances:     map[string]*instance{},
		handoffs:      map[string]*runtime.Handoff{},
		late:          map[string]int{},
	}
}

// SetScript sets the script of a job.
func (e *Executor) SetScript(jobID string, script Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scripts[jobID] = script
}

// SetDefaultScript sets the script of jobs without a script of their own.
func (e *Executor) SetDefaultScript(script Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.defaultScript = script
}

// FailWhen makes Check and Start call the function fails and return its error. Check passes the
// settings of the pool, and Start those of the job. The function may block until its context
// ends. FailWhen(nil) removes the function.
func (e *Executor) FailWhen(fails func(context.Context, runtime.Tuning) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails = fails
}

// Checks returns the times of calls of Check, in order.
func (e *Executor) Checks() []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.checks)
}

// Adopt adds an instance that an earlier agent has started, at a time that may be in the
// past, and returns its id.
func (e *Executor) Adopt(job *runtime.Job, started time.Time) (id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(Adopted, job.ID)
	return e.make(job, e.scriptOf(job.ID), started)
}

// Events returns all operations, in order.
func (e *Executor) Events() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

// Operations returns the operations on one job, in order.
func (e *Executor) Operations(jobID string) []Operation {
	var operations []Operation
	for _, event := range e.Events() {
		if event.Job == jobID {
			operations = append(operations, event.Operation)
		}
	}
	return operations
}

// Peak returns the largest number of instances that existed at the same time.
func (e *Executor) Peak() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peak
}

// Present returns the ids of the jobs that have an instance, running or ended. The ids are
// sorted.
func (e *Executor) Present() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var jobs []string
	for _, inst := range e.instances {
		jobs = append(jobs, inst.job.ID)
	}
	slices.Sort(jobs)
	return jobs
}

// Handoff returns the handoff of a job, or nil.
func (e *Executor) Handoff(jobID string) *runtime.Handoff {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.handoffs[jobID]
}

// Check returns the error of the function of [Executor.FailWhen].
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	e.mu.Lock()
	e.checks = append(e.checks, time.Now())
	e.mu.Unlock()
	return e.startError(ctx, tuning)
}

// Sweep removes nothing.
func (e *Executor) Sweep(context.Context, []runtime.InstanceSpec) ([]string, error) { return nil, nil }

func (e *Executor) startError(ctx context.Context, tuning runtime.Tuning) error {
	e.mu.Lock()
	fails := e.fails
	e.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(ctx, tuning)
}

// Start starts an instance, or fails, as the job's script specifies.
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
	setup.Log("Starting a pretended instance")
	created := setup.Measure(runtime.StageCreate)
	if err := sleep(ctx, script.Starting); err != nil {
		return "", fmt.Errorf("start a pretended instance: %w", err)
	}
	created()
	if script.Fail != nil {
		return "", e.failStart(job, script, script.Fail)
	}
	if err := e.startError(ctx, job.Tuning); err != nil {
		return "", err
	}

	text, err := setup.Handoff(ctx, "/")
	if err != nil {
		return "", err
	}
	handoff, err := runtime.ReadHandoff(bytes.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("a real runner rejects the handoff: %w", err)
	}
	e.mu.Lock()
	late := e.late[job.ID]
	e.late[job.ID]++
	e.mu.Unlock()
	if late < len(script.FailLate) {
		return "", e.failStart(job, script, script.FailLate[late])
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, inst := range e.instances {
		if inst.job.ID == job.ID {
			return "", fmt.Errorf("start %s: it exists already", job.ID)
		}
	}
	e.handoffs[job.ID] = handoff
	e.note(StartDone, job.ID)
	return e.make(job, script, time.Now()), nil
}

// failStart returns err, and leaves an ended instance if Remains is set.
func (e *Executor) failStart(job *runtime.Job, script Script, err error) error {
	if script.Remains {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.make(job, Script{RemoveErrors: script.RemoveErrors}, time.Now())
	}
	return err
}

// Follow streams the progress of the job's script.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	inst, err := e.find(id)
	if err != nil {
		return nil, err
	}
	if breaks := inst.script.Breaks; inst.script.FollowErr != nil &&
		(len(breaks) == 0 || time.Now().Before(after(inst.started, breaks[0]))) {
		return nil, inst.script.FollowErr
	}
	return &stream{ctx: ctx, inst: inst, opened: time.Now(), closed: make(chan struct{})}, nil
}

// Wait blocks until the job has ended, or returns the next error of the job's script.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	inst, err := e.find(id)
	if err != nil {
		return runtime.Exit{}, err
	}
	if err := inst.next(&inst.waitErrors); err != nil {
		return runtime.Exit{}, err
	}
	return inst.wait(ctx)
}

// Interrupt makes the job end as its script specifies.
func (e *Executor) Interrupt(_ context.Context, id string) error {
	inst, err := e.find(id)
	if err != nil {
		return err
	}
	e.write(Interrupt, inst.job.ID)
	inst.interrupt()
	return nil
}

// Remove sends a TERM, waits for the grace period, sends a KILL and removes the instance,
// unless the job's script specifies an error or a call that hangs.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	inst, err := e.find(id)
	if errors.Is(err, runtime.ErrNoInstance) {
		return nil
	}
	e.write(Remove, inst.job.ID)
	if err := inst.next(&inst.removeErrors); err != nil {
		e.write(NotEnded, inst.job.ID)
		return err
	}
	if inst.script.Hung {
		err := sleep(ctx, Forever)
		e.write(NotEnded, inst.job.ID)
		return err
	}

	if inst.term() {
		e.write(Term, inst.job.ID)
	}
	bounded, cancel := context.WithTimeout(ctx, grace)
	_, err = inst.wait(bounded)
	cancel()
	if ctx.Err() != nil {
		return fmt.Errorf("end a pretended instance: %w", context.Cause(ctx))
	}
	if err != nil && inst.kill() {
		e.write(Kill, inst.job.ID)
	}
	if err := sleep(ctx, inst.script.Removal); err != nil {
		return fmt.Errorf("remove a pretended instance: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instances[id] == inst {
		delete(e.instances, id)
		e.note(RemoveEnd, inst.job.ID)
	}
	return nil
}

// List returns the instances of an agent.
func (e *Executor) List(ctx context.Context, agent string) ([]runtime.Instance, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()

	var all []runtime.Instance
	for id, inst := range e.instances {
		if inst.job.Agent != agent {
			continue
		}
		found := runtime.Instance{
			ID:         id,
			Pool:       inst.job.Pool,
			PoolName:   inst.job.PoolName,
			Identity:   inst.job.Identity,
			Job:        inst.job.ID,
			WorkflowID: inst.job.WorkflowID,
			Work:       inst.job.Definition.Work,
			Generation: inst.job.Generation,
			Started:    inst.started,
		}
		if inst.job.Kind.Leased() {
			found.Kind = inst.job.Kind
		}
		if inst.script.NeverStarted {
			found.Started, found.Ended = time.Time{}, inst.started // Ended is the time of its creation
		} else if ends, _ := inst.end(); ends.After(time.Now()) {
			found.Running = true
		} else {
			found.Ended = ends
		}
		all = append(all, found)
	}
	slices.SortFunc(all, func(a, b runtime.Instance) int { return a.Started.Compare(b.Started) })
	return all, nil
}

func (e *Executor) scriptOf(jobID string) Script {
	if script, ok := e.scripts[jobID]; ok {
		return script
	}
	return e.defaultScript
}

func (e *Executor) make(job *runtime.Job, script Script, started time.Time) string {
	e.created++
	id := fmt.Sprintf("pretended-%d", e.created)
	e.instances[id] = newInstance(*job, script, started)
	e.peak = max(e.peak, len(e.instances))
	return id
}

func (e *Executor) find(id string) (*instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	inst, ok := e.instances[id]
	if !ok {
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoInstance)
	}
	return inst, nil
}

// note records an operation. The caller holds the lock.
func (e *Executor) note(operation Operation, jobID string) {
	e.events = append(e.events, Event{time.Now(), operation, jobID})
}

// write takes the lock and calls note.
func (e *Executor) write(operation Operation, jobID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(operation, jobID)
}
