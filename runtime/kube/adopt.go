package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	ownerFresh   = 10 * time.Second // for which an owner that was found counts as existing, for all pools
	adoptTries   = 5                // updates of one Pod that meet a conflict, before the next call tries again
	mostProblems = 3                // that one error names
)

// LeavesJobs reports whether jobs that run when the agent ends are left running. In a
// Pod they are: the agent there ends whenever the Pod is replaced or moved.
func (e *Executor) LeavesJobs() bool { return e.cluster.at != agentPod{} }

// Owned reports whether the agent's Pods are found by its own Pod and controller. If
// not, they are found by the agent's id, which only a state folder keeps.
func (e *Executor) Owned() bool { return e.self.known() }

// AdoptOrphans takes over the Pods of agents of this group whose own Pods no longer
// exist, and returns them, those that have ended included.
//
//  1. The watch shows which Pods of the pools belong to other agents. If there are
//     none, no request is made.
//  2. Each of these agents' Pods is read once. One that cannot be read counts as
//     existing.
//  3. The Pods of one that no longer exists are adopted, each by an update that
//     exactly one agent can make.
//
// With an error it returns what it has adopted all the same.
func (e *Executor) AdoptOrphans(ctx context.Context, mine func(pool string) bool) ([]runtime.Found, error) {
	if !e.self.known() {
		return nil, nil
	}

	// 1. Look for Pods of others. A first list that fails is not waited for.
	err := e.pods.health()
	if err == nil || e.pods.listed() {
		err = e.pods.ready(ctx)
	}
	if err != nil {
		return nil, e.explain("look for Pods of agents that no longer exist", err)
	}
	others := e.foreign(mine)

	// 2. Find out which of their owners exist.
	var adopted []runtime.Found
	var problems []error
	for _, owner := range sortedOwners(others) {
		gone, err := e.gone(ctx, owner)
		if err != nil {
			problems = append(problems, err)
		}

		// 3. Adopt.
		for _, worker := range others[owner] {
			if ctx.Err() != nil {
				break
			}
			if !gone && !worker.unsure {
				continue
			}
			found, err := e.adopt(ctx, worker, owner, gone)
			if err != nil {
				problems = append(problems, err)
			}
			if found != nil {
				adopted = append(adopted, *found)
			}
		}
	}
	return adopted, errors.Join(problems[:min(len(problems), mostProblems)]...)
}

// worker is a Pod that may be adopted.
type worker struct {
	name, uid string
	unsure    bool // an earlier update may have adopted it
}

// foreign returns the Pods of the pools that belong to other agents, and those of
// which that is not certain, by owner.
func (e *Executor) foreign(mine func(pool string) bool) map[owner][]worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	all, unsure := map[owner][]worker{}, map[string]bool{}
	e.pods.each(func(s *state) {
		if e.unsure[s.uid] {
			unsure[s.uid] = true
		}
		if o := s.owner.Value(); (o != e.self.owner || unsure[s.uid]) && mine(s.pool.Value()) {
			all[o] = append(all[o], worker{name: s.name, uid: s.uid, unsure: unsure[s.uid]})
		}
	})
	e.unsure = unsure // without Pods that are deleted
	return all
}

// sortedOwners returns the owners in a fixed order.
func sortedOwners(workers map[owner][]worker) []owner {
	owners := make([]owner, 0, len(workers))
	for o := range workers {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return owners
}

// gone reports whether the Pod of an agent does not exist any more. With an error it
// reports that it does.
func (e *Executor) gone(ctx context.Context, o owner) (bool, error) {
	if o == e.self.owner || e.cluster.exists(o) {
		return false, nil
	}
	if !o.valid() {
		return false, fmt.Errorf("cannot find out which agent a Pod belongs to: %q is not the name of a Pod", o.Name)
	}
	pod, err := e.client.get(ctx, o.Namespace, o.Name)
	switch {
	case absent(err):
		return true, nil
	case err != nil:
		return false, e.explain(fmt.Sprintf("find out whether agent Pod %s/%s exists", o.Namespace, o.Name), err)
	case o.ended(pod):
		return true, nil
	}
	e.cluster.noteExists(o)
	return false, nil
}

// exists reports whether the Pod of an agent was found a short time ago.
func (c *Cluster) exists(o owner) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.alive[o]) < ownerFresh
}

// noteExists notes that the Pod of an agent was found.
func (c *Cluster) noteExists(o owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.alive, func(_ owner, at time.Time) bool { return now.Sub(at) >= ownerFresh })
	c.alive[o] = now
}

// adopt takes over one Pod whose owner is gone, or finds out whether an earlier call
// has done it. It returns nil for a Pod that is not this agent's.
//
//  1. The whole Pod is read, because the store of the watch keeps a part of it.
//  2. A Pod that has another owner by now is left to that, and one that is gone or
//     kept is left alone.
//  3. The update names the version that was read. If the Pod has changed since, by a
//     report of its kubelet or by another agent, all of it is done again.
func (e *Executor) adopt(ctx context.Context, w worker, from owner, gone bool) (*runtime.Found, error) {
	for range adoptTries {
		// 1. Read.
		pod, err := e.client.get(ctx, e.namespace, w.name)
		if err != nil && !absent(err) {
			return nil, e.explain("adopt Pod "+w.name, err)
		}

		// 2. Look at the owner.
		switch {
		case err != nil, string(pod.UID) != w.uid, pod.Labels[labelGroup] != e.self.group, pod.Labels[labelKeep] == keepUntil:
			e.settle(w.uid)
			return nil, nil
		case ownerOf(pod) == e.self.owner:
			e.settle(w.uid)
			found := foundWithState(pod)
			return &found, nil
		case ownerOf(pod) != from || !gone:
			e.settle(w.uid)
			return nil, nil
		}

		// 3. Update.
		e.self.mark(pod)
		if agent := e.cluster.options.Agent; agent != "" {
			pod.Labels[labelAgent] = labelValue(agent)
		}
		e.mu.Lock()
		e.unsure[w.uid] = true
		e.mu.Unlock()
		limited, cancel := outliving(ctx, callLimit)
		updated, err := e.client.update(limited, pod)
		cancel()
		switch {
		case err == nil:
			e.settle(w.uid)
			found := foundWithState(updated)
			return &found, nil
		case !apierrors.IsConflict(err) || fromProxy(err):
			if !temporary(err) {
				e.settle(w.uid)
			}
			return nil, e.explain("adopt Pod "+w.name, err)
		}
	}
	e.settle(w.uid)
	return nil, fmt.Errorf("adopt Pod %s: it has changed before each of %d updates", w.name, adoptTries)
}

// settle notes that it is known whether an update has adopted a Pod.
func (e *Executor) settle(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.unsure, uid)
}
