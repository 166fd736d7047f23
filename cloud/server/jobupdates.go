package server

import (
	"encoding/json"
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

// readUpdates returns the updates of a deployment, for a client that follows their events. Updates that have not
// started are omitted, because they have no events.
func (s *Server) readUpdates(t *store.Tx, st stack, deployment string, now time.Time) (any, error) {
	all, err := t.DeploymentUpdates(deployment)
	views := []updateView{}
	for _, u := range all {
		if u.Status != notStarted {
			views = append(views, viewUpdate(st, u, now))
		}
	}
	return views, err
}

// stopTime is how long the programs of a cancelled job may take to stop. In this time pulumi stores what exists. Agents
// send SIGTERM at the cancel, and SIGKILL at the end of this time at the latest.
const stopTime = 2 * time.Minute
