package main

import (
	"testing"
)

func TestDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kubernetes")
	agents := w.deploy("agent", 1)

	t.Run("an agent in a Pod runs a job", func(t *testing.T) {
		w.queue("one", order{Steps: []step{{Name: "one", Run: "echo it runs"}}})
		w.await("one", "succeeded", "failed")
		w.wantSteps("one", "succeeded", "succeeded")
	})
	t.Run("an edit of the ConfigMap reloads and restarts nothing", func(t *testing.T) {
		agents.keep(func() { agents.edit("max_concurrent_workflows: 3") })
		if warnings := agents.warnings(); len(warnings) > 0 {
			t.Error(warnings)
		}
	})
}
