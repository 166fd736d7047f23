package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile/status"
)

// TestJobsList lists the jobs of a real agent: one that runs, one that has succeeded and one that has failed.
func TestJobsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	w.agent("max_concurrent_jobs: 2")
	w.queue("good", oneStep("true").in(w.poolID))
	w.await("good", "succeeded")
	w.queue("bad", oneStep("false").in(w.poolID))
	w.await("bad", "failed")
	w.hold("held", w.poolID)

	list := func(args ...string) output {
		t.Helper()
		got := cmwa(w.environ(), append([]string{
			"jobs", "list", "--config", filepath.Join(w.directory, "agent.yaml"),
		}, args...)...)
		if got.code != cli.ExitOK {
			t.Fatalf("cmwa jobs list ends with %d: %s", got.code, got.stderr)
		}
		return got
	}
	w.eventually("both jobs have ended", func() bool { return strings.Count(list().stdout, ", after ") == 2 })

	lines := strings.Split(list().stdout, "\n")
	for i, want := range []string{"tests/held ", "tests/bad ", "tests/good "} {
		line := lines[i+1]
		state := []string{"running for ", "failed ", "succeeded "}[i]
		if !strings.Contains(line, want) || !strings.Contains(line, state) || !strings.Contains(line, " job-") {
			t.Errorf("line %d is %q, want one with %q, %q and an instance", i+1, line, want, state)
		}
	}
	var jobs jobsOf
	decode(t, []byte(list("--json").stdout), &jobs)
	if len(jobs.Pools) != 1 || len(jobs.Pools[0].Jobs) != 1 || jobs.Pools[0].Jobs[0].Stack != "held" ||
		len(jobs.Ended) != 2 || jobs.Ended[0].Stack != "bad" || jobs.Ended[0].Outcome != "failed" {
		t.Errorf("the jobs are %+v", jobs)
	}
	w.release("held")
}

// TestJobsStop stops a job of a real agent. The agent goes on.
func TestJobsStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.agent()
	w.queue("one", order{Steps: []step{{Name: "a", Run: "echo running; sleep 600"}, {Name: "b", Run: "true"}}})
	w.waitStarted("one")
	stop := func(id string) output {
		return cmwa(w.environ(), "jobs", "stop", "--config", filepath.Join(w.directory, "agent.yaml"), id)
	}
	if got := stop("another"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "there is no job another") {
		t.Errorf("cmwa jobs stop of another job: %+v", got)
	}
	if got := stop(w.id("one")); got.code != cli.ExitOK || !strings.Contains(got.stdout, "of organization/tests/one") {
		t.Errorf("cmwa jobs stop: %+v", got)
	}
	w.await("one", "failed")
	w.wantSteps("one", "succeeded", "failed", "not-started")
	w.wantLog("one", "Reason: cmwa jobs stop has stopped the job")
	agent.waitFor("job stopped by cmwa jobs stop")
	w.queue("two", oneStep("true"))
	w.await("two", "succeeded")
}

