package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	maxAdoptTries = 5 // updates of one Pod, each with a conflict, in one call of AdoptOrphans
	maxProblems   = 3 // largest number of problems in one error
)

// LeavesJobs reports whether running jobs continue when the agent ends. They do if the
// agent runs in a Pod, because this Pod ends whenever it is replaced or moved.
func (e *Executor) LeavesJobs() bool { return e.cluster.agentPod != agentPod{} }

// Owned reports whether the agent finds the Pods of its jobs by its own Pod and controller.
// If not, it finds them by the agent's id, which is stored in the state directory.
func (e *Executor) Owned() bool { return e.self.known() }

// Replaced reports whether the agent's own Pod no longer exists, or has ended. When the Pod is gone, the
// API server soon refuses the agent's token, which is bound to the Pod:
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens.
func (e *Executor) Replaced(ctx context.Context) bool {
	if !e.self.known() {
		return false
	}
	ended, err := e.selfEnded(ctx)
	return ended || apierrors.IsUnauthorized(err) && !fromProxy(err)
}

// AdoptOrphans adopts the Pods of agents of this group whose own Pods no longer exist. It
// returns the adopted Pods, including those that have ended. If it returns an error, it
// also returns the Pods that it has adopted.
//
//  1. Find the Pods of these pools that belong to other agents. If there are none, make no
//     request.
//  2. Find out which of these agents exist. If the watch does not show the Pod of an agent,
//     get it once. An agent whose Pod cannot be read counts as existing.
//  3. Adopt the Pods of agents that no longer exist. Each adoption is an update, which
//     succeeds for exactly one agent.
func (e *Executor) AdoptOrphans(ctx context.Context, serves func(pool string) bool) ([]runtime.Instance, error) {
	if !e.self.known() {
		return nil, nil
	}

	//  1. Find Pods of other agents. Do not wait if the first list has failed.
	err := e.pods.health()
	if err == nil || e.pods.listed() {
		err = e.pods.ready(ctx)
	}
	if err != nil {
		return nil, e.explain("find Pods of agents that no longer exist", err)
	}
	others := e.foreignPods(serves)

	//  2. Find out which of the owners exist.
	var adopted []runtime.Instance
	var problems []error
	for _, owner := range sortedOwners(others) {
		gone, err := e.ownerGone(ctx, owner)
		if err != nil {
			problems = append(problems, err)
		}

		//  3. Adopt the Pods of an owner that no longer exists.
		for _, c := range others[owner] {
			if ctx.Err() != nil {
				break
			}
			if !gone && !c.unresolved {
				continue
			}
			instance, err := e.adoptPod(ctx, c, owner, gone)
			if err != nil {
				problems = append(problems, err)
			}
			if instance != nil {
				adopted = append(adopted, *instance)
				e.records.Load().PodAdopted()
			}
		}
	}
	return adopted, errors.Join(problems[:min(len(problems), maxProblems)]...)
}

// candidate is a Pod that may be adopted.
type candidate struct {
	name, uid  string
	unresolved bool // an earlier update may have adopted the Pod
}

// foreignPods returns the Pods of the served pools that belong to other agents, by owner.
// It includes Pods of which it is unknown whether this agent has adopted them.
func (e *Executor) foreignPods(serves func(pool string) bool) map[owner][]candidate {
	e.mu.Lock()
	defer e.mu.Unlock()
	all, unresolved := map[owner][]candidate{}, map[string]bool{}
	e.pods.each(func(s *state) {
		if e.unresolved[s.uid] {
			unresolved[s.uid] = true
		}
		if o := s.owner.Value(); (o != e.self.owner || unresolved[s.uid]) && serves(s.pool.Value()) {
			all[o] = append(all[o], candidate{name: s.name, uid: s.uid, unresolved: unresolved[s.uid]})
		}
	})
	e.unresolved = unresolved // without deleted Pods
	return all
}

