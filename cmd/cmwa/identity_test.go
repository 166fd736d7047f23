package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime/agentid"
)

// claimedJob matches the id of a job that an agent claimed.
var claimedJob = regexp.MustCompile(`job claimed.* job=(\S+)`)

// kill ends an agent with SIGKILL. The agent's jobs continue.
func (w *world) kill(agent *program) {
	w.t.Helper()
	agent.signal(syscall.SIGKILL)
	if !agent.ends(storyLimit) {
		w.t.Fatal("the agent does not end")
	}
}

// wantAdopted checks that an agent has adopted the job of an earlier agent, and no other
// job.
func (w *world) wantAdopted(agent, earlier *program) {
	w.t.Helper()
	job := claimedJob.FindStringSubmatch(earlier.output())
	if job == nil {
		w.t.Fatalf("the earlier agent has claimed nothing:\n%s", earlier.output())
	}
	agent.waitFor("job resumed")
	for line := range strings.Lines(agent.output()) {
		if strings.Contains(line, "job resumed") && !strings.Contains(line, "job="+job[1]) {
			w.t.Errorf("the agent has resumed another job than %s: %s", job[1], line)
		}
	}
}

// holdAnywhere queues a job, in a container, a Pod or as a process, and blocks until it runs and
// the service has its first line. The job ends when release is called.
func (w *world) holdAnywhere(stack, poolID string) (release func()) {
	w.t.Helper()
	if w.target == "process" {
		w.hold(stack, poolID)
		return func() { w.t.Helper(); w.release(stack) }
	}
	w.queue(stack, oneStep("echo running; while ! [ -e /released ]; do sleep 0.02; done; echo finished").in(poolID))
	w.waitStarted(stack)
	return func() {
		w.t.Helper()
		containers := w.containers(stack)
		if len(containers) != 1 {
			w.t.Fatalf("the job of %s has containers %v", stack, containers)
		}
		if w.cluster != nil {
			must(w.t, kubectlVariable, "exec", "--namespace", w.cluster.Name, containers[0], "--", "touch", "/released")
		} else {
			w.engine("exec", containers[0], "touch", "/released")
		}
		w.waitSucceeded(stack)
	}
}

// leftovers returns the containers or directories of jobs.
func (w *world) leftovers(stacks ...string) (left []string) {
	w.t.Helper()
	if w.target == "process" {
		left, _ = filepath.Glob(filepath.Join(w.directory, "cmwa-process-*", "*"))
		return left
	}
	for _, stack := range stacks {
		left = append(left, w.containers(stack)...)
	}
	return left
}

func TestIdentityLeftoverPools(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]string{
		"renamed pool": "name: new", "other pool id": "name: old, runner_pool_id: another",
	} {
		t.Run(name+" is drained after a restart and its instance removed", func(t *testing.T) {
			atLocalTargets(t, func(t *testing.T, w *world) {
				port := agentPort(freePort(t))
				agent := w.follow(nil, "pools: [{name: old, token: "+w.pool+"}]")
				release := w.holdAnywhere("one", w.poolID)
				w.kill(agent)
				w.save("pools: [{"+pool+", token: "+w.pool+"}]", port.setting())
				again := w.start("agent", nil, "cmwa", "run", "--config", w.file())
				w.wantAdopted(again, agent)

				asked := client{url: port.url("")}
				w.eventually("the agent is ready", func() bool { return port.readyz() == http.StatusOK })
				d, err := asked.fetch(t.Context())
				w.must(err)
				if phases := fmt.Sprint(phasesOf(d)); phases != "map[draining:1 polling:1]" &&
					phases != "map[draining:1 paused:1]" {
					t.Errorf("the pools are %s", phases)
				}
				w.runShort("two", w.poolID) // the other pool has its own slot

				release()
				w.eventually("nothing is left of the job", func() bool { return len(w.leftovers("one", "two")) == 0 })
				w.eventually("the drained pool is removed", func() bool {
					d, err := asked.fetch(t.Context())
					return err == nil && phasesOf(d)["draining"] == 0
				})
			})
		})
	}

	t.Run("jobs of a target that is no longer configured are adopted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		agent := w.follow(nil, "token: "+w.pool)
		release := w.holdAnywhere("one", w.poolID)
		w.kill(agent)
		w.target = "docker"
		again := w.follow(nil, "token: "+w.pool)
		w.wantAdopted(again, agent)
		w.target = "process"
		release()
		w.eventually("nothing is left of the job", func() bool { return len(w.leftovers()) == 0 })
	})

	t.Run("a pool that is configured again while it drains is revived", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		other := w.pools(1)
		agent := w.follow(nil, "pools: [{name: old, token: "+w.pool+"}]")
		release := w.holdAnywhere("one", w.poolID)
		w.kill(agent)
		again := w.follow(nil, "pools: [{name: new, token: "+other[0].token+"}]")
		w.wantAdopted(again, agent)
		w.save("pools: [{name: old, token: " + w.pool + "}]")
		again.waitFor("revive pool old")
		w.queueHeld("two", w.poolID) // not claimed while the adopted job uses the pool's only slot
		release()
		w.waitStarted("two")
		w.release("two")
		again.wantPrinted(1, "job resumed")
	})
}

func TestIdentityLeftoversOfCrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	shared := filepath.Join(w.directory, "shared")
	crashed := filepath.Join(shared, "pulumi-workflow-crashed-0000")
	w.must(os.MkdirAll(crashed, 0o755))
	longAgo := time.Now().Add(-30 * 24 * time.Hour)
	w.must(os.Chtimes(crashed, longAgo, longAgo))
	agent := w.follow(nil, "token: "+w.pool, "shared_volume_directory: "+shared)
	w.eventually("the directory is removed", func() bool { _, err := os.Stat(crashed); return os.IsNotExist(err) })
	agent.waitFor("removed leftovers of agents that no longer exist")
}

