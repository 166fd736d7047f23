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

// startWith starts an agent with these lines in its file, and blocks until the agent has
// converged.
func (w *world) startWith(file string, env []string, lines ...string) *program {
	w.t.Helper()
	w.replace(file, w.content(lines...))
	agent := w.start("agent", env, "cmwa", "run", "--config", file)
	agent.waitFor("converged")
	return agent
}

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
	w.queue(stack, order{
		Steps:   []step{{Name: "a", Run: "echo running; while ! [ -e /released ]; do sleep 0.02; done; echo finished"}},
		Request: map[string]any{"agentPoolID": poolID},
	})
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
	for name, edit := range map[string]func(w *world, file string){
		"renamed pool": func(w *world, file string) {
			w.replace(file, w.content("pools: [{name: new, token: "+w.pool+"}]", "http_server_port: 0"))
		},
		"other pool id": func(w *world, file string) {
			w.replace(file,
				w.content("pools: [{name: old, token: "+w.pool+", runner_pool_id: another}]", "http_server_port: 0"))
		},
	} {
		t.Run(name+" is drained after a restart and its instance removed", func(t *testing.T) {
			atLocalTargets(t, func(t *testing.T, w *world) {
				port := freePort(t)
				file := filepath.Join(w.directory, "agent.yaml")
				agent := w.startWith(file, nil, "pools: [{name: old, token: "+w.pool+"}]")
				release := w.holdAnywhere("one", w.poolID)
				w.kill(agent)
				edit(w, file)
				text, err := os.ReadFile(file)
				w.must(err)
				w.replace(file,
					strings.Replace(string(text), "http_server_port: 0", fmt.Sprint("http_server_port: ", port), 1))
				again := w.start("agent", nil, "cmwa", "run", "--config", file)
				w.wantAdopted(again, agent)

				url := fmt.Sprintf("http://127.0.0.1:%d", port)
				asked := client{url: url}
				w.eventually("the agent is ready", func() bool { return probe(url+"/readyz") == http.StatusOK })
				d, err := asked.fetch(t.Context())
				w.must(err)
				if phases := fmt.Sprint(phasesOf(d)); phases != "map[draining:1 polling:1]" &&
					phases != "map[draining:1 paused:1]" {
					t.Errorf("the pools are %s", phases)
				}
				w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}}) // the other pool has its own slot
				w.await("two", "succeeded")

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
		file := filepath.Join(w.directory, "agent.yaml")
		agent := w.startWith(file, nil, "token: "+w.pool)
		release := w.holdAnywhere("one", w.poolID)
		w.kill(agent)
		w.target = "docker"
		again := w.startWith(file, nil, "token: "+w.pool)
		w.wantAdopted(again, agent)
		w.target = "process"
		release()
		w.eventually("nothing is left of the job", func() bool { return len(w.leftovers()) == 0 })
	})

	t.Run("a pool that is configured again while it drains is revived", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		file := filepath.Join(w.directory, "agent.yaml")
		other := w.pools(1)
		agent := w.startWith(file, nil, "pools: [{name: old, token: "+w.pool+"}]")
		release := w.holdAnywhere("one", w.poolID)
		w.kill(agent)
		again := w.startWith(file, nil, "pools: [{name: new, token: "+other[0].token+"}]")
		w.wantAdopted(again, agent)
		w.replace(file, w.content("pools: [{name: old, token: "+w.pool+"}]"))
		again.waitFor("revive pool old")
		w.queueHeld("two", w.poolID) // not claimed while the adopted job uses the pool's only slot
		release()
		w.waitStarted("two")
		w.release("two")
		if n := strings.Count(again.output(), "job resumed"); n != 1 {
			t.Errorf("the job was adopted %d times, want once:\n%s", n, again.output())
		}
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
	agent := w.startWith(filepath.Join(w.directory, "agent.yaml"), nil, "token: "+w.pool,
		"shared_volume_directory: "+shared)
	w.eventually("the directory is removed", func() bool { _, err := os.Stat(crashed); return os.IsNotExist(err) })
	agent.waitFor("removed leftovers of agents that no longer exist")
}