func sortedOwners(candidates map[owner][]candidate) []owner {
	return slices.SortedFunc(maps.Keys(candidates), func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// ownerGone reports whether the Pod of an agent no longer exists. With an error, the result is false.
// It makes no request for an agent that the watch shows: otherwise the requests of a group would
// grow with the square of its agents. That an agent is gone is believed only after a request.
func (e *Executor) ownerGone(ctx context.Context, o owner) (bool, error) {
	if o == e.self.owner || e.agents.runs(o) || e.cluster.ownerSeen(o) {
		return false, nil
	}
	if !o.valid() {
		return false, fmt.Errorf("find the agent of a Pod: %q is not a valid Pod name", o.Name)
	}
	pod, err := e.cluster.home.get(ctx, o.Namespace, o.Name)
	switch {
	case isNotFound(err):
		return true, nil
	case err != nil:
		return false, e.explain(fmt.Sprintf("check whether agent Pod %s/%s exists", o.Namespace, o.Name), err)
	case o.ended(pod, e.cluster.home.now()):
		return true, nil
	}
	e.cluster.noteOwner(o)
	return false, nil
}

func (c *Cluster) ownerSeen(o owner) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.ownersSeen[o]) < ownerCacheTime
}

func (c *Cluster) noteOwner(o owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.ownersSeen, func(_ owner, at time.Time) bool { return now.Sub(at) >= ownerCacheTime })
	c.ownersSeen[o] = now
}

// adoptPod adopts one Pod whose owner no longer exists, or finds out whether an earlier call
// has adopted the Pod. It returns nil if the Pod does not belong to this agent afterwards.
//
//  1. Get the whole Pod, because the store of the watch keeps only a part.
//  2. Leave the Pod unchanged if it has another owner or another group now, is deleted, or
//     is kept.
//  3. Update the version that was read. If the Pod has changed since, start again.
func (e *Executor) adoptPod(ctx context.Context, c candidate, from owner, gone bool) (*runtime.Instance, error) {
	for range maxAdoptTries {
		//  1. Get the Pod.
		pod, err := e.client.get(ctx, e.namespace, c.name)
		if err != nil && !isNotFound(err) {
			return nil, e.explain("adopt Pod "+c.name, err)
		}

		//  2. Check its owner.
		switch {
		case err != nil, string(pod.UID) != c.uid,
			pod.Labels[labelGroup] != e.self.group, pod.Labels[labelKeep] == keepUntil:
			e.markResolved(c.uid)
			return nil, nil
		case ownerOf(pod) == e.self.owner:
			return e.adoptedInstance(ctx, pod)
		case ownerOf(pod) != from || !gone:
			e.markResolved(c.uid)
			return nil, nil
		}

		//  3. Update it.
		e.self.mark(pod)
		if agent := e.cluster.options.Agent; agent != "" {
			pod.Labels[labelAgent] = labelValue(agent)
		}
		e.mu.Lock()
		e.unresolved[c.uid] = true
		e.mu.Unlock()
		callCtx, cancel := detached(ctx, callLimit)
		updated, err := e.client.update(callCtx, pod)
		cancel()
		switch {
		case err == nil:
			return e.adoptedInstance(ctx, updated)
		case !isConflict(err):
			if !temporary(err) {
				e.markResolved(c.uid)
			}
			return nil, e.explain("adopt Pod "+c.name, err)
		}
	}
	e.markResolved(c.uid)
	return nil, fmt.Errorf("adopt Pod %s: the Pod changed before each of %d updates", c.name, maxAdoptTries)
}

// adoptedInstance returns the instance of a Pod that belongs to this agent now. If it is unknown
// whether the job may run, because an object may carry its handoff, it returns an error, and the
// next call of AdoptOrphans tries again.
func (e *Executor) adoptedInstance(ctx context.Context, pod *corev1.Pod) (*runtime.Instance, error) {
	instance := instanceWithState(pod)
	if instance.Started.IsZero() && carrierOf(pod) != inAnnotation {
		if err := e.completeDelivery(ctx, pod, &instance); err != nil {
			return nil, err
		}
	}
	e.markResolved(string(pod.UID))
	return &instance, nil
}

// markResolved records that it is no longer unknown whether an update has adopted a Pod.
func (e *Executor) markResolved(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.unresolved, uid)
}
