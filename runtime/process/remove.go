//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Remove ends the job in five turns, each of which is safe to repeat:
//
//  1. The supervisor's process group gets a TERM, if the runner has not ended.
//  2. The runner has the grace to end.
//  3. Whatever still belongs to the job is killed, until nothing does.
//  4. Those who wait for the job are told how it ended, and the supervisor is
//     reaped if it is a child of this process.
//  5. The folder is renamed, so that it is no environment any more, and cleared.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	v, err := e.open(id)
	if errors.Is(err, runtime.ErrNoEnvironment) {
		return e.clearOld(id)
	}
	if err != nil {
		return err
	}
	exit, err := v.end(ctx, grace)
	if err != nil {
		return fmt.Errorf("end the job: %w", err)
	}
	e.tell(id, exit)
	e.reap(id)
	if err := e.clearOld(id); err != nil { // of a job by the same name, which could not be cleared then
		return err
	}
	if err := os.Rename(v.folder, e.old(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the folder of a job: %w", err)
	}
	return e.clearOld(id)
}

// end is the first three turns of Remove.
func (v *environment) end(ctx context.Context, grace time.Duration) (runtime.Exit, error) {
	exit, err := v.ended()
	if errors.Is(err, errRunning) {
		if ours, _, err := v.ours(); err == nil && ours {
			_ = syscall.Kill(-v.leader.PID, syscall.SIGTERM)
		}
		exit, err = v.within(ctx, grace)
	}
	if errors.Is(err, errRunning) {
		exit, err = runtime.Exit{Code: 128 + int(syscall.SIGKILL), Reason: "killed, since it did not end when it was asked to"}, nil
	}
	if err != nil && !errors.Is(err, runtime.ErrNoEnvironment) {
		return exit, err
	}
	return exit, v.kill(ctx)
}

// within gives the runner a time to end.
func (v *environment) within(ctx context.Context, grace time.Duration) (runtime.Exit, error) {
	limit := time.NewTimer(grace)
	defer limit.Stop()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		exit, err := v.ended()
		if !unended(err) {
			return exit, err
		}
		select {
		case <-ticker.C:
		case <-limit.C:
			return v.ended()
		case <-ctx.Done():
			return runtime.Exit{}, context.Cause(ctx)
		}
	}
}

// kill kills what belongs to the job until nothing does.
func (v *environment) kill(ctx context.Context) error {
	limit := time.NewTimer(killLimit)
	defer limit.Stop()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		kin, err := v.kin()
		if err != nil || len(kin) == 0 {
			return err
		}
		for _, p := range kin {
			p.kill()
		}
		select {
		case <-ticker.C:
		case <-limit.C:
			return fmt.Errorf("processes that were killed do not end: %s", pids(kin))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// kin returns the processes that belong to the job and have not ended.
func (v *environment) kin() ([]proc, error) {
	all, err := everyone()
	if err != nil {
		return nil, fmt.Errorf("look for the job's processes: %w", err)
	}
	now, there, err := look(v.leader.PID)
	if err != nil {
		return nil, fmt.Errorf("look for the job's leader: %w", err)
	}
	mark := marker + "=" + v.folder
	var kin []proc
	for _, p := range all {
		if p.ended || p.pid == os.Getpid() {
			continue
		}
		ours := v.leader.leads(p, now, there)
		if !ours {
			if ours, err = p.carries(mark); err != nil {
				return nil, fmt.Errorf("look for the job's processes: %w", err)
			}
		}
		if ours {
			kin = append(kin, p)
		}
	}
	return kin, nil
}

// reap takes the exit of an own child, which has ended, from the system. From
// here on its process id may come back as somebody else's.
func (e *Executor) reap(id string) {
	e.mu.Lock()
	cmd := e.children[id]
	delete(e.children, id)
	e.mu.Unlock()
	if cmd != nil {
		_ = cmd.Wait() // how it ended stands in the folder
	}
}

// old is where a folder goes on its way out.
func (e *Executor) old(id string) string { return filepath.Join(e.folder, oldPrefix+id) }

// clearOld clears what is on its way out, by this call or by an earlier one.
func (e *Executor) clearOld(id string) error {
	if !valid(id) {
		return nil
	}
	return clearAway(e.old(id))
}

func pids(all []proc) string {
	var text []string
	for _, p := range all {
		text = append(text, fmt.Sprint(p.pid))
	}
	return strings.Join(text, ", ")
}
