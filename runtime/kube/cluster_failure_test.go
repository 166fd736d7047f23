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

// startOn starts a job on the cluster, and returns what step 0 says.
func startOn(t *testing.T, n *kubetest.Namespace, e *Executor, change func(*runtime.Job)) (id, log string, err error) {
	t.Helper()
	job := testJob()
	job.ID, job.Definition = "job-"+newName()[len(namePrefix):], runtimetest.Definition("sleep 600")
	place(job)
	change(job)
	service := runtimetest.NewService()
	job.Service = serve(t, n.HostAddress(t), service)
	service.Add(job)
	setup := runtime.NewSetup(job, service, runtimetest.Offer(job))
	id, err = e.Start(t.Context(), job, setup)
	if err != nil {
		if err := setup.Fail(t.Context(), err); err != nil {
			t.Error(err)
		}
	}
	return id, service.Record(job.ID).Text(0), err
}

// serve serves a service at an address of this machine, and returns its URL.
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

// template sets a job's template.
func template(text string) func(*runtime.Job) {
	return func(job *runtime.Job) { job.Tuning.Place.Kubernetes.Template = []byte(text) }
}

// TestFailuresOnACluster meets what one node can produce. The loss of a node takes the
// cluster a minute, in which the others run.
func TestFailuresOnACluster(t *testing.T) {
	n := onCluster(t)
	lost := loseNode(t, n)
	t.Run("Start", func(t *testing.T) { startsThatFail(t, n) })
	t.Run("Wait", func(t *testing.T) { podsThatEnd(t, n) })
	t.Run("node that is lost", lost)
}

// startsThatFail starts jobs whose Pods cannot run.
func startsThatFail(t *testing.T, n *kubetest.Namespace) {
	main := func(fields string) func(*runtime.Job) {
		return template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", ` + fields + `}]}}`)
	}
	for name, c := range map[string]struct {
		change func(*runtime.Job)
		own    bool
		want   string
	}{
		"image that is not there":        {func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/missing:1" }, true, "ErrImageNeverPull"},
		"image that cannot be pulled":    {func(j *runtime.Job) { j.Definition.Image.Reference = "registry.invalid/missing:1"; template("{}")(j) }, true, "ImagePull"},
		"invalid image name":             {func(j *runtime.Job) { j.Definition.Image.Reference = "cmwa-test/Upper:1" }, true, "InvalidImageName"},
		"image of the agent":             {func(j *runtime.Job) { j.Tuning.Place.Kubernetes.Image = "cmwa-test/missing:1" }, false, "container pulumi-workflow-prepare: "},
		"image of another agent":         {func(j *runtime.Job) { j.Tuning.Place.Kubernetes.Image = kubetest.BaseImage }, false, "container pulumi-workflow-prepare: container has runAsNonRoot"},
		"service account":                {func(j *runtime.Job) { j.Tuning.Place.Kubernetes.ServiceAccount = "missing" }, false, "change kubernetes.service_account"},
		"too much cpu":                   {func(j *runtime.Job) { j.Tuning.Place.Kubernetes.CPU = "1000" }, false, "1 Insufficient cpu"},
		"node selector":                  {template(`{"spec": {"nodeSelector": {"disk": "none"}}}`), false, "didn't match Pod's node affinity/selector"},
		"ConfigMap of the environment":   {main(`"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]`), false, `CreateContainerConfigError: configmap "none" not found`},
		"ConfigMap of a volume":          {template(`{"spec": {"volumes": [{"name": "none", "configMap": {"name": "none"}}], "containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", "volumeMounts": [{"name": "none", "mountPath": "/none"}]}]}}`), false, "see its events"},
		"working directory":              {main(`"workingDir": "/bin/sh"`), true, "not a directory"},
		"root image as another user":     {main(`"securityContext": {"runAsNonRoot": true}`), false, "runAsNonRoot"},
		"init container of the template": {template(`{"spec": {"initContainers": [{"name": "tools", "image": "cmwa-test/base:latest", "imagePullPolicy": "Never", "command": ["false"]}]}}`), false, "container tools failed: exit code 1"},
		"Pod that is refused":            {main(`"ports": [{"containerPort": 99999}]`), false, "check kubernetes.* and pod_template"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, n.Agent, n.Name)
			e.stuckLimit = 3 * time.Second
			_, log, err := startOn(t, n, e, func(job *runtime.Job) {
				job.Tuning.Place.Kubernetes.StartTimeout = 12 * time.Second
				c.change(job)
			})
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, runtime.ErrJob) != c.own {
				t.Errorf("got %v, want %q, and whether it is the job's own: %v", err, c.want, c.own)
			}
			if !strings.Contains(log, "Error: ") || !strings.Contains(log, c.want) {
				t.Errorf("step 0 says\n%s", log)
			}
		})
	}
}

func TestQuotaOnACluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	e, a := open(t, n.Agent, n.Name), adminOf(t, n)
	hard := func(pods string) values { return values{"spec": values{"hard": values{"pods": pods}}} }
	quota := hard("0")
	quota["apiVersion"], quota["kind"], quota["metadata"] = "v1", "ResourceQuota", values{"name": "quota"}
	a.do(http.MethodPost, a.path("resourcequotas"), quota)
	if err := refusal(t, e, func(*runtime.Job) {}); !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("the check returns %v", err)
	}
	_, log, err := startOn(t, n, e, func(job *runtime.Job) {
		job.Tuning.Place.Kubernetes.StartTimeout = 3 * time.Second
	})
	if err == nil || !strings.Contains(err.Error(), "ResourceQuota") || !strings.Contains(log, "cannot be created yet, trying again: ") {
		t.Errorf("got %v; step 0 says\n%s", err, log)
	}

	// The next job waits until the quota is raised.
	job := testJob()
	job.ID, job.Definition = "job-"+n.Name, runtimetest.Definition("sleep 600")
	place(job)
	service := runtimetest.NewService()
	job.Service = serve(t, n.HostAddress(t), service)
	service.Add(job)
	var id string
	started := make(chan error, 1)
	go func() {
		var err error
		id, err = e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.Offer(job)))
		started <- err
	}()
	service.Await(t, job.ID, "the quota in step 0", func(r runtimetest.Record) bool {
		return strings.Contains(r.Text(0), "cannot be created yet, trying again: ") && strings.Contains(r.Text(0), "exceeded quota")
	})
	a.do(http.MethodPatch, a.path("resourcequotas", "quota"), hard("5"))
	if err := <-started; err != nil {
		t.Fatalf("%v\n%s", err, service.Record(job.ID).Text(0))
	}
	if err := e.Remove(t.Context(), id, time.Second); err != nil {
		t.Error(err)
	}
}

// podsThatEnd ends jobs in ways that no runner reports, or not always.
func podsThatEnd(t *testing.T, n *kubetest.Namespace) {
	core := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	memory := template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", "resources": {"limits": {"memory": "48Mi"}}}]}}`)
	storage := template(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", "resources": {"limits": {"ephemeral-storage": "10Mi"}}}]}}`)
	for name, c := range map[string]struct {
		script string
		change func(*runtime.Job)
		act    func(pod string) error
		want   string
		code   int
	}{
		"deleted by somebody": {"sleep 600", nil, func(pod string) error {
			return core.Delete().Namespace(n.Name).Resource("pods").Name(pod).Body(&metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}).Do(t.Context()).Error()
		}, deletedText, never},
		"evicted":       {"dd if=/dev/zero of=/big bs=1M count=40; sleep 600", storage, nil, "", runtime.CodeFailed}, // the kubelet sends a TERM, and the runner reports
		"out of memory": {`awk 'BEGIN { s = "x"; while (1) s = s s }'`, memory, nil, "", runtime.CodeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, n.Agent, n.Name)
			id, log, err := startOn(t, n, e, func(job *runtime.Job) {
				job.Definition = runtimetest.Definition(c.script)
				place(job)
				if c.change != nil {
					c.change(job)
				}
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, log)
			}
			pod, _, _ := parseID(id)
			ended := waiting(t, e, id)
			if c.act != nil {
				if err := c.act(pod); err != nil {
					t.Fatal(err)
				}
			}
			var exit runtime.Exit
			select {
			case exit = <-ended:
			case <-time.After(clusterLimit): // an eviction takes up to 40 seconds
				t.Fatal("Wait does not return")
			}
			// An eviction sends a TERM first, which the runner may report in time.
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
