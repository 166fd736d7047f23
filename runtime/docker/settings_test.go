package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestContainerOptions(t *testing.T) {
	t.Run("limits, user and labels", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "term"}`)
		job.Tuning.Instance.Docker = runtime.Docker{
			Memory: 64 << 20, CPUs: 0.3, User: "1000:1000",
			Labels: []string{"team=infra", "empty=", "bare", "a=b=c", "=nameless", "cmwa.agent=another",
				"cmwa.directory=/etc", "cmwa.new=x"},
		}
		id, _ := start(t, e, job)
		got, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := got.Container
		if c.HostConfig.Memory != 64<<20 || c.HostConfig.NanoCPUs != 300_000_000 || c.Config.User != "1000:1000" {
			t.Errorf("the container has %d bytes, %d billionths of a CPU, user %q", c.HostConfig.Memory,
				c.HostConfig.NanoCPUs, c.Config.User)
		}
		for name, want := range map[string]string{"team": "infra", "empty": "", "bare": "", "a": "b=c",
			labelAgent: job.Agent, labelJob: job.ID} {
			if value, ok := c.Config.Labels[name]; !ok || value != want {
				t.Errorf("the label %s is %q (present: %v), want %q", name, value, ok, want)
			}
		}
		for _, name := range []string{"", labelDirectory, "cmwa.new"} {
			if value, ok := c.Config.Labels[name]; ok {
				t.Errorf("the container has the label %q: %q, want no such label", name, value)
			}
		}
	})

	t.Run("error names the setting that an engine rejects", func(t *testing.T) {
		e := newExecutor(t)
		for _, c := range []struct {
			settings runtime.Docker
			want     string
		}{
			{runtime.Docker{Memory: 1 << 20}, "docker.memory"},
			{runtime.Docker{CPUs: 100_000}, "docker.cpus"},
			{runtime.Docker{User: "nosuchuser"}, "docker.user"},
			{runtime.Docker{User: "0:nosuchgroup"}, "docker.user"},
			{runtime.Docker{User: "99999999999"}, "docker.user"},
		} {
			job := newJob(t, e, `{}`)
			job.Tuning.Instance.Docker = c.settings
			if _, _, err := tryStart(t, e, job); err == nil || errors.Is(err, runtime.ErrJobFault) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: got %v, want an error that names %s and is no job fault", c.settings, err, c.want)
			}
			if names := leftovers(t, job); len(names) > 0 {
				t.Errorf("the failed start left %q", names)
			}
		}
	})
}

func TestContainerLimits(t *testing.T) {
	// At the limit, the shell uses only commands of its own: it cannot start a program.
	const script = `grep NoNewPrivs: /proc/self/status | tr '\t' ' '
echo "pids.max $(cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null)"
(for i in $(seq 200); do sleep 9 >/dev/null 2>&1 & done; echo "all started") >/tmp/forks 2>&1
while read -r line; do echo "forks: $line"; done </tmp/forks`
	for name, c := range map[string]struct {
		settings runtime.Docker
		want     []string
		not      string
	}{
		"limits": {runtime.Docker{PidsLimit: 100}, []string{"NoNewPrivs: 1\n", "pids.max 100\n", "can't fork"},
			"forks: all started"},
		"no limits": {runtime.Docker{AllowNewPrivileges: true},
			[]string{"NoNewPrivs: 0\n", "pids.max max\n", "forks: all started"}, "can't fork"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExecutor(t)
			service, job := realJob(t, e, script)
			c.settings.Network = job.Tuning.Instance.Docker.Network
			job.Tuning.Instance.Docker = c.settings
			id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
			if err != nil {
				t.Fatal(err)
			}
			wait(t, e, id)
			log := service.Record(job.ID).Text(1)
			for _, want := range c.want {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not have %q:\n%s", want, log)
				}
			}
			if strings.Contains(log, c.not) {
				t.Errorf("the log has %q:\n%s", c.not, log)
			}
		})
	}

	t.Run("storage limit is set, or the error names it", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{}`)
		job.Tuning.Instance.Docker.StorageLimit = 1 << 30
		id, _, err := tryStart(t, e, job)
		if err != nil { // most engines cannot limit the size
			if text := err.Error(); !strings.Contains(text, "remove docker.storage_limit") ||
				errors.Is(err, runtime.ErrJobFault) {
				t.Errorf("got %v, want an error that names docker.storage_limit and is no job fault", err)
			}
			if err := e.Check(t.Context(), job.Tuning); err == nil {
				t.Error("the check before a job passes, and the job does not start")
			}
			return
		}
		found, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil || found.Container.HostConfig.StorageOpt["size"] != "1073741824" {
			t.Errorf("the container has the storage options %v: %v", found.Container.HostConfig.StorageOpt, err)
		}
	})
}

