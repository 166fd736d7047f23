package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/doctor"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
)

// doctor runs cmwa doctor --json with the configuration that [world.agent] writes, as
// changed by settings, and returns the levels of the checks.
func (w *world) doctor(code int, settings ...string) map[string]selfcheck.Level {
	w.t.Helper()
	config, env := w.configure(nil, settings...)
	p := w.start("doctor", env, "cmwa", "doctor", "--json", "--config", config)
	p.exit(code)
	if strings.Contains(p.output(), w.pool) {
		w.t.Errorf("the token is shown:\n%s", p.output())
	}
	return levelsOf(w.t, p.output(), code == cli.ExitOK)
}

// levelsOf returns the levels of the checks in the document that cmwa doctor --json prints.
func levelsOf(t testing.TB, text string, passed bool) map[string]selfcheck.Level {
	t.Helper()
	var d doctor.Document
	decode(t, []byte(text), &d)
	if d.Passed != passed {
		t.Fatalf("passed is %t, want %t:\n%s", d.Passed, passed, text)
	}
	levels := map[string]selfcheck.Level{}
	for _, c := range d.Checks {
		levels[c.Name] = c.Result
		if passed && c.Result == selfcheck.LevelFailed {
			t.Errorf("a check failed, and passed is true: %+v", c)
		}
	}
	return levels
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		// A job is queued, and must still be queued afterwards.
		w.queue("one", oneStep("true"))
		own := map[string][]string{
			"docker":     {"docker-engine", "docker-runner", "docker-image", "docker-network", "docker-service"},
			"kubernetes": {"kubernetes-api", "kubernetes-access-pods", "kubernetes-access-logs", "kubernetes-pod"},
			"process":    {"process-runner", "process-directory"},
		}[w.target]

		// Everything works.
		levels := w.doctor(cli.ExitOK)
		for _, name := range append(own, "configuration", "service-connection", "service-answer", "service-token",
			"state-directory") {
			got := levels[name]
			if got != selfcheck.LevelOK && !(name == "docker-image" && got == selfcheck.LevelWarning) {
				t.Errorf("%s is %q, want ok", name, got)
			}
		}

		// With each of these wrong settings, the check in the key fails.
		broken := map[string]string{
			"service-connection":  "service_url: http://127.0.0.1:1",
			"service-certificate": "service_url: " + strings.Replace(w.url, "http:", "https:", 1),
			"service-token":       "token: pul-another-token",
			"configuration":       "polling_interval: soon",
		}
		switch w.target {
		case "docker":
			broken["docker-runner"] = "working_directory: " + t.TempDir()
			broken["docker-network"] = "docker: {network: cmwa-none}"
		case "kubernetes":
			broken["kubernetes-pod"] = "pod_template: {spec: {serviceAccountName: cmwa-none}}"
			broken["kubernetes-access-pods"] = "kubernetes: {namespace: kube-system}"
		case "process":
			broken["process-runner"] = "working_directory: " + t.TempDir()
		}
		for name, setting := range broken {
			if levels := w.doctor(cli.ExitFailure, setting); levels[name] != selfcheck.LevelFailed {
				t.Errorf("with %q, %s is %q, want failed", setting, name, levels[name])
			}
		}
		w.wantStatus("one", "not-started")

		// Doctor changes nothing for a running agent.
		agent := w.agent()
		w.await("one", "succeeded")
		w.wantNoRecord()
		before := w.stateDirectories()
		w.doctor(cli.ExitOK)
		if after := w.stateDirectories(); !slices.Equal(before, after) {
			t.Errorf("the state directory had %q before, and has %q after cmwa doctor", before, after)
		}
		agent.signal(os.Interrupt)
		agent.exit(cli.ExitOK)
	})
}

// stateDirectories returns the files and directories of the agent's state.
func (w *world) stateDirectories() (paths []string) {
	w.t.Helper()
	err := filepath.WalkDir(filepath.Join(w.directory, "state"), func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	w.must(err)
	return paths
}

// doctor runs cmwa doctor in the agent's Pod with kubectl exec, and returns the levels of
// the checks. No check may fail.
func (d *deployment) doctor(args ...string) map[string]selfcheck.Level {
	d.w.t.Helper()
	command := []string{"exec", "--namespace", d.namespace, "deploy/" + d.name, "--", "cmwa", "doctor", "--json"}
	return levelsOf(d.w.t, must(d.w.t, kubectlVariable, append(command, args...)...), true)
}

func TestDoctorInAPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kubernetes")
	d := w.deploy("cmwa", 1)
	config := configDirectory + "/" + schema.FileName
	levels := d.doctor("--config", config)
	for _, name := range []string{
		"configuration-mounts", "state-directory", "http-server", "kubernetes-agent-pod",
		"service-token", "kubernetes-api", "kubernetes-access-pods", "kubernetes-pod",
	} {
		if levels[name] != selfcheck.LevelOK {
			t.Errorf("%s is %q, want ok; all: %v", name, levels[name], levels)
		}
	}
	if got := levels["configuration"]; got != selfcheck.LevelWarning { // the service has no TLS
		t.Errorf("configuration is %q, want %q", got, selfcheck.LevelWarning)
	}

	// A mount with subPath does not receive changes of the configuration, and this grace
	// period is too short.
	d.change(func(deployment *appsv1.Deployment) {
		pod := &deployment.Spec.Template.Spec
		pod.TerminationGracePeriodSeconds = new(int64(30))
		mount := &pod.Containers[0].VolumeMounts[0]
		mount.MountPath, mount.SubPath = config, schema.FileName
	})
	w.eventually("the new Pod is the only one", func() bool {
		pods := d.pods()
		return len(pods) == 1 && isReady(pods[0]) && *pods[0].Spec.TerminationGracePeriodSeconds == 30
	})
	levels = d.doctor("--config", config)
	for _, name := range []string{"configuration-mounts", "kubernetes-agent-pod"} {
		if levels[name] != selfcheck.LevelWarning {
			t.Errorf("%s is %q, want a warning; all: %v", name, levels[name], levels)
		}
	}
}

func TestDoctorText(t *testing.T) {
	config := fileOf(t, "agent.yaml", "token: pul-0123456789\nservice_url: http://127.0.0.1:1\n"+
		"deploy_target: process\nhttp_server_port: 0\nstate_directory: "+t.TempDir()+"\n")
	result := cmwa(nil, "doctor", "--config", config)
	if result.code != cli.ExitFailure || strings.Contains(result.stdout, "pul-") || result.stderr != "" {
		t.Errorf("%+v", result)
	}
	for _, line := range []string{"ok       configuration ", "failed   service-connection ",
		"skipped  service-token ", "; hint: correct service_url"} {
		if !strings.Contains(result.stdout, line) {
			t.Errorf("no line has %q:\n%s", line, result.stdout)
		}
	}
	result = cmwa(nil, "doctor", "--json", "--config", "/nowhere/agent.yaml")
	var d doctor.Document
	decode(t, []byte(result.stdout), &d)
	if result.code != cli.ExitFailure || d.Passed || len(d.Checks) != 1 || d.Checks[0].Result != selfcheck.LevelFailed {
		t.Errorf("%+v", result)
	}
}
