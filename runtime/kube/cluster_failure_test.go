package kube

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// briefFault is the stuckLimit of tests on the cluster. A container may have another fault for
// a moment before the fault of the test.
const briefFault = time.Second

// newClusterJob returns a job for the cluster, and its service.
func newClusterJob(
	t *testing.T, n *kubetest.Namespace, change func(*runtime.Job),
) (*runtime.Job, *runtimetest.Service) {
	t.Helper()
	service, job := newScriptJob(t, n.HostAddress(t), "sleep 600")
	change(job)
	service.Add(job)
	return job, service
}

// startJob starts a job on the cluster, and returns the log of step 0.
func startJob(t *testing.T, n *kubetest.Namespace, e *Executor, change func(*runtime.Job)) (id, log string, err error) {
	t.Helper()
	job, service := newClusterJob(t, n, change)
	return startWith(t.Context(), t, e, job, service)
}

// mustStartJob starts a job on the cluster, and returns its id.
func mustStartJob(t *testing.T, n *kubetest.Namespace, e *Executor, change func(*runtime.Job)) string {
	t.Helper()
	id, log, err := startJob(t, n, e, change)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return id
}

// startWith starts a job of the service, and returns the log of step 0.
func startWith(
	ctx context.Context, t testing.TB, e *Executor, job *runtime.Job, service *runtimetest.Service,
) (id, log string, err error) {
	t.Helper()
	setup := runtime.NewSetup(job, service, runtimetest.BaseHandoff(job))
	id, err = e.Start(ctx, job, setup)
	if err != nil {
		if err := setup.Fail(ctx, err); err != nil {
			t.Errorf("report the failed setup: %v", err)
		}
	}
	return id, service.Record(job.ID).Text(0), err
}

// wantStartError checks the error of a start, and that step 0 contains it.
func wantStartError(t *testing.T, log string, err error, want string, jobFault bool) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, runtime.ErrJobFault) != jobFault {
		t.Errorf("got %v, want %q, job fault %v", err, want, jobFault)
	}
	if !strings.Contains(log, "Error: ") || !strings.Contains(log, want) {
		t.Errorf("the log of step 0 lacks the error:\n%s", log)
	}
}

// startUntil starts a job that cannot run. Shown blocks until the cluster shows why; then the
// start times out.
func startUntil(
	t *testing.T, n *kubetest.Namespace, e *Executor, change func(*runtime.Job),
	shown func(*runtime.Job, *runtimetest.Service),
) (log string, err error) {
	t.Helper()
	job, service := newClusterJob(t, n, change)
	timeOut, ended := make(chan struct{}), make(chan struct{})
	e.timeOut = timeOut
	go func() {
		defer close(ended)
		_, log, err = startWith(t.Context(), t, e, job, service)
	}()
	func() {
		defer func() { // also if shown fails the test
			close(timeOut)
			<-ended
		}()
		shown(job, service)
	}()
	return log, err
}

// awaitEvent blocks until the Pod of a job has an event that contains a text.
func (a *admin) awaitEvent(job *runtime.Job, text string) {
	a.t.Helper()
	selector := "involvedObject.name=" + a.podOf(job.ID)
	await(a.t, "the event "+text, func(ctx context.Context) (bool, error) {
		var events corev1.EventList
		err := a.get("events").Param("fieldSelector", selector).Do(ctx).Into(&events)
		contains := func(e corev1.Event) bool { return strings.Contains(e.Message, text) }
		return slices.ContainsFunc(events.Items, contains), err
	})
}

// serve starts a server at an address of this machine, and returns its URL.
func serve(t *testing.T, host string, service http.Handler) string {
	t.Helper()
	server := &http.Server{Handler: service, ReadHeaderTimeout: testLimit}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// template returns a function that sets the template of a job.
func template(text string) func(*runtime.Job) {
	return func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Template = []byte(text) }
}

