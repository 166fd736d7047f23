package server

import (
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// deploymentCounts are the numbers of an organization's deployments by their status.
type deploymentCounts struct {
	NotStarted int64 `json:"notStarted"`
	Accepted   int64 `json:"accepted"`
	Running    int64 `json:"running"`
	Failed     int64 `json:"failed"`
	Succeeded  int64 `json:"succeeded"`
	Skipped    int64 `json:"skipped"`
	Total      int64 `json:"total"`
}

// queueView is the response of GET /api/orgs/{org}/deployments/metadata. Concurrency is 0, because the service has no
// limit: each agent has its own.
type queueView struct {
	Concurrency int              `json:"concurrency"`
	Paused      bool             `json:"paused"`
	Counts      deploymentCounts `json:"deploymentCounts"`
}

func (s *Server) queueMetadata(c *call) (reply, error) {
	var view queueView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		if view.Paused, _, err = t.Paused(organization, ""); err != nil {
			return err
		}
		counts, err := t.QueueCounts(organization)
		for _, count := range counts {
			view.Counts.Total += count
		}
		view.Counts.NotStarted, view.Counts.Accepted, view.Counts.Running = counts[notStarted], counts[accepted],
			counts[running]
		view.Counts.Failed, view.Counts.Succeeded, view.Counts.Skipped = counts[failed], counts[succeeded],
			counts[skipped]
		return err
	})
	return reply{body: view}, err
}

// listQueue lists a page of the deployments of an organization, like listDeployments.
func (s *Server) listQueue(c *call) (reply, error) {
	return s.pageDeployments(c, func(t *store.Tx) (list deploymentList, err error) {
		organization, err := s.organization(t, c)
		if err != nil {
			return list, err
		}
		total, err := t.CountQueue(organization)
		return deploymentList{organization, total, t.Queue, t.OldestQueue}, err
	})
}

// pauseOrganization returns a handler that pauses or resumes the deployments of an organization. Deployments are still
// queued, and running ones continue.
func (s *Server) pauseOrganization(paused bool) handler {
	return func(c *call) (reply, error) {
		return reply{body: empty{}}, s.db.Write(c.Context(), func(t *store.Tx) error {
			organization, err := s.organization(t, c)
			if err != nil {
				return err
			}
			return t.PauseOrganization(organization, paused)
		})
	}
}

// pauseStack returns a handler that pauses or resumes the deployments of a stack.
func (s *Server) pauseStack(paused bool) handler {
	return func(c *call) (reply, error) {
		return reply{body: empty{}}, s.db.Write(c.Context(), func(t *store.Tx) error {
			st, err := s.stackFromPath(t, c)
			if err != nil {
				return err
			}
			return t.PauseStack(st.ID, paused)
		})
	}
}

// stackQueue reports whether the deployments of a stack are paused. The service has no schedules.
func (s *Server) stackQueue(c *call) (reply, error) {
	var view struct {
		Paused       bool `json:"paused"`
		Stack        bool `json:"stackPaused"`
		Organization bool `json:"organizationPaused"`
		HasSchedules bool `json:"hasSchedules"`
	}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err == nil {
			view.Organization, view.Stack, err = t.Paused(st.Organization, st.ID)
		}
		view.Paused = view.Organization || view.Stack
		return err
	})
	return reply{body: view}, err
}
