package main

import (
	"context"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/schema/report"
)

// jobsOf is the JSON of cmwa jobs list: parts of a [status.Document].
type jobsOf struct {
	Pools []jobsOfPool      `json:"pools"`
	Ended []status.EndedJob `json:"endedJobs"`
}

type jobsOfPool struct {
	Name string       `json:"name"`
	Jobs []status.Job `json:"jobs"`
}

func jobsList(s stdio) command.Command {
	c := client{environ: s.environ}
	var asJSON bool
	return command.Command{
		Name: "list", Help: "list the running jobs, and the last hundred that have ended",
		Forms: []command.Form{{
			c.agent(),
			command.Optional(command.Bool(&asJSON, "json", "print the jobs in JSON, with their whole ids")),
		}},
		Long: `Prints a table of the jobs with their stack, operation, pool, state and instance: the id of the
container, the name of the Pod, or the directory in which the job runs. Of the jobs that have ended it
lists the last hundred since the agent was started. The service has all of them. ` + control.FindsAgent + `

Exit code 0: there is a list, which may be empty; 2: the agent cannot be reached, or the command line
is wrong.`,
		Run: func(ctx context.Context, _ []string) error {
			d, err := c.fetch(ctx)
			if err != nil {
				return cli.Usage(err)
			}
			if !asJSON {
				return status.WriteJobs(s.stdout, d)
			}
			jobs := jobsOf{Pools: []jobsOfPool{}, Ended: append([]status.EndedJob{}, d.Ended...)}
			for _, p := range d.Pools {
				jobs.Pools = append(jobs.Pools, jobsOfPool{p.Name, p.Jobs})
			}
			return report.WriteJSON(s.stdout, jobs)
		},
	}
}
