package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// createPool creates a second pool at the service, and returns its id and token.
func (w *world) createPool() (id, token string) {
	w.t.Helper()
	var pool struct{ ID, TokenValue string }
	w.call(http.MethodPost, "/api/orgs/organization/agent-pools",
		map[string]string{"name": "second", "description": "of the whole-program tests"}, &pool)
	return pool.ID, pool.TokenValue
}

func TestPoolsRunTheirOwnJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	id, token := w.createPool()
	w.agent("token: "+w.pool,
		fmt.Sprintf("pools: [{name: containers}, {name: processes, token: %s, deploy_target: process}]", token))
	where := order{
		Steps: []step{{Name: "a", Run: "if [ -e /.dockerenv ]; then echo in a container; else echo in a process; fi"}},
	}
	w.queue("contained", where)
	where.Request = map[string]any{"agentPoolID": id}
	w.queue("free", where)
	w.await("contained", "succeeded")
	w.await("free", "succeeded")
	for stack, want := range map[string]string{"contained": "in a container", "free": "in a process"} {
		if log := w.log(stack); !strings.Contains(log, want) {
			t.Errorf("%s did not run %s:\n%s", stack, want, log)
		}
	}
}

func TestPoolsShareLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	id, token := w.createPool()
	agent := w.agent("token: "+w.pool, "max_concurrent_workflows: 2",
		fmt.Sprintf("pools: [{name: one}, {name: two, token: %s}]", token))
	var names []string
	for i := range 8 {
		o := order{Steps: []step{{Name: "a", Run: "n=0; while [ $n -lt 20 ]; do n=$((n+1)); sleep 0.02; done"}}}
		if i%2 == 1 {
			o.Request = map[string]any{"agentPoolID": id}
		}
		names = append(names, fmt.Sprint("job-", i))
		w.queue(names[i], o)
	}
	for _, name := range names {
		w.await(name, "succeeded")
	}
	held, most := 0, 0
	for line := range strings.Lines(agent.output()) {
		switch {
		case strings.Contains(line, "job claimed"):
			held++
		case strings.Contains(line, "job succeeded"):
			held--
		}
		most = max(most, held)
	}
	if most != 2 {
		t.Errorf("the agent held at most %d jobs at once, want 2:\n%s", most, agent.output())
	}
}
