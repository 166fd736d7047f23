package kube

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// startJob starts a job on the cluster, and returns the log of step 0.
func startJob(t *testing.T, n *kubetest.Namespace, e *Executor, change func(*runtime.Job)) (id, log string, err error) {
	t.Helper()
	job := testJob()
	job.ID, job.Definition = "job-"+newName()[len(namePrefix):], runtimetest.Definition("sleep 600")
	useTestImages(job)
	change(job)
	service := runtimetest.NewService()
	job.Service = serve(t, n.HostAddress(t), service)
	service.Add(job)
	setup := runtime.NewSetup(job, service, runtimetest.BaseHandoff(job))
	id, err = e.Start(t.Context(), job, setup)
	if err != nil {
		if err := setup.Fail(t.Context(), err); err != nil {
			t.Error(err)
		}
	}
	return id, service.Record(job.ID).Text(0), err
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
	main := func(fields string) func(*runtime.Job) {
		return template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", ` + fields +
			`}]}}`)
	}
	for name, c := range map[string]struct {
		change   func(*runtime.Job)
		jobFault bool
		want     string
	}{
		"image that is missing": {
			func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/missing:1" }, true, "ErrImageNeverPull",
		},
		"image that cannot be pulled": {
			func(j *runtime.Job) { j.Definition.Image.Reference = "registry.invalid/missing:1"; template("{}")(j) },
			true, "ImagePull",
		},
		"invalid image name": {
			func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/Upper:1" }, true, "InvalidImageName",
		},
		"image of the agent is missing": {
			func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.Image = "cmwa-test/missing:1" }, false,
			"container pulumi-workflow-prepare: ",
		},
		"another image instead of the agent's": {
			func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.Image = kubetest.BaseImage }, false,
			"container pulumi-workflow-prepare: container has runAsNonRoot",
		},
		"service account that is missing": {
			func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.ServiceAccount = "missing" }, false,
			"change kubernetes.service_account",
		},
		"too much cpu": {
			func(j *runtime.Job) { j.Tuning.Instance.Kubernetes.CPU = "1000" }, false, "1 Insufficient cpu",
		},
		"node selector that no node matches": {
			template(`{"spec": {"nodeSelector": {"disk": "none"}}}`), false,
			"didn't match Pod's node affinity/selector",
		},
		"ConfigMap of the environment is missing": {
			main(`"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]`), false,
			`CreateContainerConfigError: configmap "none" not found`,
		},
		"ConfigMap of a volume is missing": {
			template(`{"spec": {"volumes": [{"name": "none", "configMap": {"name": "none"}}], "containers": [
				{"name": "pulumi-workflow", "imagePullPolicy": "Never",
				"volumeMounts": [{"name": "none", "mountPath": "/none"}]}]}}`),
			false, "see its events",
		},
		"working directory is a file": {main(`"workingDir": "/bin/sh"`), true, "not a directory"},
		"root image and runAsNonRoot": {main(`"securityContext": {"runAsNonRoot": true}`), false, "runAsNonRoot"},
		"init container of the template fails": {
			template(`{"spec": {"initContainers": [{"name": "tools", "image": "cmwa-test/base:latest",
				"imagePullPolicy": "Never", "command": ["false"]}]}}`),
			false, "container tools failed: exit code 1",
		},
		"Pod that is refused": {
			main(`"ports": [{"containerPort": 99999}]`), false, "check kubernetes.* and pod_template",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openExecutor(t, n.Agent, n.Name)
			e.stuckLimit = 3 * time.Second
			_, log, err := startJob(t, n, e, func(job *runtime.Job) {
				job.Tuning.Instance.Kubernetes.StartTimeout = 12 * time.Second
				c.change(job)
			})
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				errors.Is(err, runtime.ErrJobFault) != c.jobFault {
				t.Errorf("got %v, want %q, job fault %v", err, c.want, c.jobFault)
			}
			if !strings.Contains(log, "Error: ") || !strings.Contains(log, c.want) {
				t.Errorf("the log of step 0 lacks the error:\n%s", log)
			}
		})
	}
}

func TestStartQuotaOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e, a := openExecutor(t, n.Agent, n.Name), adminOf(t, n)
	hard := func(pods string) values { return values{"spec": values{"hard": values{"pods": pods}}} }
	quota := hard("0")
	quota["apiVersion"], quota["kind"], quota["metadata"] = "v1", "ResourceQuota", values{"name": "quota"}
	a.do(http.MethodPost, a.path("resourcequotas"), quota)
	if err := awaitRejection(t, e, func(*runtime.Job) {}); !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("Check: got %v", err)
	}
	_, log, err := startJob(t, n, e, func(job *runtime.Job) {
		job.Tuning.Instance.Kubernetes.StartTimeout = 3 * time.Second
	})
	if err == nil || !strings.Contains(err.Error(), "ResourceQuota") ||
		!strings.Contains(log, "cannot be created yet, retrying: ") {
		t.Errorf("got %v; log of step 0:\n%s", err, log)
	}

	// The next job waits until the quota is raised.
	job := testJob()
	job.ID, job.Definition = "job-"+n.Name, runtimetest.Definition("sleep 600")
	useTestImages(job)
	service := runtimetest.NewService()
	job.Service = serve(t, n.HostAddress(t), service)
	service.Add(job)
	var id string
	started := make(chan error, 1)
	go func() {
		var err error
		id, err = e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
		started <- err
	}()
	service.Await(t, job.ID, "the quota in step 0", func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(0), "cannot be created yet, retrying: ") &&
			strings.Contains(r.Text(0), "exceeded quota")
	})
	a.do(http.MethodPatch, a.path("resourcequotas", "quota"), hard("5"))
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
	core := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	memory := template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never",
		"resources": {"limits": {"memory": "48Mi"}}}]}}`)
	storage := template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never",
		"resources": {"limits": {"ephemeral-storage": "10Mi"}}}]}}`)
	for name, c := range map[string]struct {
		script string
		change func(*runtime.Job)
		act    func(pod string) error
		want   string
		code   int
	}{
		"deleted by another client": {"sleep 600", nil, func(pod string) error {
			now := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
			return core.Delete().Namespace(n.Name).Resource("pods").Name(pod).Body(now).Do(t.Context()).Error()
		}, deletedText, noExitCode},
		"evicted": { // the kubelet sends a TERM, and the runner may report the failure
			"dd if=/dev/zero of=/big bs=1M count=40; sleep 600", storage, nil, "", runtime.CodeFailed,
		},
		"out of memory": {`awk 'BEGIN { s = "x"; while (1) s = s s }'`, memory, nil, "", runtime.CodeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openExecutor(t, n.Agent, n.Name)
			id, log, err := startJob(t, n, e, func(job *runtime.Job) {
				job.Definition = runtimetest.Definition(c.script)
				useTestImages(job)
				if c.change != nil {
					c.change(job)
				}
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, log)
			}
			pod, _, _ := parseID(id)
			ended := startWait(t, e, id)
			if c.act != nil {
				if err := c.act(pod); err != nil {
					t.Fatal(err)
				}
			}
			var exit runtime.Exit
			select {
			case exit = <-ended:
			case <-time.After(clusterLimit): // an eviction takes up to 40 seconds
				t.Fatal("Wait has not returned")
			}
			// At an eviction, the kubelet first sends a TERM. If the runner cannot report
			// the failure in time, the exit has another code and the reason of the
			// eviction.
			evicted := name == "evicted" && strings.HasPrefix(exit.Reason, "Evicted: ")
			if !evicted && (!strings.Contains(exit.Reason, c.want) || exit.Code != c.code) {
				t.Errorf("got %+v, want %q and code %d", exit, c.want, c.code)
			}
			if err := e.Remove(t.Context(), id, 0); err != nil {
				t.Error(err)
			}
		})
	}
}