func TestIdentityExamples(t *testing.T) {
	if !strings.Contains(readText(t, "../../examples/systemd/cmwa.service"), "\nStateDirectory=cmwa\n") {
		t.Error("the systemd unit has no line StateDirectory=cmwa")
	}
	var compose struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
		}
		Volumes map[string]any
	}
	noError(t, yaml.Unmarshal([]byte(readText(t, "../../examples/compose/compose.yml")), &compose))
	agent := compose.Services["agent"]
	directory, err := agentid.Directory("",
		func(name string) (string, bool) { value, ok := agent.Environment[name]; return value, ok }, 0)
	if _, made := compose.Volumes["state"]; err != nil || !made || !slices.Contains(agent.Volumes, "state:"+directory) {
		t.Errorf("compose.yml mounts no volume at the state directory %s (%v)", directory, err)
	}
}

// phasesOf counts the pools of a status by phase.
func phasesOf(d status.Document) map[string]int {
	phases := map[string]int{}
	for _, p := range d.Pools {
		phases[p.Phase]++
	}
	return phases
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	t.Run("agents that restart in another order adopt their own jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(2)
		start := func(n int) *program {
			name := filepath.Join(w.directory, fmt.Sprint("agent-", n))
			w.replace(name+".yaml", w.content("token: "+p[n].token, "state_directory: "+name))
			agent := w.start("agent", nil, "cmwa", "run", "--config", name+".yaml")
			agent.waitFor("converged")
			return agent
		}
		one, two := start(0), start(1)
		w.hold("one", p[0].id)
		w.hold("two", p[1].id)
		w.kill(one)
		w.kill(two)
		twoAgain, oneAgain := start(1), start(0)
		w.wantAdopted(twoAgain, two)
		w.wantAdopted(oneAgain, one)
		w.release("one")
		w.release("two")
	})

	t.Run("one of several agents with the same file adopts its own job after a restart", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		start := func(name string) *program { return w.follow(w.ownState(name), "token: "+w.pool) }
		first := start("first")
		w.hold("one", w.poolID)
		second := start("second")
		w.hold("two", w.poolID)
		w.release("one")
		first.signal(syscall.SIGTERM)
		first.exit(cli.ExitOK)
		w.kill(second)
		w.wantAdopted(start("second"), second)
		w.release("two")
	})

	t.Run("an agent with the state directory of a running agent is refused", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		first := w.follow(nil, "token: "+w.pool)
		w.hold("one", w.poolID)
		other := filepath.Join(w.directory, "other.yaml")
		w.replace(other, w.content("token: "+w.pool))
		for _, config := range []string{w.file(), other} {
			second := w.start("second", nil, "cmwa", "run", "--config", config)
			second.exit(cli.ExitFailure)
			for _, want := range []string{"another agent uses the state directory", "state_directory", w.file(),
				fmt.Sprintf("(pid %d)", first.cmd.Process.Pid)} {
				second.waitFor(want)
			}
		}
		w.release("one")
	})

	t.Run("agents with separate state directories do not adopt or stop each other's jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker") // both agents use one engine, but have no common directory
		private := func(name string) []string {
			directory := filepath.Join(w.directory, name)
			w.must(os.Mkdir(directory, 0o700))
			return []string{"TMPDIR=" + directory, "XDG_STATE_HOME=" + directory}
		}
		w.follow(private("one"), "token: "+w.pool)
		release := w.holdAnywhere("one", w.poolID)
		second := w.follow(private("two"), "token: "+w.pool)
		second.signal(syscall.SIGTERM)
		second.signal(syscall.SIGTERM)
		second.exit(cli.ExitOK)
		second.wantPrinted(0, "job resumed") // of the first agent
		release()
	})

	t.Run("an agent in a container that replaces another container adopts the job", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker")
		programs, config, state := filepath.Dir(staticCmwa(t)), t.TempDir(), t.TempDir()
		w.must(os.WriteFile(filepath.Join(config, "agent.yaml"),
			[]byte(w.content("token: "+w.pool, "working_directory: /opt/cmwa")), 0o600))
		start := func() (container string) {
			container = w.engine("run", "--detach", "--volume", programs+":/opt/cmwa:ro",
				"--volume", config+":/etc/cmwa:ro", "--volume", state+":/var/lib/cmwa",
				"--volume", engineSocket()+":/var/run/docker.sock", "--entrypoint", "/opt/cmwa/cmwa", baseImage,
				"run", "--config", "/etc/cmwa/agent.yaml")
			t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", container).Run() })
			return container
		}
		first := start()
		release := w.holdAnywhere("one", w.poolID)
		w.engine("rm", "--force", first)
		second := start()
		w.eventually("the agent in the new container adopts the job",
			func() bool { return strings.Contains(logsOf(second), "job resumed") })
		release()
		w.waitRemoved("one")
	})

	t.Run("without a usable state directory the agent works and logs what it cannot do", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		occupied := filepath.Join(w.directory, "occupied")
		w.must(os.WriteFile(occupied, nil, 0o600))
		agent := w.follow(nil, "token: "+w.pool, "state_directory: "+occupied)
		agent.waitFor("after a restart the agent cannot adopt its present jobs")
		agent.waitFor("set state_directory to a directory")
		w.hold("one", w.poolID)
		w.release("one")
	})
}