// mainWith returns a function that sets a template with these fields of the job's container.
func mainWith(fields string) func(*runtime.Job) {
	return template(
		`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", ` + fields + `}]}}`)
}

// withMissingVolume sets a template with a volume whose ConfigMap does not exist.
var withMissingVolume = template(`{"spec": {"volumes": [{"name": "none", "configMap": {"name": "none"}}],
	"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never",
		"volumeMounts": [{"name": "none", "mountPath": "/none"}]}]}}`)

// TestExecutorFailuresOnCluster tests failures that can be produced in a cluster with one
// node. The loss of a node takes a minute. In this minute the other tests run.
func TestExecutorFailuresOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	lost := loseNode(t, n)
	t.Run("Start", func(t *testing.T) { testFailedStarts(t, n) })
	t.Run("Wait", func(t *testing.T) { testEndedPods(t, n) })
	t.Run("node that is lost", lost)
}

// testFailedStarts starts jobs whose Pods cannot run.
func testFailedStarts(t *testing.T, n *kubetest.Namespace) {
	for name, c := range map[string]struct {
		change   func(*runtime.Job)
		jobFault bool
		want     string

		// A fault that may go away does not end the start. The start times out when the watch
		// shows the wanted cause, or when the Pod has this event.
		timeOut bool
		event   string
	}{
		"image that is missing": {
			change: func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/missing:1" }, jobFault: true,
			want: "ErrImageNeverPull",
		},
		"image that cannot be pulled": {
			change: func(j *runtime.Job) {
				j.Definition.Image.Reference = "registry.invalid/missing:1"
				template("{}")(j)
			},
			jobFault: true, want: "ImagePull", timeOut: true,
		},
		"invalid image name": {
			change: func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/Upper:1" }, jobFault: true,
			want: "InvalidImageName",
		},
		"image of the agent is missing": {
			change: func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.Image = "cmwa-test/missing:1" },
			want:   "container pulumi-workflow-prepare: ",
		},
		"another image instead of the agent's": {
			change: func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.Image = kubetest.BaseImage },
			want:   "container pulumi-workflow-prepare: container has runAsNonRoot",
		},
		"service account that is missing": {
			change: func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.ServiceAccount = "missing" },
			want:   "change kubernetes.service_account",
		},
		"too much cpu": {
			change: func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.Requests.CPU = "1000" },
			want:   "1 Insufficient cpu", timeOut: true,
		},
		"node selector that no node matches": {
			change: template(`{"spec": {"nodeSelector": {"disk": "none"}}}`),
			want:   "didn't match Pod's node affinity/selector", timeOut: true,
		},
		"ConfigMap of the environment is missing": {
			change: mainWith(`"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]`),
			want:   `CreateContainerConfigError: configmap "none" not found`,
		},
		"ConfigMap of a volume is missing": {
			change: withMissingVolume, want: "see its events", timeOut: true, event: `configmap "none" not found`,
		},
		"working directory is a file": {
			change: mainWith(`"workingDir": "/bin/sh"`), jobFault: true, want: "not a directory",
		},
		"root image and runAsNonRoot": {
			change: mainWith(`"securityContext": {"runAsNonRoot": true}`), want: "runAsNonRoot",
		},
		"init container of the template fails": {
			change: template(`{"spec": {"initContainers": [{"name": "tools", "image": "cmwa-test/base:latest",
				"imagePullPolicy": "Never", "command": ["false"]}]}}`),
			want: "container tools failed: exit code 1",
		},
		"Pod that is refused": {
			change: mainWith(`"ports": [{"containerPort": 99999}]`), want: "check kubernetes.* and pod_template",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openExecutor(t, n)
			e.stuckLimit = briefFault
			var log string
			var err error
			if a := adminOf(t, n); c.timeOut {
				log, err = startUntil(t, n, e, c.change, func(job *runtime.Job, _ *runtimetest.Service) {
					if c.event != "" {
						a.awaitEvent(job, c.event)
						return
					}
					pod := a.podOf(job.ID)
					awaitState(t, e, c.want, func(all map[string]*state) bool {
						return all[pod] != nil && strings.Contains(diagnose(all[pod]).String(), c.want)
					})
				})
			} else {
				_, log, err = startJob(t, n, e, c.change)
			}
			wantStartError(t, log, err, c.want, c.jobFault)
		})
	}
}

func TestStartQuotaOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e, a := openExecutor(t, n), adminOf(t, n)
	a.addQuota()
	if err := awaitRejection(t, e, func(*runtime.Job) {}); !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("Check: got %v", err)
	}
	const retries = "cannot be created yet, retrying: "
	log, err := startUntil(t, n, e, func(*runtime.Job) {}, func(job *runtime.Job, service *runtimetest.Service) {
		service.Await(t, job.ID, retries, func(r runtimetest.Record) bool {
			return strings.Contains(r.Text(0), retries)
		})
	})
	if err == nil || !strings.Contains(err.Error(), "ResourceQuota") || !strings.Contains(log, retries) {
		t.Errorf("got %v; log of step 0:\n%s", err, log)
	}

	// The next job waits until the quota is raised.
	e.timeOut = nil
	job, service := newClusterJob(t, n, func(*runtime.Job) {})
	var id string
	started := make(chan error, 1)
	go func() {
		var err error
		id, err = e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
		started <- err
	}()
	service.Await(t, job.ID, "the quota in step 0", func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(0), retries) && strings.Contains(r.Text(0), "exceeded quota")
	})
	a.do(http.MethodPatch, a.path("resourcequotas", "quota"), values{"spec": values{"hard": values{"pods": "5"}}})
	if err := <-started; err != nil {
		t.Fatalf("%v\n%s", err, service.Record(job.ID).Text(0))
	}
	if err := e.Remove(t.Context(), id, time.Second); err != nil {
		t.Error(err)
	}
}

// testEndedPods ends Pods by a deletion, an eviction and a lack of memory, and checks the
// result of Wait.
func testEndedPods(t *testing.T, n *kubetest.Namespace) {
	t.Run("deleted by another client", func(t *testing.T) {
		t.Parallel()
		e := openExecutor(t, n)
		id := mustStartJob(t, n, e, func(*runtime.Job) {})
		ended := startWait(t, e, id)
		pod, _, _ := parseID(id)
		adminOf(t, n).delete(pod)
		if exit := awaitExit(t, ended); exit.Code != runtime.CodeUnknown || exit.Reason != deletedText {
			t.Errorf("got %+v", exit)
		}
		if _, err := e.Wait(t.Context(), id); !errors.Is(err, runtime.ErrNoInstance) {
			t.Errorf("a second Wait returns %v, want ErrNoInstance", err)
		}
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct{ script, limits string }{
		"evicted":       {"dd if=/dev/zero of=/big bs=1M count=40; sleep 600", `{"ephemeral-storage": "10Mi"}`},
		"out of memory": {`awk 'BEGIN { s = "x"; while (1) s = s s }'`, `{"memory": "48Mi"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openExecutor(t, n)
			id := mustStartJob(t, n, e, func(job *runtime.Job) {
				job.Definition.Raw = runtimetest.Definition(c.script).Raw
				mainWith(`"resources": {"limits": ` + c.limits + `}`)(job)
			})
			exit := finish(t, e, id, startWait(t, e, id)) // an eviction takes up to 40 seconds
			// At an eviction, the kubelet first sends a TERM. If the runner cannot report
			// the failure in time, the exit has another code and the reason of the
			// eviction.
			evicted := name == "evicted" && strings.HasPrefix(exit.Reason, "Evicted: ")
			if !evicted && exit.Code != runtime.CodeFailed {
				t.Errorf("got %+v, want code %d", exit, runtime.CodeFailed)
			}
		})
	}
}
