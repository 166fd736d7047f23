package kube

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	labelset "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// idleVariable is the environment variable with which TestExecutorIdleRequests runs 50 agents with 20 jobs each.
const idleVariable = "CMWA_TEST_IDLE"

// maxIdleRequests is the limit of the requests per second of 50 agents whose jobs run.
const maxIdleRequests = 2

// idleService has no work. All jobs run.
type idleService struct{ *runtimetest.Service }

func (idleService) Claim(context.Context) (runtime.Claim, error) {
	return runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(10 * time.Second)}}, nil
}

func (idleService) Report(context.Context, *runtime.Job, runtime.Report) error { return nil }

// idleRequests returns the requests per second of a number of agents, whose pools run a number of
// jobs each and have room for another one. It counts them for half an hour.
func idleRequests(t *testing.T, replicas, jobs int) (perSecond float64, counts map[string]int) {
	t.Helper()
	const span = 30 * time.Minute
	api := kubetest.NewAPIWithoutNetwork(t)
	kubetest.NewKubelet(t, api, func(c *kubetest.Container) int {
		if !c.Init {
			fmt.Fprintln(c, `{"step":1,"lines":2}`)
			<-c.Term
		}
		return 0
	})
	a := newWatchedAgents(api)

	// Create all Pods before the first watch.
	ids, clusters := make([][]string, replicas), make([]*Cluster, replicas)
	for i := range replicas {
		name := fmt.Sprintf("agent-%02d", i)
		a.put(name, "agent")
		clusters[i] = a.cluster(t, name)
		if err := clusters[i].Identify(t.Context()); err != nil {
			t.Fatal(err)
		}
		owner := &Executor{cluster: clusters[i], self: clusters[i].currentSelf()}
		for n := range jobs {
			id := fmt.Sprintf("job-%d-%d", i, n)
			a.putJob(t, owner, id, 0, func(p *corev1.Pod) {
				p.UID, p.Annotations[annotationHandoff] = types.UID(id), "sealed"
			})
			ids[i] = append(ids[i], id)
		}
	}
	synctest.Wait()

	// Start the agents.
	spec := runtime.PoolSpec{Name: "main", Identity: testJob().Identity, Tuning: runtime.Tuning{
		MaxJobs: jobs + 1, PollingInterval: 10 * time.Second, StatusInterval: time.Minute,
		Token: journalTuning().Token,
	}}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i, cluster := range clusters {
		e := cluster.Executor("")
		j, ok := e.Journal(spec.Key(), spec.Tuning)
		if !ok {
			t.Fatal("the pool has no journal")
		}
		for _, id := range ids[i] {
			record := testRecord(id)
			record.Pool = spec.Key()
			if err := j.Add(ctx, record); err != nil {
				t.Fatal(err)
			}
			meta := metav1.ObjectMeta{Name: namePrefix + id, UID: types.UID(id)}
			journal{e.records.Load()}.start(t, id, &corev1.Pod{ObjectMeta: meta})
		}
		agent := pool.New(spec, pool.Parts{
			Cloud: idleService{runtimetest.NewService()}, Executor: e, Journal: j, Agent: cluster.options.Agent,
			Close: e.Close, Environ: environ(nil), Log: slog.New(slog.DiscardHandler),
		})
		running.Go(func() {
			if err := agent.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}

	// Count requests.
	time.Sleep(2 * time.Minute)
	before := api.Requests()
	if before["log"] < replicas*jobs {
		t.Errorf("%d jobs are followed, want %d", before["log"], replicas*jobs)
	}
	time.Sleep(span)
	total := 0
	counts = difference(api.Requests(), before)
	for _, n := range counts {
		total += n
	}
	return float64(total) / span.Seconds(), counts
}

// TestExecutorIdleRequests checks that the requests of agents whose jobs run do not grow with the square of
// the number of agents. The benchmarks run it with more agents and jobs.
func TestExecutorIdleRequests(t *testing.T) {
	many, jobs := 10, 3
	if os.Getenv(idleVariable) != "" {
		many, jobs = 50, 20
	}
	perAgent := map[int]float64{}
	for _, replicas := range []int{2, many} {
		synctest.Test(t, func(t *testing.T) {
			perSecond, counts := idleRequests(t, replicas, jobs)
			perAgent[replicas] = perSecond / float64(replicas)
			t.Logf("%d agents with %d jobs each: %.2f requests a second: %v", replicas, jobs, perSecond, counts)
			if limit := maxIdleRequests * float64(replicas) / 50; perSecond > limit {
				t.Errorf("%d agents send %.2f requests a second, want at most %.2f", replicas, perSecond, limit)
			}
		})
	}
	if perAgent[many] > 1.1*perAgent[2] {
		t.Errorf("requests a second, by number of agents, per agent: %v, want no growth", perAgent)
	}
}

// TestWatchedAgents checks when an agent requests whether another agent exists.
func TestWatchedAgents(t *testing.T) {
	newPair := func(t *testing.T) (a *agents, first, second *Executor) {
		a = newWatchedAgents(kubetest.NewAPI(t))
		a.put("agent-x", "agent")
		a.put("agent-y", "agent")
		first, second = a.agent(t, "agent-x"), a.agent(t, "agent-y")
		awaitAgent(t, second, first.self.owner, true)
		return a, first, second
	}

	t.Run("agent runs", func(t *testing.T) {
		a, first, second := newPair(t)
		awaitOwner(t, second, a.job(t, first, "job-1"), first.self.owner)
		before := a.Requests()
		for range 10 {
			wantAdopted(t, second)
		}
		if more := difference(a.Requests(), before); len(more) > 0 {
			t.Errorf("requests %v, want none", more)
		}
	})
	for name, change := range map[string]func(*corev1.Pod){
		"agent is evicted": phase(corev1.PodFailed, "Evicted", ""),
		"node of the agent is lost": func(p *corev1.Pod) {
			condition(corev1.PodReady, corev1.ConditionFalse, "", "")(p)
			condition(corev1.ContainersReady, corev1.ConditionTrue, "", "")(p)
		},
		"labels of the agent change": func(p *corev1.Pod) { p.Labels["app"] = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			a, first, second := newPair(t)
			awaitOwner(t, second, a.job(t, first, "job-1"), first.self.owner)
			a.Change(testNamespace, "agent-x", change)
			awaitAgent(t, second, first.self.owner, false)
			before := a.Requests()["get"]
			if _, err := adopt(t, second); err != nil {
				t.Error(err)
			}
			if a.Requests()["get"] == before {
				t.Error("no request for the agent's Pod, want one")
			}
		})
	}

	t.Run("records are listed when an agent ends", func(t *testing.T) {
		a, first, second := newPair(t)
		j := journalOf(second)
		adopt := func() []runtime.Record {
			t.Helper()
			found, err := j.AdoptRecords(t.Context(), everyPool)
			if err != nil {
				t.Error(err)
			}
			return found
		}
		journalOf(first).add(t, "job-1")
		adopt()
		before := a.Requests()
		if found, more := adopt(), difference(a.Requests(), before); len(found)+len(more) > 0 {
			t.Errorf("adopted %v with requests %v, want nothing: the agent of the record runs", found, more)
		}
		a.Drop(testNamespace, "agent-x")
		awaitAgent(t, second, first.self.owner, false)
		wantRecord(t, adopt(), nil, "job-1", runtime.RecordClaimed)
		before = a.Requests()
		if found, more := adopt(), difference(a.Requests(), before); len(found)+len(more) > 0 {
			t.Errorf("adopted %v with requests %v, want nothing more", found, more)
		}
	})
}

// awaitAgent blocks until the watch of an executor shows whether an agent runs.
func awaitAgent(t testing.TB, e *Executor, o owner, runs bool) {
	t.Helper()
	for limit := time.Now().Add(testLimit); e.agents.runs(o) != runs; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the watch does not show that agent %s runs: %v", o.Name, runs)
		}
	}
}

func TestAgentSelector(t *testing.T) {
	for name, c := range map[string]struct{ pod, want string }{
		"Deployment":  {"app=agent,pod-template-hash=7d,tier=ci", "app=agent,tier=ci"},
		"StatefulSet": {"app=agent,controller-revision-hash=1,statefulset.kubernetes.io/pod-name=agent-0", "app=agent"},
		"no labels":   {"pod-template-hash=7d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			labels, err := labelset.ConvertSelectorToLabelsMap(c.pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := agentSelector(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
