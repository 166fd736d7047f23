package kube

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

const (
	testNamespace = "jobs"
	testLimit     = clusterLimit // far more than any test takes
)

// fakeCluster is a fake cluster whose containers are functions: the init container reports
// a key, and the job's container opens the handoff and calls a function of the test.
type fakeCluster struct {
	*kubetest.API
	kubelet *kubetest.Kubelet
	service *runtimetest.Service

	mu       sync.Mutex
	keys     map[string][]byte // private keys by uid of the Pod
	received []*runtime.Handoff
}

// newFakeCluster starts a fake cluster. The job's container calls job when it has its
// handoff; job returns the exit code.
func newFakeCluster(t testing.TB, job func(*kubetest.Container) int) *fakeCluster {
	t.Helper()
	return newFakeClusterOn(t, kubetest.NewAPI(t), job)
}

// newFakeClusterOn does what newFakeCluster does, with an existing API server.
func newFakeClusterOn(t testing.TB, api *kubetest.API, job func(*kubetest.Container) int) *fakeCluster {
	t.Helper()
	s := &fakeCluster{API: api, service: runtimetest.NewService(), keys: map[string][]byte{}}
	s.kubelet = kubetest.NewKubelet(t, s.API, func(c *kubetest.Container) int {
		if c.Init {
			return s.prepare(c)
		}
		if err := s.open(c); err != nil {
			fmt.Fprintln(c, err)
			return runtime.CodeUsage
		}
		return job(c)
	})
	return s
}

func (s *fakeCluster) prepare(c *kubetest.Container) int {
	private, public, err := handoff.NewKey()
	if err != nil {
		return 1
	}
	s.mu.Lock()
	s.keys[string(c.Pod.UID)] = private
	s.mu.Unlock()
	c.Report(public)
	return 0
}

// open waits for the handoff and opens it.
func (s *fakeCluster) open(c *kubetest.Container) error {
	for {
		pod, news := c.Newest()
		if sealed := s.sealed(pod); sealed != "" {
			s.mu.Lock()
			private := s.keys[string(pod.UID)]
			s.mu.Unlock()
			text, err := handoff.Open(private, senderOf(c.Pod), recipientOf(pod), sealed)
			if err != nil {
				return err
			}
			h, err := runtime.ReadHandoff(strings.NewReader(string(text)))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.received = append(s.received, h)
			return err
		}
		select {
		case <-news:
		case <-c.Term:
			return errors.New("asked to stop before the agent has sent the handoff")
		}
	}
}

// sealed returns the sealed handoff of a Pod, from its annotation or its ConfigMap; empty before it
// has arrived.
func (s *fakeCluster) sealed(pod *corev1.Pod) string {
	sealed := pod.Annotations[annotationHandoff]
	if sealed != inConfigMap.annotationValue() {
		return sealed
	}
	for _, o := range s.Objects(configMaps, testNamespace) {
		if o.GetName() == objectOf(pod.Name) {
			return o.(*corev1.ConfigMap).Data[handoff.SealedFile]
		}
	}
	return ""
}

// senderOf returns the public key in the command of the job's container.
func senderOf(pod *corev1.Pod) string {
	command := pod.Spec.Containers[0].Command
	return command[slices.Index(command, "--sender")+1]
}

// handoffs returns the handoffs that the jobs' containers have received.
func (s *fakeCluster) handoffs() []*runtime.Handoff {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*runtime.Handoff(nil), s.received...)
}

// succeed is a job that reports one line and succeeds.
func succeed(c *kubetest.Container) int {
	line, _ := json.Marshal(runtime.Progress{Step: 0, Status: runtime.Succeeded})
	fmt.Fprintf(c, "level=INFO msg=hello\n%s\n", line)
	return runtime.CodeSucceeded
}

// runUntilTerm is a job that runs until it gets a TERM.
func runUntilTerm(c *kubetest.Container) int {
	fmt.Fprintln(c, `{"step":1,"lines":2}`)
	<-c.Term
	return 143
}

