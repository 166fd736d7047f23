package kube

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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
	testLimit     = 30 * time.Second // far beyond what anything takes here
)

// scripted is a fake cluster whose containers are functions: the init container
// reports a key, and the job's container opens the handoff and does what job says.
type scripted struct {
	*kubetest.API
	kubelet *kubetest.Kubelet
	service *runtimetest.Service

	mu   sync.Mutex
	keys map[string][]byte // private keys by uid of the Pod
	seen []*runtime.Handover
}

// newScripted starts a fake cluster. Job is what the job's container does when it
// has its handoff; it returns the exit code.
func newScripted(t testing.TB, job func(*kubetest.Container) int) *scripted {
	t.Helper()
	return newScriptedOn(t, kubetest.NewAPI(t), job)
}

// newScriptedOn is newScripted with a given API server.
func newScriptedOn(t testing.TB, api *kubetest.API, job func(*kubetest.Container) int) *scripted {
	t.Helper()
	s := &scripted{API: api, service: runtimetest.NewService(), keys: map[string][]byte{}}
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

func (s *scripted) prepare(c *kubetest.Container) int {
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
func (s *scripted) open(c *kubetest.Container) error {
	for {
		pod, news := c.Newest()
		if sealed := pod.Annotations[annotationHandoff]; sealed != "" {
			s.mu.Lock()
			private := s.keys[string(pod.UID)]
			s.mu.Unlock()
			text, err := handoff.Open(private, recipientOf(pod), sealed)
			if err != nil {
				return err
			}
			h, err := runtime.ReadHandover(strings.NewReader(string(text)))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen = append(s.seen, h)
			return err
		}
		select {
		case <-news:
		case <-c.Term:
			return errors.New("asked to stop before the agent has sent the handoff")
		}
	}
}

// handoffs returns what the job's containers have received.
func (s *scripted) handoffs() []*runtime.Handover {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*runtime.Handover(nil), s.seen...)
}

// succeed is a job that reports one line and succeeds.
func succeed(c *kubetest.Container) int {
	line, _ := json.Marshal(runtime.Progress{Step: 0, Status: runtime.Succeeded})
	fmt.Fprintf(c, "level=INFO msg=hello\n%s\n", line)
	return runtime.CodeSucceeded
}

// last is a job that runs until it is asked to end.
func last(c *kubetest.Container) int {
	fmt.Fprintln(c, `{"step":1,"lines":2}`)
	<-c.Term
	return 143
}

// job makes a job that the service knows.
func (s *scripted) job(id string) *runtime.Job {
	job := testJob()
	job.ID, job.Definition = id, runtimetest.Definition("true")
	job.Tuning.Place.Kubernetes.StartTimeout = 20 * time.Second
	s.service.Add(job)
	return job
}

// executor makes an executor with short limits.
func (s *scripted) executor(t testing.TB) *Executor {
	t.Helper()
	cluster, err := New(Options{
		RunnerDirectory: runnerDirectory,
		Config:          s.Config(), Namespace: testNamespace, Image: agentImage, Agent: "agent-1",
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := cluster.Executor("")
	t.Cleanup(e.Close)
	return e
}

// start starts a job and returns its id and what step 0 says.
func (s *scripted) start(t testing.TB, e *Executor, job *runtime.Job) (id, log string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	setup := runtime.NewSetup(job, s.service, runtimetest.Offer(job))
	id, err = e.Start(ctx, job, setup)
	if err != nil {
		if err := setup.Fail(ctx, err); err != nil {
			t.Errorf("report the failed set-up: %v", err)
		}
	}
	return id, s.service.Record(job.ID).Text(0), err
}

// run runs a job to its end.
func (s *scripted) run(t testing.TB, e *Executor, job *runtime.Job) runtime.Exit {
	t.Helper()
	id, _, err := s.start(t, e, job)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	exit := waitFor(t, e, id)
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Fatalf("remove: %v", err)
	}
	return exit
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

// none checks that no Pod is left.
func (s *scripted) none(t testing.TB) {
	t.Helper()
	if pods := s.Pods(testNamespace); len(pods) > 0 {
		t.Errorf("%d Pods are left: %s", len(pods), pods[0].Name)
	}
}

// times returns a function that injects a fault into the first n calls of a verb.
func times(n int, verb string, fault kubetest.Fault) func(kubetest.Request) *kubetest.Fault {
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

func TestRequests(t *testing.T) {
	s := newScripted(t, succeed)
	e := s.executor(t)
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := s.Requests()
	const jobs = 20
	for i := range jobs {
		job := s.job(fmt.Sprint("job-", i))
		id, _, err := s.start(t, e, job)
		if err != nil {
			t.Fatal(err)
		}
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
	for verb, n := range s.Requests() {
		n -= before[verb]
		t.Logf("%s: %d", verb, n)
		total += n
	}
	// Conflicts cost one more request; the watch shows the newest Pod nearly always.
	if total > 5*jobs {
		t.Errorf("%d requests for %d jobs, want at most 5 for each", total, jobs)
	}
	s.none(t)
}

func TestStartWithFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(kubetest.Request) *kubetest.Fault
		log   string // that step 0 contains
	}{
		"create is answered with 429":      {times(1, "create", kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: 1}), ""},
		"create is answered with 500":      {times(2, "create", kubetest.Fault{Status: http.StatusInternalServerError, Message: "etcd is slow"}), "cannot be created yet, trying again: etcd is slow"},
		"connection breaks at create":      {times(1, "create", kubetest.Fault{}), "trying again"},
		"answer of create is lost":         {times(1, "create", kubetest.Fault{After: true}), "trying again"},
		"quota is used up for a moment":    {times(1, "create", kubetest.Fault{Status: http.StatusForbidden, Message: "exceeded quota: q, requested: pods=1"}), "exceeded quota"},
		"update meets a conflict":          {times(1, "update", kubetest.Fault{Status: http.StatusConflict}), ""},
		"update meets three conflicts":     {times(3, "update", kubetest.Fault{Status: http.StatusConflict}), ""},
		"update is answered with 500":      {times(1, "update", kubetest.Fault{Status: http.StatusInternalServerError}), ""},
		"answer of update is lost":         {times(1, "update", kubetest.Fault{After: true}), ""},
		"watch is answered with 410":       {times(1, "watch", kubetest.Fault{Status: http.StatusGone}), ""},
		"watch is answered with 500":       {times(2, "watch", kubetest.Fault{Status: http.StatusInternalServerError}), ""},
		"watch as a stream is not offered": {times(1, "watch", kubetest.Fault{Status: http.StatusUnprocessableEntity}), ""},
		"create takes a second":            {times(1, "create", kubetest.Fault{Hang: time.Second, Status: http.StatusServiceUnavailable}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScripted(t, succeed)
			s.Inject(c.fault)
			e, job := s.executor(t), s.job("job-1")
			id, log, err := s.start(t, e, job)
			if err != nil {
				t.Fatal(err)
			}
			if exit := waitFor(t, e, id); exit.Code != runtime.CodeSucceeded {
				t.Errorf("the job ended with %+v", exit)
			}
			if !strings.Contains(log, c.log) {
				t.Errorf("step 0 says\n%s\nwant %q", log, c.log)
			}
			if got := s.handoffs(); len(got) != 1 || got[0].Token != job.Token.Reveal() {
				t.Errorf("%d Pods received the handoff", len(got))
			}
			if pods := s.Pods(testNamespace); len(pods) != 1 {
				t.Errorf("there are %d Pods", len(pods))
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
			s.none(t)
		})
	}
}

func TestStartThatFails(t *testing.T) {
	held := func(changes ...func(*corev1.Pod)) func(*corev1.Pod) *corev1.PodStatus {
		return func(*corev1.Pod) *corev1.PodStatus { return &seenPod(changes...).Status }
	}
	refused := func(status int, message string) func(kubetest.Request) *kubetest.Fault {
		return times(-1, "create", kubetest.Fault{Status: status, Message: message})
	}
	for name, c := range map[string]struct {
		fault func(kubetest.Request) *kubetest.Fault
		hold  func(*corev1.Pod) *corev1.PodStatus
		own   bool
		want  string
	}{
		"service account is missing": {fault: refused(403, `error looking up service account jobs/none: serviceaccount "none" not found`), want: "change kubernetes.service_account"},
		"Pod Security":               {fault: refused(403, `violates PodSecurity "restricted:latest": runAsNonRoot != true`), want: "set security contexts in pod_template"},
		"quota demands requests":     {fault: refused(403, `failed quota: q: must specify requests.cpu for: pulumi-workflow`), want: "change kubernetes.cpu"},
		"right is missing":           {fault: refused(403, `pods is forbidden: User "u" cannot create resource "pods"`), want: "lacks a right"},
		"invalid Pod":                {fault: refused(422, `Pod "p" is invalid: spec.containers[0].resources.requests`), want: "check kubernetes.* and pod_template"},
		"credentials expired":        {fault: refused(401, "Unauthorized"), want: "does not accept the agent's credentials"},
		"image cannot be had":        {hold: held(mainIs(waits(mainContainer, "ErrImageNeverPull", "no such image"))), own: true, want: "ErrImageNeverPull: no such image (waited for 100ms)"},
		"image cannot be pulled":     {hold: held(mainIs(waits(mainContainer, "ImagePullBackOff", "refused"))), own: true, want: "ImagePullBackOff: refused (waited for 500ms)"},
		"cluster is full":            {hold: held(condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/1 nodes")), want: "Unschedulable: 0/1 nodes (waited for 500ms)"},
		"silence":                    {hold: held(), want: "see its events (waited for 500ms)"},
		"evicted":                    {hold: held(phase(corev1.PodFailed, "Evicted", "disk pressure")), want: "Evicted: disk pressure"},
		"image without a key":        {hold: held(initIs(ends(prepareContainer, 0, "Completed", ""))), want: "must be of this agent's release"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScripted(t, succeed)
			s.Inject(c.fault)
			s.kubelet.Hold = c.hold
			e, job := s.executor(t), s.job("job-1")
			e.stuckLimit = 100 * time.Millisecond
			job.Tuning.Place.Kubernetes.StartTimeout = 500 * time.Millisecond
			_, log, err := s.start(t, e, job)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, runtime.ErrJob) != c.own {
				t.Errorf("got %v, want %q, and whether it is the job's own: %v", err, c.want, c.own)
			}
			if !strings.Contains(log, "Error: ") || !strings.Contains(log, c.want) {
				t.Errorf("step 0 says\n%s", log)
			}
			s.none(t)
		})
	}
	t.Run("start_timeout that is shorter than the limit of what cannot heal", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.kubelet.Hold = held(mainIs(waits(mainContainer, "InvalidImageName", "upper case")))
		e, job := s.executor(t), s.job("job-1")
		job.Tuning.Place.Kubernetes.StartTimeout = 200 * time.Millisecond
		_, _, err := s.start(t, e, job)
		if want := "InvalidImageName: upper case (waited for 200ms)"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	})
	t.Run("Pod deleted before its job started", func(t *testing.T) {
		s := newScripted(t, succeed)
		s.kubelet.Hold = func(p *corev1.Pod) *corev1.PodStatus {
			go s.Drop(p.Namespace, p.Name)
			return &seenPod().Status
		}
		_, _, err := s.start(t, s.executor(t), s.job("job-1"))
		if err == nil || !strings.Contains(err.Error(), deletedText) {
			t.Errorf("got %v", err)
		}
		s.none(t)
	})
}

// random returns JSON that does not compress.
func random(t *testing.T, size int) json.RawMessage {
	t.Helper()
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // never fails, see crypto/rand
	text, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
