package server

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// jobUpdateView is an update that the job of a deployment has made (DeploymentNestedUpdate in Pulumi's apitype).
type jobUpdateView struct {
	ID          string          `json:"id"`
	UpdateID    string          `json:"updateID"`
	Version     int64           `json:"version"`
	StartTime   int64           `json:"startTime"` // seconds since 1970, 0 before the start
	EndTime     int64           `json:"endTime"`   // of the start before the end
	Result      string          `json:"result"`
	Kind        string          `json:"kind"`
	Message     string          `json:"message"`
	Environment json.RawMessage `json:"environment"`
}

func viewJobUpdates(all []store.Update) []jobUpdateView {
	views := make([]jobUpdateView, 0, len(all))
	for _, u := range all {
		info := viewUpdate(stack{}, u, u.Started).Info
		views = append(views, jobUpdateView{
			ID: u.ID, UpdateID: u.ID, Version: u.Version, StartTime: info.StartTime, EndTime: info.EndTime,
			Result: info.Result, Kind: info.Kind, Message: u.Message, Environment: info.Environment,
		})
	}
	return views
}

// getUpdatesOfDeployment returns the updates of a deployment, for a client that follows their events. Updates that have
// not started are omitted, because they have no events.
//
// Pulumi's CLI asks when the log shows the step of pulumi, and gives up after 5 seconds without an update: a pulumi on
// a busy machine needs longer to start one. Therefore the response waits while this step runs, at most updateWait.
func (s *Server) getUpdatesOfDeployment(c *call) (reply, error) {
	ctx, cancel := context.WithTimeout(c.Context(), updateWait)
	defer cancel()
	ticker := time.NewTicker(updateWait / 50)
	defer ticker.Stop()
	for {
		views, more, err := s.readUpdates(c)
		if err != nil || len(views) > 0 || !more {
			return reply{body: views}, err
		}
		select {
		case <-ctx.Done():
			return reply{body: views}, nil
		case <-ticker.C:
		}
	}
}

// updateWait is how long a response waits for the first update of a job.
const updateWait = 10 * time.Second

// readUpdates returns the started updates of a deployment. More reports whether its step of pulumi runs.
func (s *Server) readUpdates(c *call) (views []updateView, more bool, err error) {
	views = []updateView{}
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		more = slices.ContainsFunc(j.Steps, func(step store.Step) bool {
			return step.Status == running && strings.HasPrefix(step.Name, stepPulumi)
		})
		all, err := t.DeploymentUpdates(j.ID)
		for _, u := range all {
			if u.Status != notStarted {
				views = append(views, viewUpdate(st, u, c.now))
			}
		}
		return err
	})
	return views, more, err
}

// stopTime is how long the programs of a cancelled job may take to stop. In this time pulumi stores what exists. Agents
// send SIGTERM at the cancel, and SIGKILL at the end of this time at the latest.
const stopTime = 2 * time.Minute