func TestExitMemory(t *testing.T) {
	t.Run("runner that is killed for lack of memory", func(t *testing.T) {
		e := newExecutor(t)
		job := newJob(t, e, `{"until": "memory"}`)
		job.Tuning.Instance.Docker.Memory = 32 << 20
		id, _ := start(t, e, job)
		exit := wait(t, e, id)
		found, err := e.engine.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := "out of memory"
		if !found.Container.State.OOMKilled { // the engine has lost the event (containerd issue 8180)
			want = "killed; it may have run out of memory, which docker.memory limits"
		}
		if exit != (runtime.Exit{Code: 137, Reason: want}) {
			t.Errorf("the runner ended with %+v, want the reason %q; the engine reports %+v", exit, want,
				found.Container.State)
		}
	})

	t.Run("step that is killed for lack of memory", func(t *testing.T) {
		e := newExecutor(t)
		service, job := realJob(t, e, `echo started; (tail /dev/zero; exit 0); echo going on; exit 3`)
		job.Tuning.Instance.Docker.Memory = 64 << 20
		id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
		if err != nil {
			t.Fatal(err)
		}
		if exit := wait(t, e, id); exit != (runtime.Exit{Code: runtime.CodeFailed}) {
			t.Errorf("the runner ended with %+v", exit)
		}
		if log := service.Record(job.ID).Text(1); !strings.Contains(log, "going on") ||
			!strings.Contains(log, "killed a process of this step because memory ran out") {
			t.Errorf("the log of the step does not have the reason:\n%s", log)
		}
	})
}

func TestRunsAsRoot(t *testing.T) {
	for _, c := range []struct {
		configured, image string
		want              bool
	}{
		{"", "", true}, {"root", "1000", true}, {"0:5", "1000", true}, {"", "0", true},
		{"", "1000", false}, {"pulumi", "", false}, {"1000:0", "root", false},
	} {
		if got := runsAsRoot(c.configured, c.image); got != c.want {
			t.Errorf("%+v: runsAsRoot returns %v", c, got)
		}
	}
}

// realJob returns a job for the real workflow-runner, and the strict service of the job.
// Containers can reach this service.
func realJob(t *testing.T, e *Executor, script string) (*runtimetest.Service, *runtime.Job) {
	t.Helper()
	service := runtimetest.NewService()
	url := runtimetest.Serve(t, hostAddress(t), service)
	job := newJob(t, e, `{}`)
	job.Service = url
	job.Tuning.Instance.WorkingDirectory = runtimetest.Runner(t)
	job.Definition = runtimetest.Definition(script)
	job.Definition.Image.Reference = testImage
	service.Add(job)
	return service, job
}

func TestOpenParent(t *testing.T) {
	e := newExecutor(t)
	for _, c := range []struct{ user, shared string }{{"", ""}, {"nobody", ""}, {"1234:4321", ""},
		{"1234", t.TempDir()}} {
		t.Run("user "+c.user+c.shared, func(t *testing.T) {
			script := `echo "I am $(id -u):$(id -g) at home in $HOME, works in $(pwd), env file $PULUMI_ENV_FILE"
echo "user $USER, pulumi $PULUMI_HOME"
touch "$HOME/a" b && mkdir -p "$HOME/.pulumi" && echo "can write"
echo "token $(cat /mnt/pulumi/pulumi.oidc)" | tr a-z A-Z
echo X=1 >> "$PULUMI_ENV_FILE" && echo "env file taken"`
			service, job := realJob(t, e, script)
			job.Tuning.Instance.Docker.User = c.user
			job.Tuning.Instance.SharedVolumeDirectory = c.shared
			setup := runtime.NewSetup(job, service, runtimetest.BaseHandoff(job))
			id, err := e.Start(t.Context(), job, setup)
			if err != nil {
				t.Fatal(err)
			}
			if exit := wait(t, e, id); exit.Code != runtime.CodeSucceeded {
				t.Errorf("the runner ended with %+v", exit)
			}
			record := service.Record(job.ID)
			log := record.Text(0) + record.Text(1)
			for _, want := range []string{"can write", "TOKEN " + strings.ToUpper(job.OIDC.Reveal()),
				"env file taken"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not have %q:\n%s", want, log)
				}
			}
		})
	}
}

func TestStartCertificates(t *testing.T) {
	e := newExecutor(t)
	service, job := realJob(t, e, `grep -c BEGIN "$NODE_EXTRA_CA_CERTS"; grep -c BEGIN "$SSL_CERT_FILE"`)
	job.Service, job.Tuning.CA = runtimetest.ServeTLS(t, hostAddress(t), service)
	id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
	if err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, e, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("the runner ended with %+v", exit)
	}
	record := service.Record(job.ID)
	// The image has no certificates, so each file contains only the certificate of the
	// service.
	if !strings.Contains(record.Text(0), "No trusted certificates were found in this environment") ||
		!strings.Contains(record.Text(1), "\n1\n1\n") {
		t.Errorf("the log of the job is\n%s%s", record.Text(0), record.Text(1))
	}
}
