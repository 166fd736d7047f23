package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema/printable"
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

// usesTool describes how jobs logs and jobs shell reach an instance.
const usesTool = `The command calls docker or kubectl, with your rights and not with those of the agent, so it needs
the program, and access to the engine or the cluster. kubectl uses the namespace of your kubeconfig,
unless kubernetes.namespace is set. A job with deploy_target process has neither: its log is the
file messages in its directory, which is in cmwa-process-UID in the agent's TMPDIR.

JOB is an id of cmwa jobs list, or its beginning. Exit code 2: no agent, no such job, or no such program; otherwise
the one of docker or kubectl.`

func jobsLogs(s stdio) command.Command {
	c := client{environ: s.environ}
	follow := false
	return command.Command{
		Name: "logs", Help: "print the log of a job's container or Pod",
		Forms: []command.Form{{
			c.agent(), command.Optional(command.Bool(&follow, "follow", "print further lines until the job ends")),
			command.Argument("JOB", command.Text("JOB")),
		}},
		Long: `Prints the messages of the runner, and with job_log: both also the output of the steps. The service
has the output of the steps in any case.

` + usesTool,
		Run: func(ctx context.Context, args []string) error {
			i, err := c.instance(ctx, args[0])
			if err != nil {
				return cli.Usage(err)
			}
			return s.printLog(ctx, i.logs(follow))
		},
	}
}

func jobsShell(s stdio) command.Command {
	c := client{environ: s.environ}
	return command.Command{
		Name: "shell", Help: "start a shell in a job's container or Pod",
		Forms: []command.Form{{c.agent(), command.Argument("JOB", command.Text("JOB"))}},
		Long: `Starts sh next to the steps of a running job. What you do there can break the job.

` + usesTool,
		Run: func(ctx context.Context, args []string) error {
			i, err := c.instance(ctx, args[0])
			if err == nil && i.ended {
				err = errors.New("the job has ended; cmwa jobs logs prints the log of a Pod that is kept")
			}
			if err != nil {
				return cli.Usage(err)
			}
			line := i.shell(isTerminal(s.stdin))
			program, err := lookPath(line)
			if err != nil {
				return err
			}
			return fmt.Errorf("start %s: %w", line[0], syscall.Exec(program, line, s.environ.list()))
		},
	}
}

// instance is the container or the Pod of a job.
type instance struct {
	pool  status.Pool
	id    string // of the container, or name of the Pod
	ended bool   // whether the job has ended
}

// instanceName matches an id of a container and a name of a Pod.
var instanceName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// instance asks the agent for the instance of a job.
func (c *client) instance(ctx context.Context, id string) (instance, error) {
	d, err := c.fetch(ctx)
	if err != nil {
		return instance{}, err
	}
	return instanceOf(d, id)
}

// instanceOf returns the instance of the job that a text picks.
func instanceOf(d status.Document, text string) (instance, error) {
	type known struct {
		job   status.Job
		pool  status.Pool
		ended bool
	}
	var jobs []known
	pools := map[string]status.Pool{}
	for _, pool := range d.Pools {
		pools[pool.Name] = pool
		for _, job := range pool.Jobs {
			jobs = append(jobs, known{job, pool, false})
		}
	}
	for _, job := range d.Ended {
		jobs = append(jobs, known{job.Job, pools[job.Pool], true})
	}
	picked, err := control.Pick(jobs, text, func(k known) []string {
		return []string{k.job.Job, k.job.Deployment, k.job.Activity}
	})
	if err != nil {
		return instance{}, err
	}
	id, _, _ := strings.Cut(picked.job.Instance, "/") // a Pod has NAME/UID
	switch i := (instance{picked.pool, id, picked.ended}); {
	case i.pool.Target == "":
		return i, errors.New("the job has ended, and its pool is no longer configured")
	case i.pool.Target != "docker" && i.pool.Target != "kubernetes":
		return i, fmt.Errorf("the job is no container and no Pod: it runs in the directory %s of the agent's machine",
			printable.QuoteName(id))
	case !instanceName.MatchString(id):
		return i, errors.New("the job has no container or Pod yet")
	default:
		return i, nil
	}
}

// logs returns the command line that prints the log.
func (i instance) logs(follow bool) (line []string) {
	if line = i.tool("logs"); follow {
		line = append(line, "--follow")
	}
	if i.pool.Target == "docker" {
		return append(line, i.id)
	}
	return append(line, i.id, "--container", kube.MainContainer)
}

// shell returns the command line that starts a shell.
func (i instance) shell(terminal bool) (line []string) {
	line = i.tool("exec")
	flags := map[string]string{"docker": "--interactive", "kubernetes": "--stdin"}
	line = append(line, flags[i.pool.Target])
	if terminal {
		line = append(line, "--tty")
	}
	if i.pool.Target == "docker" {
		return append(line, i.id, "sh")
	}
	return append(line, i.id, "--container", kube.MainContainer, "--", "sh")
}

// tool returns the beginning of a command line of docker or kubectl.
func (i instance) tool(command string) (line []string) {
	if i.pool.Target == "docker" {
		return []string{"docker", command}
	}
	line = []string{"kubectl"}
	if i.pool.Context != "" {
		line = append(line, "--context="+i.pool.Context)
	}
	if i.pool.Namespace != "" {
		line = append(line, "--namespace="+i.pool.Namespace)
	}
	return append(line, command)
}

// lookPath finds the program of a command line.
func lookPath(line []string) (path string, err error) {
	if path, err = exec.LookPath(line[0]); err != nil {
		var shown []string
		for _, argument := range line {
			shown = append(shown, printable.Text(printable.ShellArgument(argument)))
		}
		return "", cli.Usage(fmt.Errorf("%s is not installed here; where it is, run: %s",
			line[0], strings.Join(shown, " ")))
	}
	return path, nil
}

// printLog runs a command line, and prints its output without the lines of progress, which are for the agent.
func (s stdio) printLog(ctx context.Context, line []string) error {
	path, err := lookPath(line)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, line[1:]...)
	cmd.Env = s.environ.list()
	if line[0] == "docker" {
		cmd.Stderr = &withoutProgress{w: s.stdout} // standard output has only the progress
	} else {
		cmd.Stdout, cmd.Stderr = &withoutProgress{w: s.stdout}, s.stderr
	}
	err = cmd.Run()
	if ctx.Err() != nil {
		return cli.ExitError(cli.ExitInterrupted)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return cli.ExitError(exit.ExitCode())
	}
	return err
}

// withoutProgress is a writer that leaves out lines that begin with a brace.
type withoutProgress struct {
	w      io.Writer
	within bool // whether the last line has not ended
	skip   bool // whether that line is left out
}

func (f *withoutProgress) Write(p []byte) (n int, err error) {
	for n = len(p); len(p) > 0; {
		if !f.within {
			f.skip = p[0] == '{'
		}
		end := bytes.IndexByte(p, '\n') + 1
		if f.within = end == 0; f.within {
			end = len(p)
		}
		if !f.skip {
			if _, err := f.w.Write(p[:end]); err != nil {
				return 0, err
			}
		}
		p = p[end:]
	}
	return n, nil
}
