package server

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// requeueAfter is the time within which an agent must fetch the definition of a claimed job, or
// send a heartbeat. It is longer than the interval of heartbeats, which is 30 seconds.
const requeueAfter = 35 * time.Second

// requeue returns a claimed deployment to the queue, unless its definition was fetched:
//
//  1. The call that fetches the definition creates a token for the job's programs. If there
//     is no such token, no agent and no runner has the steps of the job, so no step can have
//     run.
//  2. The token of the claim is deleted in the same transaction, so the agent of the lost
//     claim cannot fetch the definition later. The deployment is for the same pool as before
//     its claim, or for any pool. If that pool was deleted, the deployment ends.
func (s *Server) requeue(ctx context.Context, id string, now time.Time) error {
	return s.db.Write(ctx, func(t *store.Tx) error {
		// 1. Check that the deployment is still claimed, and its definition was not fetched.
		j, found, err := asJob(t.JobOf(store.DeploymentJob, id))
		if err != nil {
			return err
		}
		if !found || j.Status != accepted {
			return store.ErrNoChange
		}
		fetched, err := t.HasToken(string(stackToken), id)
		if err != nil {
			return err
		}
		if fetched {
			return store.ErrNoChange
		}

		// 2. Delete the token, and queue the deployment.
		if err := dropTokens(t, principal{jobToken, id}); err != nil {
			return err
		}
		s.log.Warn("job queued again: no agent fetched the definition of its claim", "component", "expiry",
			"deployment", id, "limit", requeueAfter)
		return t.Requeue(j.Seq, now)
	})
}