// job returns a new job of the service.
func (s *fakeCluster) job(id string) *runtime.Job {
	job := testJob()
	job.ID, job.Definition = id, runtimetest.Definition("true")
	job.Tuning.Instance.Kubernetes.StartTimeout = 20 * time.Second
	s.service.Add(job)
	return job
}

// executor returns an executor for the fake cluster.
func (s *fakeCluster) executor(t testing.TB) *Executor {
	t.Helper()
	return executorOf(t, newCluster(t, Options{Config: s.Config(), Namespace: testNamespace, Agent: "agent-1"}))
}

// before makes each container with this name call wait before it starts.
func (s *fakeCluster) before(container string, wait func(*corev1.Pod)) {
	s.kubelet.Before = func(pod *corev1.Pod, c corev1.Container) {
		if c.Name == container {
			wait(pod)
		}
	}
}

// held returns a function that gives each Pod the status of podWith, so that no Pod runs.
func held(changes ...func(*corev1.Pod)) func(*corev1.Pod) *corev1.PodStatus {
	return func(*corev1.Pod) *corev1.PodStatus { return &podWith(changes...).Status }
}

// start starts a job, and returns its id and the log of step 0.
func (s *fakeCluster) start(t testing.TB, e *Executor, job *runtime.Job) (id, log string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	return startWith(ctx, t, e, job, s.service)
}

// mustStart starts a job, and returns its id.
func (s *fakeCluster) mustStart(t testing.TB, e *Executor, job *runtime.Job) string {
	t.Helper()
	id, log, err := s.start(t, e, job)
	if err != nil {
		t.Fatalf("start: %v\n%s", err, log)
	}
	return id
}

func waitFor(t testing.TB, e *Executor, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	exit, err := e.Wait(ctx, id)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

// wantNoPods checks that no Pod is left.
func (s *fakeCluster) wantNoPods(t testing.TB) {
	t.Helper()
	if pods := s.Pods(testNamespace); len(pods) > 0 {
		t.Errorf("got %d leftover Pods: %s", len(pods), pods[0].Name)
	}
}

// wantNoSecrets checks that no Secret is left, which other users could read.
func (s *fakeCluster) wantNoSecrets(t testing.TB) {
	t.Helper()
	if left := s.Objects(secrets, testNamespace); len(left) > 0 {
		t.Errorf("got leftover object %s", left[0].GetName())
	}
}

// failFirst returns a function that injects a fault into the first n requests with a verb.
func failFirst(n int, verb string, fault kubetest.Fault) func(kubetest.Request) *kubetest.Fault {
	var mu sync.Mutex
	return func(r kubetest.Request) *kubetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.Verb != verb || n == 0 {
			return nil
		}
		n--
		return &fault
	}
}

// failAll returns a function that injects a fault into all requests with a verb.
func failAll(verb string, fault kubetest.Fault) func(kubetest.Request) *kubetest.Fault {
	return failFirst(-1, verb, fault)
}

// failResource returns a function that injects a fault into all requests for a resource.
func failResource(resource string, fault kubetest.Fault) func(kubetest.Request) *kubetest.Fault {
	return func(r kubetest.Request) *kubetest.Fault {
		if r.Resource != resource {
			return nil
		}
		return &fault
	}
}

// failWatches injects a fault into all lists and watches.
func failWatches(r kubetest.Request) *kubetest.Fault {
	if r.Verb != "list" && r.Verb != "watch" {
		return nil
	}
	return &kubetest.Fault{Status: http.StatusServiceUnavailable}
}

