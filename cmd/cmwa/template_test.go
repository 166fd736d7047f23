package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configMap is a folder as the kubelet mounts a ConfigMap: a file in it is a link
// through ..data, which is replaced as a whole.
type configMap struct {
	t       *testing.T
	folder  string
	version int
}

// write replaces the content of the one file, and returns its path.
func (m *configMap) write(file, content string) string {
	m.t.Helper()
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	m.version++
	volume, path := fmt.Sprintf("..%d", m.version), filepath.Join(m.folder, file)
	must(os.Mkdir(filepath.Join(m.folder, volume), 0o755))
	must(os.WriteFile(filepath.Join(m.folder, volume, file), []byte(content), 0o644))
	must(os.Symlink(volume, filepath.Join(m.folder, "..data_tmp")))
	must(os.Rename(filepath.Join(m.folder, "..data_tmp"), filepath.Join(m.folder, "..data")))
	if m.version == 1 {
		must(os.Symlink(filepath.Join("..data", file), path))
		return path
	}
	must(os.RemoveAll(filepath.Join(m.folder, fmt.Sprintf("..%d", m.version-1))))
	return path
}

// TestAPodTemplateIsFollowed edits the template of an agent whose jobs run on a real
// cluster, as an edit of a mounted ConfigMap does.
func TestAPodTemplateIsFollowed(t *testing.T) {
	t.Parallel()
	tool(t, kubectlVariable)
	w := newWorld(t, "kubernetes")
	mounted := &configMap{t: t, folder: t.TempDir()}
	template := func(mark, more string) string {
		return fmt.Sprintf(`{"spec": {%s "containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never",
			"env": [{"name": "MARK", "value": %q}]}]}}`, more, mark)
	}
	path := mounted.write("worker-pod.json", template("one", ""))
	config := filepath.Join(w.folder, "agent.yaml")
	text := w.settings([]string{
		w.clusterSettings()[0], "pod_template_file: " + path,
		"token: " + w.pool, "working_directory: " + w.bin, "http_server_port: 0",
	})
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := w.start("agent", []string{"KUBECONFIG=" + w.cluster.Kubeconfig(t)}, "cmwa", "run", "--config", config)
	reloads := 0
	edited := func(content string) {
		t.Helper()
		mounted.write("worker-pod.json", content)
		reloads++
		w.eventually("the template is in force", func() bool {
			return strings.Count(agent.output(), `next_job="default: pod_template_file"`) == reloads
		})
	}
	prints := func(stack, mark string) {
		t.Helper()
		w.queue(stack, order{Steps: []step{{Name: "print", Run: "echo mark is $MARK"}}})
		w.await(stack, "succeeded", "failed")
		if log := w.log(stack); !strings.Contains(log, "\nmark is "+mark+"\n") {
			t.Errorf("%s lacks the mark %s:\n%s", stack, mark, log)
		}
	}

	// dryRun asks the cluster about the Pod that cmwa pod prints.
	dryRun := func() error {
		t.Helper()
		code, text, problems := commandLine(nil, "pod", "--job-image", baseImage, config)
		if code != 0 {
			t.Fatalf("cmwa pod: exit code %d, %s", code, problems)
		}
		pod := fileOf(t, "pod.yaml", text)
		_, message, err := try(t, kubectlVariable, "create", "--dry-run=server", "--namespace", w.cluster.Name, "--filename", pod)
		if err != nil {
			return fmt.Errorf("%w: %s", err, message)
		}
		return nil
	}

	// An edit is used by the next job.
	prints("first", "one")
	edited(template("two", ""))
	prints("second", "two")

	// A file with a mistake changes nothing. The log names the place and the cure.
	mounted.write("worker-pod.json", "{\n  \"spec\": {\"contaners\": []}\n}\n")
	agent.says(path + ":2:12: spec.contaners: unknown key")
	agent.says(`did you mean \"containers\"?`)
	prints("third", "two")

	// The cluster refuses the Pods: the job fails, and its log has the reason.
	edited(template("three", `"priorityClassName": "there-is-none",`))
	w.queue("fourth", order{Steps: []step{{Name: "print", Run: "echo mark is $MARK"}}})
	w.await("fourth", "failed")
	w.wantSteps("fourth", "failed", "not-started")
	if log := w.log("fourth"); !strings.Contains(log, "no PriorityClass with name there-is-none was found") {
		t.Errorf("the log lacks the message of the API server:\n%s", log)
	}
	agent.says("the cluster refuses Pods with the pod_template")
	if err := dryRun(); err == nil || !strings.Contains(err.Error(), "no PriorityClass with name there-is-none was found") {
		t.Errorf("the Pod that cmwa pod prints: %v", err)
	}

	// The next edit is as good as ever.
	edited(template("four", ""))
	prints("fifth", "four")
	if err := dryRun(); err != nil {
		t.Errorf("the Pod that cmwa pod prints: %v", err)
	}
}
