package records

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	recheckInterval = 10 * time.Second // between two lists while a record of an agent that is gone is left
	maxProblems     = 3                // largest number of problems in one error
	adoptTries      = 5                // to adopt a record that changes meanwhile
)

// AdoptRecords adopts the records of agents of this group whose own Pods no longer exist,
// for the pools that mine selects. If the Pod of a record's job exists, only the agent that
// has adopted the Pod adopts the record.
//
//  1. List the records, without their texts, unless the last list is recent.
//  2. Leave out records whose agent exists, and records whose Pod exists, is not kept, and
//     belongs to another agent.
//  3. Adopt a record with an update, which succeeds for exactly one agent.
//
// A record that this agent cannot read is left, because another agent may have the token that
// opens it. Otherwise it is swept, or deleted with its Pod. An error means that records may be
// missing: the adopted Pods of their jobs must not be removed yet.
func (s *Store) AdoptRecords(ctx context.Context, mine func(pool string) bool) (adopted []runtime.Record, err error) {
	//  1. List the records.
	resources, scope := s.listDue()
	if len(resources) == 0 {
		return nil, nil
	}
	var problems []error
	started, left, seen := time.Now(), false, map[string]bool{}
	for _, resource := range resources {
		objects, err := s.options.Cluster.List(ctx, resource, Filter{Scope: scope, WithoutText: true})
		if err != nil {
			problems = append(problems, err)
		}
		for _, o := range objects {
			seen[o.UID] = true
			if !mine(o.Pool) || !s.adoptable(o) {
				continue
			}
			//  2. and 3. Adopt the record, unless it must be left out.
			gone, err := s.ownerGone(ctx, o)
			record := (*runtime.Record)(nil)
			if gone && err == nil {
				record, err = s.adopt(ctx, o, adoptTries)
			}
			if err != nil {
				problems = append(problems, err)
			}
			if record != nil {
				adopted = append(adopted, *record)
			}
			left = left || gone && record == nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.left = started, left || len(problems) > 0
	if len(problems) == 0 { // the list was complete
		missing := func(uid string, _ bool) bool { return !seen[uid] }
		maps.DeleteFunc(s.unreadable, missing)
		maps.DeleteFunc(s.unresolved, missing)
	}
	return adopted, errors.Join(problems[:min(len(problems), maxProblems)]...)
}

// PodAdopted makes the next call of AdoptRecords list the records, because the job of a Pod
// that was just adopted may have one.
func (s *Store) PodAdopted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = time.Time{}
}

// listDue returns the resources whose records must be listed now, and whose records. It returns no
// resource if the last list is recent. A list includes the records of this agent only if it may have
// adopted a record and lost the response. List has returned all others, and the jobs of those that
// the store no longer has have ended.
func (s *Store) listDue() (resources []string, scope Scope) {
	outdated := s.options.Cluster.Outdated()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		outdated = time.Now().Add(-recheckInterval)
	}
	if s.listed.After(outdated) {
		return nil, scope
	}
	resources, scope = []string{ConfigMaps}, OfOthers
	if s.resource == Secrets {
		resources = append(resources, Secrets)
	}
	if len(s.unresolved) > 0 {
		scope = OfGroup
	}
	return resources, scope
}

// adoptable reports whether to adopt a listed record of the pool: it belongs to another agent,
// or an earlier update may have adopted it. A record is left out if this store has it, if it cannot
// be read, and if it is being deleted.
func (s *Store) adoptable(o Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	unresolved, own, leave := s.unresolved[o.UID], o.Owner == s.options.Agent, o.Deleting || s.unreadable[o.UID]
	for _, r := range s.jobs {
		leave = leave || r.object.Name == o.Name && r.object.Resource != ""
	}
	if leave || !own { // adopt marks the record again before the next update
		delete(s.unresolved, o.UID)
	}
	return !leave && (!own || unresolved)
}

// ownerGone reports whether the agent of a record no longer exists, or whether this agent is its owner
// because it may have adopted the record.
func (s *Store) ownerGone(ctx context.Context, o Object) (bool, error) {
	if o.Owner == s.options.Agent {
		return true, nil
	}
	return s.options.Cluster.Gone(ctx, o.Owner)
}

// adopt adopts one record, which a list has shown without its text. Its agent no longer exists. It returns
// nil if the record must be left out now. If the record changes after it was read, adopt reads it
// again, because not only another agent may have changed it: the process of an agent whose Pod was
// deleted by force runs for a moment longer. That process may be about to delete the Pod of the job,
// and the cluster then deletes the record too.
func (s *Store) adopt(ctx context.Context, listed Object, tries int) (*runtime.Record, error) {
	cluster := s.options.Cluster
	o, err := s.find(ctx, listed.Resource, listed.Name)
	if err != nil || o == nil || o.Owner != listed.Owner {
		return nil, err
	}
	if o.Owner != s.options.Agent {
		entry, ok := s.read(*o)
		if !ok {
			return nil, nil
		}
		if pods, err := cluster.Pods(ctx, entry.Record.Job); err != nil || slices.ContainsFunc(pods, isForeign) {
			return nil, err
		}
		s.setUnresolved(o.UID, true)
		adopted, err := cluster.Put(ctx, *o)
		switch {
		case kindOf(err) == Missing: // another agent was faster
			return nil, nil
		case kindOf(err) == Conflict && tries > 1:
			return s.adopt(ctx, listed, tries-1)
		case err != nil:
			return nil, err
		}
		o = &adopted
	}
	record, err := s.take(ctx, *o)
	if record != nil {
		s.setUnresolved(o.UID, false)
	}
	return record, err
}

// setUnresolved sets whether it is unknown if this agent has adopted a record.
func (s *Store) setUnresolved(uid string, unresolved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unresolved[uid] = unresolved; !unresolved {
		delete(s.unresolved, uid)
	}
}