func TestExecutorRequests(t *testing.T) {
	s := newFakeCluster(t, succeed)
	e := s.executor(t)
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := s.Requests()
	const jobs = 20
	for i := range jobs {
		id := s.mustStart(t, e, s.job(fmt.Sprint("job-", i)))
		stream, err := e.Follow(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(stream)
		if err != nil || string(text) != `{"step":0,"lines":0,"status":"succeeded"}`+"\n" {
			t.Errorf("the progress is %q, %v", text, err)
		}
		_ = stream.Close()
		waitFor(t, e, id)
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for verb, n := range difference(s.Requests(), before) {
		t.Logf("%s: %d", verb, n)
		total += n
	}
	// A conflict costs one more request. Conflicts are rare, because the watch nearly
	// always shows the newest Pod.
	if total > 5*jobs {
		t.Errorf("%d requests for %d jobs, want at most 5 for each", total, jobs)
	}
	s.wantNoPods(t)
}

func TestStartRetry(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(kubetest.Request) *kubetest.Fault
		log   string // expected in the log of step 0
	}{
		"create is answered with 500": {
			failFirst(2, "create", kubetest.Fault{Status: http.StatusInternalServerError, Message: "etcd is slow"}),
			"cannot be created yet, retrying: etcd is slow",
		},
		"connection breaks at create":  {failFirst(1, "create", kubetest.Fault{}), "retrying"},
		"response to create is lost":   {failFirst(1, "create", kubetest.Fault{After: true}), "retrying"},
		"update meets three conflicts": {failFirst(3, "update", kubetest.Fault{Status: http.StatusConflict}), ""},
		"watch is answered with 410":   {failFirst(1, "watch", kubetest.Fault{Status: http.StatusGone}), ""},
		"watch is answered with 500": {
			failFirst(2, "watch", kubetest.Fault{Status: http.StatusInternalServerError}), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeCluster(t, succeed)
			s.Inject(c.fault)
			e, job := s.executor(t), s.job("job-1")
			id, log, err := s.start(t, e, job)
			if err != nil {
				t.Fatal(err)
			}
			if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
				t.Errorf("got exit %+v", exit)
			}
			if !strings.Contains(log, c.log) {
				t.Errorf("log of step 0:\n%s\nwant %q", log, c.log)
			}
			if got := s.handoffs(); len(got) != 1 || got[0].Token != job.Token.Reveal() {
				t.Errorf("%d Pods received a handoff, want 1 with the token of the job", len(got))
			}
			if pods := s.Pods(testNamespace); len(pods) != 1 {
				t.Errorf("there are %d Pods, want 1", len(pods))
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
			s.wantNoPods(t)
		})
	}
}

