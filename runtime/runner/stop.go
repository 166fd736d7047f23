package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// stages are the times between the signals to a step, and the requests to cut them short.
type stages struct {
	cancelGrace time.Duration   // between SIGINT and SIGTERM; 0 sends no SIGINT
	grace       time.Duration   // between SIGTERM and SIGKILL
	timeout     timeoutFunc     // starts grace
	interrupted <-chan struct{} // closed when only terminate ends the cancel grace period; may be nil
	terminate   <-chan struct{} // closed to send SIGTERM immediately; may be nil
	forceStop   <-chan struct{} // closed to send SIGKILL immediately; may be nil
	note        func(string)    // adds a message to the log of the step
}

// stopping is the end of one step.
type stopping struct {
	stages
	group   int
	ended   <-chan error // receives when the shell has ended; nil after that
	exit    error        // how the shell ended
	targets interrupter

	followsAgent bool // the agent ends the cancel grace period
}

// stop ends the process group of a step in three stages, and waits for the whole group,
// not only for its leader:
//
//  1. SIGINT to some processes; see interrupter. They have the cancel grace period to end.
//     When they have ended, the other processes have remainingGrace to end.
//  2. SIGTERM to the group. It has the grace period to end.
//  3. SIGKILL to the group.
//
// Pulumi handles SIGINT and SIGTERM in the same way: the first one cancels the operation
// and releases the lock of the stack when the resources in progress are done, and the
// second one ends it immediately. Therefore a pulumi that got SIGINT gets SIGTERM only if it
// has not ended in time. The result is how pulumi ended, empty if it did not run. The error
// means that the shell did not end.
func stop(group int, ended <-chan error, s stages) (pulumi runtime.Pulumi, err error) {
	e := &stopping{stages: s, group: group, ended: ended, targets: newInterrupter(group)}

	// 1. Interrupt.
	late := false
	if s.cancelGrace > 0 {
		late = !e.interrupt()
	}
	ran := e.targets.pulumi
	if !ran && s.cancelGrace == 0 {
		ran = e.targets.findPulumi()
	}

	// 2. and 3. Terminate, and kill.
	killed := false
	if !e.gone() {
		_ = syscall.Kill(-group, syscall.SIGTERM)
		if killed = !e.await(s.grace); killed {
			err = e.kill()
		}
	}

	switch {
	case !ran:
		return "", err
	case killed && (late || s.cancelGrace == 0):
		return runtime.PulumiKilled, err
	case late:
		return runtime.PulumiTerminated, err
	case e.endedBySignal():
		return runtime.PulumiKilled, err // by SIGINT, before it handled signals
	}
	return runtime.PulumiEnded, err
}

// interrupt interrupts processes until none of them is left and the group had remainingGrace
// to end. It returns false if the grace period ends first.
func (e *stopping) interrupt() bool {
	var settled <-chan time.Time // receives when the others had time to end; nil while a process is interrupted
	limit := time.NewTimer(e.cancelGrace)
	defer limit.Stop()
	ticker := time.NewTicker(groupPoll)
	defer ticker.Stop()
	e.followAgent(limit)
	for next := time.Now(); !e.gone() || e.targets.alive(); {
		// Interrupt processes, also those that start later.
		if now := time.Now(); !now.Before(next) {
			next = now.Add(scanPoll)
			e.targets.scan(func(name string) { e.note(e.describeInterrupt(name)) })
			switch waits := e.targets.waits; {
			case waits:
				settled = nil
			case settled == nil && !e.targets.any():
				return true // no process handles an interrupt
			case settled == nil:
				settled = time.After(remainingGrace)
			}
		}
		select {
		case e.exit = <-e.ended:
			e.ended = nil
		case <-ticker.C:
		case <-settled:
			return true
		case <-e.interrupted:
			e.followAgent(limit)
		case <-limit.C:
			return false
		case <-e.terminate:
			e.terminate = nil
			return !e.targets.waits
		case <-e.forceStop:
			return false
		}
	}
	return true
}

// followAgent lets the agent end the cancel grace period, if the agent has requested that.
// The limit of the period is then MaxCancelGrace.
func (e *stopping) followAgent(limit *time.Timer) {
	if closed(e.interrupted) {
		e.interrupted, e.followsAgent = nil, true
		limit.Reset(runtime.MaxCancelGrace)
	}
}