// TestJobsLogs prints the logs of running jobs in a container and in a Pod, and starts shells there, with the real
// docker and kubectl.
func TestJobsLogs(t *testing.T) {
	for _, target := range []string{"docker", "kubernetes"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, target)
			path := os.Getenv("PATH")
			env := w.environ()
			if target == "kubernetes" {
				path = filepath.Dir(tool(t, kubectlVariable)) + ":" + path
				own := fileOf(t, "config", readText(t, os.Getenv("CMWA_TEST_KUBECONFIG")))
				must(t, kubectlVariable, "--kubeconfig", own, "config", "set-context", "--current",
					"--namespace", w.cluster.Name)
				env = append(env, "KUBECONFIG="+own)
			}
			w.agent("job_log: both")
			w.queue("one", oneStep("touch /tmp/mark; echo running; until [ -e /tmp/go ]; do sleep 0.1; done"))
			w.waitStarted("one")
			command := func(path, stdin string, args ...string) *exec.Cmd {
				config := filepath.Join(w.directory, "agent.yaml")
				args = append([]string{"jobs", args[0], "--config", config}, args[1:]...)
				cmd := exec.Command(staticCmwa(t), args...)
				cmd.Env = append(append(os.Environ(), env...), "PATH="+path)
				cmd.Stdin = strings.NewReader(stdin)
				return cmd
			}

			// 1. The log has the output of the step, and no line of progress.
			w.eventually("the log has the output", func() bool {
				got := outputOf(t, command(path, "", "logs", w.id("one")))
				return got.code == 0 && strings.Contains(got.stdout, "\nstep 1 | running\n")
			})
			text := outputOf(t, command(path, "", "logs", w.id("one")[:8]+"…")).stdout
			if strings.Contains("\n"+text, "\n{") || !strings.Contains(text, "step 0 | Steps run in ") {
				t.Errorf("the log is\n%s", text)
			}

			// 2. Without the program, the command states what to run elsewhere.
			for _, name := range []string{"logs", "shell"} {
				got := outputOf(t, command(t.TempDir(), "", name, w.id("one")))
				const hint = " is not installed here; where it is, run: "
				if got.code != cli.ExitUsage || !strings.Contains(got.stderr, hint) {
					t.Errorf("without the program, jobs %s ends with %+v", name, got)
				}
			}

			// 3. The shell is in the instance of the job, and lets the step end. Follow ends with the job.
			follow := command(path, "", "logs", "--follow", w.id("one"))
			followed := w.start("follow", append(env, "PATH="+path), follow.Path, follow.Args[1:]...)
			followed.waitFor("step 1 | running")
			if got := outputOf(t, command(path, "ls /tmp/mark; exit 7\n", "shell", w.id("one"))); got.code != 7 ||
				got.stdout != "/tmp/mark\n" {
				t.Errorf("the shell ends with %+v", got)
			}
			outputOf(t, command(path, "touch /tmp/go\n", "shell", w.id("one"))) // may end with the job
			w.await("one", "succeeded")
			if !followed.ends(storyLimit) {
				t.Error("jobs logs --follow did not end with the job")
			}
		})
	}
}

// TestInstanceOf finds the instance of a job, and the command lines for it.
func TestInstanceOf(t *testing.T) {
	t.Parallel()
	document := status.Document{
		Pools: []status.Pool{
			{Name: "d", Target: "docker", Jobs: []status.Job{
				{Job: "j1", Deployment: "abc1", Instance: "0123ab"}, {Job: "j2", Deployment: "abd2"},
				{Job: "j10", Deployment: "abc10", Instance: "4567ab"},
				{Job: "j3", Deployment: "evil", Instance: "--privileged"},
			}},
			{Name: "k", Target: "kubernetes", Context: "prod", Namespace: "jobs", Jobs: []status.Job{
				{Job: "j4", Activity: "scan", Instance: "pod-1/uid"},
			}},
			{Name: "p", Target: "process", Jobs: []status.Job{{Job: "j5", Deployment: "own", Instance: "job-1"}}},
		},
		Ended: []status.EndedJob{
			{Pool: "k", Job: status.Job{Job: "j6", Deployment: "kept", Instance: "pod-2/uid"}},
			{Pool: "gone", Job: status.Job{Job: "j7", Deployment: "late", Instance: "pod-3/uid"}},
		},
	}
	for id, want := range map[string]string{
		"abc1…": "docker logs --follow 0123ab | docker exec --interactive --tty 0123ab sh",
		"sca": "kubectl --context=prod --namespace=jobs logs --follow pod-1 --container pulumi-workflow | " +
			"kubectl --context=prod --namespace=jobs exec --stdin --tty pod-1 --container pulumi-workflow -- sh",
		"kept": "kubectl --context=prod --namespace=jobs logs --follow pod-2 --container pulumi-workflow | " +
			"kubectl --context=prod --namespace=jobs exec --stdin --tty pod-2 --container pulumi-workflow -- sh",
		"ab":    "3 jobs have an id that begins with ab",
		"abd2":  "the job has no container or Pod yet",
		"evil":  "the job has no container or Pod yet",
		"own":   "it runs in the directory job-1",
		"late":  "its pool is no longer configured",
		"":      `there is no job ""`,
		"j1":    "docker logs --follow 0123ab",
		"other": "there is no job other",
	} {
		i, err := instanceOf(document, id)
		got := strings.Join(i.logs(true), " ") + " | " + strings.Join(i.shell(true), " ")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("of %s the command lines are %q, want %q", id, got, want)
		}
	}
}