func TestStartFailure(t *testing.T) {
	run := func(name string, test func(*testing.T, *fakeCluster)) {
		inBubble(t, name, func(t *testing.T) {
			test(t, newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed))
		})
	}
	refused := func(status int, message string) func(kubetest.Request) *kubetest.Fault {
		return failAll("create", kubetest.Fault{Status: status, Message: message})
	}
	for name, c := range map[string]struct {
		fault    func(kubetest.Request) *kubetest.Fault
		hold     func(*corev1.Pod) *corev1.PodStatus
		jobFault bool
		want     string
		reason   runtime.StartFailure
	}{
		"quota requires requests": {
			fault: refused(403, `failed quota: q: must specify requests.cpu for: pulumi-workflow`),
			want:  "change kubernetes.cpu", reason: runtime.FailureInstance,
		},
		"right is missing": {
			fault: refused(403, `pods is forbidden: User "u" cannot create resource "pods"`), want: "lacks a right",
			reason: runtime.FailureDenied,
		},
		"credentials expired": {
			fault: refused(401, "Unauthorized"), want: "does not accept the agent's credentials",
			reason: runtime.FailureDenied,
		},
		"image is missing and never pulled": {
			hold: held(mainWaits("ErrImageNeverPull", "no such image")), jobFault: true,
			want: "ErrImageNeverPull: no such image (waited for 100ms)", reason: runtime.FailureImage,
		},
		"image cannot be pulled": {
			hold: held(mainWaits("ImagePullBackOff", "refused")), jobFault: true,
			want: "ImagePullBackOff: refused (waited for 500ms)", reason: runtime.FailureImage,
		},
		"cluster is full": {
			hold: held(condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/1 nodes")),
			want: "Unschedulable: 0/1 nodes (waited for 500ms)", reason: runtime.FailureUnschedulable,
		},
		"no reason": {
			hold: held(), want: "see its events (waited for 500ms)", reason: runtime.FailureInstance,
		},
		"evicted": {
			hold: held(phase(corev1.PodFailed, "Evicted", "disk pressure")), want: "Evicted: disk pressure",
			reason: runtime.FailureInstance,
		},
		"image without a key": {
			hold: held(initIs(ends(prepareContainer, 0, "Completed", ""))), want: "must be of this agent's release",
			reason: runtime.FailureInstance,
		},
	} {
		run(name, func(t *testing.T, s *fakeCluster) {
			s.Inject(c.fault)
			s.kubelet.Hold = c.hold
			e, job := s.executor(t), s.job("job-1")
			e.stuckLimit = 100 * time.Millisecond
			job.Tuning.Instance.Kubernetes.StartTimeout = 500 * time.Millisecond
			_, log, err := s.start(t, e, job)
			wantStartError(t, log, err, c.want, c.jobFault)
			if got := runtime.FailureOf(err); got != c.reason {
				t.Errorf("the reason for metrics is %q, want %q", got, c.reason)
			}
			s.wantNoPods(t)
		})
	}
	run("start_timeout is shorter than the limit for permanent problems", func(t *testing.T, s *fakeCluster) {
		s.kubelet.Hold = held(mainWaits("InvalidImageName", "upper case"))
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Instance.Kubernetes.StartTimeout = 200 * time.Millisecond
		_, _, err := s.start(t, e, job)
		if want := "InvalidImageName: upper case (waited for 200ms)"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	})
	proxyFirst := func(p *corev1.Pod) {
		p.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy:1"}}, p.Spec.Containers...)
	}
	run("image of the job, behind the proxy of a service mesh", func(t *testing.T, s *fakeCluster) {
		s.Mutate(proxyFirst)
		s.kubelet.Hold = held(mainWaits("InvalidImageName", "upper case"))
		e := s.executor(t)
		e.stuckLimit = 100 * time.Millisecond
		_, log, err := s.start(t, e, s.job("job-1"))
		wantStartError(t, log, err, "InvalidImageName: upper case", true)
	})
	for name, mutate := range map[string]func(*corev1.Pod){
		"removes": func(p *corev1.Pod) { delete(p.Labels, labelJob) },
		"changes": func(p *corev1.Pod) { p.Labels[labelManagedBy] = "platform" },
	} {
		run("admission "+name+" a label of the agent", func(t *testing.T, s *fakeCluster) {
			s.Mutate(mutate)
			e, job := s.executor(t), s.job("job-1")
			const want = "the admission of the cluster changes a label of the agent"
			started := time.Now()
			_, log, err := s.start(t, e, job)
			wantStartError(t, log, err, want, false)
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("the start failed after %s, want at once", took)
			}
			s.wantNoPods(t)
			if err := e.Check(t.Context(), job.Tuning); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: got %v, want %q", err, want)
			}
		})
	}
	run("Pod deleted before its job started", func(t *testing.T, s *fakeCluster) {
		s.kubelet.Hold = func(p *corev1.Pod) *corev1.PodStatus {
			go s.Drop(p.Namespace, p.Name)
			return &podWith().Status
		}
		_, _, err := s.start(t, s.executor(t), s.job("job-1"))
		if err == nil || !strings.Contains(err.Error(), deletedText) {
			t.Errorf("got %v, want an error because the Pod was deleted", err)
		}
		s.wantNoPods(t)
	})
}

// randomJSON returns a JSON string with size random bytes in base64. Compression cannot
// make it smaller than size.
func randomJSON(t *testing.T, size int) json.RawMessage {
	t.Helper()
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // never fails, see crypto/rand
	text, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