func (e *stopping) describeInterrupt(name string) string {
	if e.followsAgent {
		return fmt.Sprintf("Interrupting %s, which has the cancel_grace_period of the agent to end", name)
	}
	return fmt.Sprintf("Interrupting %s, which has %s to end (cancel_grace_period)", name, e.cancelGrace)
}

// gone reports whether the shell and its process group have ended.
func (e *stopping) gone() bool {
	return e.ended == nil && errors.Is(syscall.Kill(-e.group, 0), syscall.ESRCH)
}

// await waits until the shell and the group have ended. It returns false if the grace period
// ends first, or if a request ends this period early.
func (e *stopping) await(grace time.Duration) bool {
	limit, release := e.timeout(context.Background(), grace, nil)
	defer release()
	ticker := time.NewTicker(groupPoll)
	defer ticker.Stop()
	forced := e.terminate
	if e.cancelGrace > 0 {
		forced = nil // terminate ends only the first stage
	}
	for !e.gone() {
		select {
		case e.exit = <-e.ended:
			e.ended = nil
		case <-ticker.C:
		case <-limit.Done():
			return false
		case <-forced:
			return false
		case <-e.forceStop:
			return false
		}
	}
	return true
}

// kill kills the process group and interrupted processes outside of it, and waits for the
// shell if that has not ended.
func (e *stopping) kill() error {
	_ = syscall.Kill(-e.group, syscall.SIGKILL)
	e.targets.kill()
	if e.ended == nil {
		return nil
	}
	limit := time.NewTimer(killTimeout)
	defer limit.Stop()
	select {
	case e.exit = <-e.ended:
		return nil
	case <-limit.C:
		return fmt.Errorf("process %d was killed and does not end", e.group)
	}
}

// endedBySignal reports whether SIGINT killed the shell, or a program whose exit code the
// shell returned. Pulumi does not handle SIGINT before its operation begins.
func (e *stopping) endedBySignal() bool {
	state, ok := waitStatus(e.exit)
	return ok && (state.Signaled() && state.Signal() == syscall.SIGINT || state.ExitStatus() == 128+int(syscall.SIGINT))
}

func (j *job) stages(log *stepLog) stages {
	return stages{
		cancelGrace: j.cancelGrace(), grace: j.grace(), timeout: j.options.timeout,
		interrupted: j.options.Interrupted, terminate: j.options.Terminate, forceStop: j.options.ForceStop,
		note: func(text string) {
			j.note(log, text)
			j.log.Info("stopping step", "detail", text)
		},
	}
}

// noteEnd adds how pulumi ended to the log of a step that was stopped, and reports it to the
// agent: a service that has cancelled the job may refuse the log.
func (j *job) noteEnd(log *stepLog, end result) {
	if end.pulumi == "" {
		return
	}
	after := end.took.Round(100 * time.Millisecond)
	stack := j.stackName()
	j.progress.setPulumi(end.pulumi, stack)
	if end.pulumi == runtime.PulumiEnded {
		j.note(log, fmt.Sprintf("pulumi ended by itself %s after the interrupt", after))
		j.log.Info("pulumi ended by itself after the interrupt", "after", after, "stack", stack)
		return
	}
	text := fmt.Sprintf("pulumi was killed after %s", after)
	if end.pulumi == runtime.PulumiTerminated {
		text = fmt.Sprintf("pulumi did not end within the cancel_grace_period, and was terminated after %s", after)
	}
	commands := runtime.PulumiCommands(stack)
	j.note(log, text+". Its stack may be locked, or have pending operations. When no other update of the stack runs:")
	j.note(log, commands...)
	j.log.Warn(text, "stack", stack, "hint", strings.TrimSpace(commands[0]))
}

// stackName returns the full name of the job's stack; empty if the job does not name it.
func (j *job) stackName() string {
	organization := j.env["PULUMI_CI_ORGANIZATION"]
	if backend := j.env["PULUMI_BACKEND_URL"]; backend != "" && !strings.HasPrefix(backend, "http") {
		organization = "organization" // the only one of a backend without organizations
	}
	name := organization + "/" + j.env["PULUMI_CI_PROJECT"] + "/" + j.env["PULUMI_CI_STACK"]
	if !runtime.ValidStack(name) {
		return ""
	}
	return name
}