func TestIdentityExamples(t *testing.T) {
	unit, err := os.ReadFile("../../examples/systemd/cmwa.service")
	if err != nil || !regexp.MustCompile(`(?m)^StateDirectory=cmwa$`).Match(unit) {
		t.Errorf("the systemd unit has no line StateDirectory=cmwa (%v)", err)
	}
	text, err := os.ReadFile("../../examples/compose/compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
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
			return w.startWith(name+".yaml", nil, "token: "+p[n].token, "state_directory: "+name)
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
		p := w.pools(1)
		file := filepath.Join(w.directory, "agent.yaml")
		start := func(name string) *program {
			return w.startWith(file, w.ownState(name), "token: "+p[0].token)
		}
		first := start("first")
		w.hold("one", p[0].id)
		second := start("second")
		w.hold("two", p[0].id)
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
		file, other := filepath.Join(w.directory, "agent.yaml"), filepath.Join(w.directory, "other.yaml")
		first := w.startWith(file, nil, "token: "+w.pool)
		w.hold("one", w.poolID)
		w.replace(other, w.content("token: "+w.pool))
		for _, config := range []string{file, other} {
			second := w.start("second", nil, "cmwa", "run", "--config", config)
			second.exit(cli.ExitFailure)
			for _, want := range []string{"another agent uses the state directory", "state_directory", file,
				fmt.Sprintf("(pid %d)", first.cmd.Process.Pid)} {
				second.waitFor(want)
			}
		}
		w.release("one")
	})

	t.Run("agents with separate state directories do not adopt or stop each other's jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker") // both agents use one engine, but have no common directory
		p := w.pools(1)
		private := func(name string) []string {
			directory := filepath.Join(w.directory, name)
			w.must(os.Mkdir(directory, 0o700))
			return []string{"TMPDIR=" + directory, "XDG_STATE_HOME=" + directory}
		}
		file := filepath.Join(w.directory, "agent.yaml")
		w.startWith(file, private("one"), "token: "+p[0].token)
		release := w.holdAnywhere("one", p[0].id)
		second := w.startWith(file, private("two"), "token: "+p[0].token)
		second.signal(syscall.SIGTERM)
		second.signal(syscall.SIGTERM)
		second.exit(cli.ExitOK)
		if strings.Contains(second.output(), "job resumed") {
			t.Errorf("the second agent has adopted the job of the first:\n%s", second.output())
		}
		release()
	})

	t.Run("an agent in a container that replaces another container adopts the job", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker")
		programs, err := staticPrograms()
		w.must(err)
		directory := t.TempDir()
		config, state := filepath.Join(directory, "config"), filepath.Join(directory, "state")
		for _, sub := range []string{config, state} {
			w.must(os.Mkdir(sub, 0o755))
		}
		w.must(os.WriteFile(filepath.Join(config, "agent.yaml"),
			[]byte(w.content("token: "+w.pool, "working_directory: /opt/cmwa")), 0o600))
		socket := "/var/run/docker.sock"
		if host, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
			socket = host
		}
		start := func() (container string) {
			container = w.engine("run", "--detach", "--volume", programs+":/opt/cmwa:ro", "--volume", config+
				":/etc/cmwa:ro", "--volume", state+":/var/lib/cmwa",
				"--volume", socket+":/var/run/docker.sock", "--entrypoint", "/opt/cmwa/cmwa", baseImage,
				"run", "--config", "/etc/cmwa/agent.yaml")
			t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", container).Run() })
			return container
		}
		first := start()
		release := w.holdAnywhere("one", w.poolID)
		w.engine("rm", "--force", first)
		second := start()
		w.eventually("the agent in the new container adopts the job", func() bool {
			output, err := exec.Command("docker", "logs", second).CombinedOutput()
			return err == nil && strings.Contains(string(output), "job resumed")
		})
		release()
		w.eventually("the container is removed", func() bool { return len(w.containers("one")) == 0 })
	})

	t.Run("without a usable state directory the agent works and logs what it cannot do", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(1)
		occupied := filepath.Join(w.directory, "occupied")
		w.must(os.WriteFile(occupied, nil, 0o600))
		agent := w.startWith(filepath.Join(w.directory, "agent.yaml"), nil, "token: "+p[0].token,
			"state_directory: "+occupied)
		agent.waitFor("after a restart the agent cannot adopt its present jobs")
		agent.waitFor("set state_directory to a directory")
		w.hold("one", p[0].id)
		w.release("one")
	})
}
