package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configMap is a directory with the layout of a ConfigMap that the kubelet mounts: each file is
// a symbolic link through ..data, and an update replaces ..data.
type configMap struct {
	t         *testing.T
	directory string
	version   int
}

// write replaces the content of the ConfigMap, which has one file, and returns the file's path.
func (m *configMap) write(file, content string) string {
	m.t.Helper()
	m.version++
	volume, path := fmt.Sprintf("..%d", m.version), filepath.Join(m.directory, file)
	noError(m.t, os.Mkdir(filepath.Join(m.directory, volume), 0o755))
	noError(m.t, os.WriteFile(filepath.Join(m.directory, volume, file), []byte(content), 0o644))
	noError(m.t, os.Symlink(volume, filepath.Join(m.directory, "..data_tmp")))
	noError(m.t, os.Rename(filepath.Join(m.directory, "..data_tmp"), filepath.Join(m.directory, "..data")))
	if m.version == 1 {
		noError(m.t, os.Symlink(filepath.Join("..data", file), path))
		return path
	}
	noError(m.t, os.RemoveAll(filepath.Join(m.directory, fmt.Sprintf("..%d", m.version-1))))
	return path
}

// TestRunFollowsPodTemplate edits the Pod template of an agent whose jobs run on a real
// cluster. It changes the files as the kubelet does after an edit of a ConfigMap.
func TestRunFollowsPodTemplate(t *testing.T) {
	t.Parallel()
	tool(t, kubectlVariable)
	w := newWorld(t, "kubernetes")
	mounted := &configMap{t: t, directory: t.TempDir()}
	template := func(mark, more string) string {
		return fmt.Sprintf(`{"spec": {%s "containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never",
			"env": [{"name": "MARK", "value": %q}]}]}}`, more, mark)
	}
	path := mounted.write("worker-pod.json", template("one", ""))
	config := fileOf(t, "agent.yaml", w.settings([]string{
		w.clusterSettings()[0], "pod_template_file: " + path,
		"token: " + w.pool, "working_directory: " + w.bin, "http_server_port: 0",
	}))
	agent := w.start("agent", []string{"KUBECONFIG=" + w.cluster.Kubeconfig(t)}, "cmwa", "run", "--config", config)
	reloads := 0
	edited := func(content string) {
		t.Helper()
		mounted.write("worker-pod.json", content)
		reloads++
		w.eventually("the template is in force", func() bool {
			return strings.Count(agent.output(), `pool=default pod_template_file=`) == reloads
		})
	}
	prints := func(stack, mark string) {
		t.Helper()
		w.queue(stack, oneStep("echo mark is $MARK"))
		w.await(stack, "succeeded", "failed")
		w.wantLog(stack, "\nmark is "+mark+"\n")
	}

	// dryRun sends the Pod that cmwa pod prints to the cluster, with kubectl create
	// --dry-run=server.
	dryRun := func() error {
		t.Helper()
		pod := cmwa(nil, "pod", "--job-image", baseImage, config)
		if pod.code != 0 {
			t.Fatalf("cmwa pod: %+v", pod)
		}
		_, message, err := try(t, kubectlVariable, "create", "--dry-run=server", "--namespace", w.cluster.Name,
			"--filename", fileOf(t, "pod.yaml", pod.stdout))
		if err != nil {
			return fmt.Errorf("%w: %s", err, message)
		}
		return nil
	}

	// The next job uses the edited template.
	prints("first", "one")
	edited(template("two", ""))
	prints("second", "two")

	// A file with a mistake changes nothing. The log names the position and the hint.
	mounted.write("worker-pod.json", "{\n  \"spec\": {\"contaners\": []}\n}\n")
	agent.waitFor(path + ":2:12: spec.contaners: unknown key")
	agent.waitFor(`did you mean \"containers\"?`)
	prints("third", "two")

	// If the cluster refuses the Pods, the job fails, and its log has the reason.
	edited(template("three", `"priorityClassName": "there-is-none",`))
	w.queue("fourth", oneStep("echo mark is $MARK"))
	w.await("fourth", "failed")
	w.wantSteps("fourth", "failed", "not-started")
	w.wantLog("fourth", "no PriorityClass with name there-is-none was found")
	agent.waitFor("pod_template rejected by the cluster, jobs will fail")
	if err := dryRun(); err == nil || !strings.Contains(err.Error(),
		"no PriorityClass with name there-is-none was found") {
		t.Errorf("a dry run of the Pod that cmwa pod prints ends with %v, want an error about the PriorityClass", err)
	}

	// The next edit is applied.
	edited(template("four", ""))
	prints("fifth", "four")
	if err := dryRun(); err != nil {
		t.Errorf("a dry run of the Pod that cmwa pod prints ends with %v", err)
	}
}
