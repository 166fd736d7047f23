package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestPoolsRunTheirOwnJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	p := w.pools(1)
	w.agent("token: "+w.pool,
		fmt.Sprintf("pools: [{name: containers}, {name: processes, token: %s, deploy_target: process}]", p[0].token))
	where := oneStep("if [ -e /.dockerenv ]; then echo in a container; else echo in a process; fi")
	w.queue("contained", where)
	w.queue("free", where.in(p[0].id))
	w.await("contained", "succeeded")
	w.await("free", "succeeded")
	w.wantLog("contained", "in a container")
	w.wantLog("free", "in a process")
}

func TestPoolsShareLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	p := w.pools(1)
	agent := w.agent("token: "+w.pool, "max_concurrent_workflows: 2",
		fmt.Sprintf("pools: [{name: one}, {name: two, token: %s}]", p[0].token))
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprint("job-", i))
		job := oneStep("n=0; while [ $n -lt 20 ]; do n=$((n+1)); sleep 0.02; done")
		if i%2 == 1 {
			job = job.in(p[0].id)
		}
		w.queue(names[i], job)
	}
	for _, name := range names {
		w.await(name, "succeeded")
	}
	// When the response to a poll takes longer than two seconds, its job may exceed the limit, by one for each pool
	// (rule 2 of pool.Slots).
	late := strings.Count(agent.output(), "the response to a poll was late")
	if most := agent.mostJobs(); most < 2 || most > 2+min(late, 2) {
		t.Errorf("the agent held at most %d jobs at once, want 2, with %d late responses:\n%s",
			most, late, agent.output())
	}
}
