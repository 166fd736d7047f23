package kube

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestEndReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"evicted": {
			phase(corev1.PodRunning, "Evicted", "the node was low on memory"), "Evicted: the node was low on memory",
		},
		"preempted": {
			disrupted("PreemptionByScheduler", "a higher priority"), "PreemptionByScheduler: a higher priority",
		},
		"deleted": {func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.DeletionGracePeriodSeconds = new(int64(30))
		}, deletedText},
		"runs": {func(*corev1.Pod) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, e, id, pod := newRunningJob(t)
			limit := testLimit
			if c.want == "" {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s.Change(testNamespace, pod, c.change)
			if got := e.EndReason(ctx, id); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestStartEndingPod(t *testing.T) {
	s := newFakeCluster(t, succeed)
	s.kubelet.Hold = held(initIs(prepared(t)))
	s.Inject(func(r kubetest.Request) *kubetest.Fault {
		if r.Verb == "update" && r.Resource == "pods" { // the update that sends the handoff
			go func() {
				for s.Pods(testNamespace)[0].Annotations[annotationHandoff] == "" && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
				s.Change(testNamespace, r.Name, disrupted("PreemptionByScheduler", "a higher priority"))
				s.Change(testNamespace, r.Name, mainEnds(143, "Error", ""))
			}()
		}
		return nil
	})
	e := s.executor(t)
	id, log, err := s.start(t, e, s.job("job-1"))
	if err != nil {
		t.Fatalf("got %v, want no error, because the job may run\n%s", err, log)
	}
	if exit := waitFor(t, e, id); exit.Code != 143 || exit.Reason != "PreemptionByScheduler: a higher priority" {
		t.Errorf("got exit %+v, want the preemption as the reason", exit)
	}
}

// oneJob is a service with one job.
type oneJob struct {
	*runtimetest.Service
	job chan *runtime.Job
}

// Claim returns the job once.
func (o *oneJob) Claim(context.Context) (runtime.Claim, error) {
	claim := runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(time.Hour)}}
	select {
	case claim.Job = <-o.job:
	default:
	}
	return claim, nil
}

// TestEndReasonOnCluster deletes and evicts Pods of running jobs. The runner reports the
// failure without knowing the reason. The log of the job contains the reason, and the job
// is reported once.
func TestEndReasonOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	core := adminOf(t, n).core
	for name, c := range map[string]struct {
		end  func(pod string) error
		want string
	}{
		"deleted by another client": {func(pod string) error {
			return core.Delete().Namespace(n.Name).Resource("pods").Name(pod).Do(t.Context()).Error()
		}, deletedText},
		"evicted": {func(pod string) error {
			eviction := `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "` + pod +
				`", "namespace": "` + n.Name + `"}}`
			return core.Post().Namespace(n.Name).Resource("pods").Name(pod).SubResource("eviction").
				SetHeader("Content-Type", "application/json").Body([]byte(eviction)).Do(t.Context()).Error()
		}, "EvictionByEvictionAPI"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service, job := newScriptJob(t, n.HostAddress(t),
				`trap 'echo unlocked; exit 1' TERM; echo running; while :; do sleep 0.1; done`)
			service.Add(job)
			e := openExecutor(t, n)
			cloud := &oneJob{service, make(chan *runtime.Job, 1)}
			cloud.job <- job
			tuning := job.Tuning
			tuning.MaxJobs, tuning.SingleRun, tuning.StatusInterval = 1, true, time.Hour
			tuning.Kinds = []runtime.Kind{runtime.Deployment}
			identity := job.Identity
			identity.Service = job.Service
			pool := pool.New(runtime.PoolSpec{Name: "main", Identity: identity, Tuning: tuning}, pool.Parts{
				Cloud: cloud, Executor: e, Agent: "agent-1", Environ: environ(nil),
				Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { ended <- pool.Run(ctx) }()
			defer func() { cancel(); <-ended }()

			service.Await(t, job.ID, "the shell to have its trap", // the log begins with the script
				func(r runtimetest.Record) bool { return strings.Contains(r.Text(1), "\nrunning\n") })
			all := podsOfJob(t, n, job)
			if len(all) != 1 {
				t.Fatalf("got the Pods %v, want 1", all)
			}
			if err := c.end(all[0]); err != nil {
				t.Fatal(err)
			}
			service.Await(t, job.ID, "the step to fail",
				func(r runtimetest.Record) bool { return r.Statuses()[1] == runtime.Failed })
			select {
			case err := <-ended:
				ended <- err
			case <-time.After(2 * time.Minute):
				t.Fatal("the pool does not end after its job")
			}
			text := service.Record(job.ID).Text(1)
			if !strings.Contains(text, "unlocked\nError: the job was stopped by a signal to its runner") ||
				!strings.HasPrefix(text[strings.LastIndex(text[:len(text)-1], "\n")+1:], "Reason: "+c.want) {
				t.Errorf("step 1 printed\n%s", text)
			}
			if bad := service.Violations(); len(bad) > 0 {
				t.Errorf("invalid requests to the service: %q", bad)
			}
		})
	}
}
