package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// transientFaults are responses as API servers send them, one for each row of transientResponses, and
// more. A later attempt may succeed.
var transientFaults = map[string]kubetest.Fault{
	"conflict of a quota": {Status: http.StatusConflict, Message: `Operation cannot be fulfilled on resourcequotas ` +
		`"gke-resource-quotas": the object has been modified; please apply your changes to the latest version`},
	"conflict of a quota of OpenShift": {Status: http.StatusConflict, Message: `Operation cannot be fulfilled on ` +
		`clusterresourcequotas.quota.openshift.io "team": the object has been modified`},
	"quota evaluation timed out": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: ` +
		`resource quota evaluation timed out`},
	"quota without a status": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: ` +
		`status unknown for quota: team, resources: pods`},
	"quota that is used up": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: exceeded quota: team, ` +
		`requested: pods=1, used: pods=5, limited: pods=5`},
	"admission that has just started": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: ` +
		`not yet ready to handle request`},
	"limits that cannot be read": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: unable to CREATE ` +
		`pods at this time because there was an error enforcing limit ranges`},
	"etcd is slow": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: error looking up service ` +
		`account jobs/default: etcdserver: request timed out`},
	"etcd has another leader": {Status: http.StatusForbidden, Message: `pods "p" is forbidden: etcdserver: ` +
		`leader changed`},
	"etcd has no leader":        {Status: http.StatusForbidden, Message: "etcdserver: no leader"},
	"etcd has too many queries": {Status: http.StatusForbidden, Message: "etcdserver: too many requests"},
	"too many requests":         {Status: http.StatusTooManyRequests, Message: "too many requests"},
	"webhook that times out": {Status: http.StatusInternalServerError, Message: `Internal error occurred: failed ` +
		`calling webhook "w": context deadline exceeded`},
}

// TestStartTransientResponses starts jobs while the API server refuses the first two creates of a
// Pod, of a ConfigMap or of a Secret.
func TestStartTransientResponses(t *testing.T) {
	for name, fault := range transientFaults {
		for resource, change := range map[string]func(*runtime.Job){
			pods:       func(*runtime.Job) {},
			configMaps: func(job *runtime.Job) { job.Definition.Raw = randomJSON(t, 200<<10) },
			secrets:    func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Handoff = handoffSecret },
		} {
			inBubble(t, resource+", "+name, func(t *testing.T) {
				s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
				var creates atomic.Int32
				s.Inject(func(r kubetest.Request) *kubetest.Fault {
					if r.Verb != "create" || r.Resource != resource || creates.Add(1) > 2 {
						return nil
					}
					return &fault
				})
				e, job := s.executor(t), s.job("job-1")
				change(job)
				id, log, err := s.start(t, e, job)
				if err != nil || creates.Load() != 3 {
					t.Fatalf("got %v after %d creates, want a start after 3\n%s", err, creates.Load(), log)
				}
				if err := e.Remove(t.Context(), id, 0); err != nil {
					t.Error(err)
				}
				s.wantNoPods(t)
			})
		}
	}
}

// TestJournalTransientResponses adds a record while the API server refuses the first two creates.
func TestJournalTransientResponses(t *testing.T) {
	for name, fault := range transientFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, all := newAgents(t, "agent-x")
			a.Inject(failFirst(2, "create", fault))
			started := time.Now()
			journalOf(all[0]).add(t, "job-1")
			a.wantRecords(t, "job-1")
			if took := time.Since(started); took < createBackoff.First {
				t.Errorf("the record was added after %s, want delays between the attempts", took)
			}
		})
	}
}

// TestTemporary checks responses that must not be retried for longer than a refusal of the agent's
// rights.
func TestTemporary(t *testing.T) {
	for name, c := range map[string]struct {
		status    int32
		message   string
		wantRight bool // want a missing right
	}{
		"conflict of a Pod": {409, `Operation cannot be fulfilled on pods "p": the object has been modified`, false},
		"invalid Pod":       {422, `Pod "p" is invalid`, false},
		"missing namespace": {404, `namespaces "jobs" not found`, false},
		"missing right": {403, `pods is forbidden: User "system:serviceaccount:jobs:agent" cannot create resource ` +
			`"pods" in API group "" in the namespace "jobs"`, true},
		"webhook that refuses the Pod": {403, `admission webhook "policy" denied the request: a Pod cannot use ` +
			`the image of User "robot"`, false},
		"quota that requires requests": {403, `failed quota: q: must specify requests.cpu`, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := &apierrors.StatusError{ErrStatus: metav1.Status{Code: c.status, Message: c.message}}
			if temporary(err) || lacksRight(err) != c.wantRight {
				t.Errorf("temporary: %v, missing right: %v, want false and %v", temporary(err), lacksRight(err),
					c.wantRight)
			}
		})
	}
	t.Run("a webhook's refusal ends a start at once", func(t *testing.T) {
		s := newFakeCluster(t, succeed)
		const refusal = `admission webhook "policy" denied the request: this cannot run here`
		s.Inject(failAll("create", kubetest.Fault{Status: http.StatusForbidden, Message: refusal}))
		_, log, err := s.start(t, s.executor(t), s.job("job-1"))
		wantStartError(t, log, err, "this cannot run here", false)
		if strings.Contains(log, "retrying") || strings.Contains(log, "lacks a right") {
			t.Errorf("the log of step 0 describes a missing right:\n%s", log)
		}
		if all := s.Requests(); all["create"] != 1 || all["delete"] != 0 {
			t.Errorf("got %v, want one create and no delete", all)
		}
	})
}

// TestStartParallelQuotaOnCluster starts 20 jobs at once in a namespace with a quota that another
// client changes all the time, so that the API server refuses creates with conflicts of the quota.
func TestStartParallelQuotaOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e, a := openExecutor(t, n), adminOf(t, n)
	const jobs = 20
	a.addQuota()
	allowed := values{"pods": fmt.Sprint(jobs), "count/configmaps": "100"}
	a.do(http.MethodPatch, a.path("resourcequotas", "quota"), values{"spec": values{"hard": allowed}})

	changed := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-changed:
				return
			default:
			}
			change := values{"metadata": values{"annotations": values{"change": fmt.Sprint(i)}}}
			a.do(http.MethodPatch, a.path("resourcequotas", "quota"), change)
		}
	})
	var conflicts atomic.Int32
	var group sync.WaitGroup
	for range jobs {
		group.Go(func() {
			job, service := newClusterJob(t, n, func(*runtime.Job) {})
			id, log, err := startWith(t.Context(), t, e, job, service)
			if strings.Contains(log, "cannot be fulfilled on resourcequotas") {
				conflicts.Add(1)
			}
			if err != nil {
				t.Errorf("%v\n%s", err, log)
				return
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	close(changed)
	changes.Wait()
	t.Logf("%d of %d jobs were refused with a conflict of the quota at first", conflicts.Load(), jobs)
}
