package kube

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// jobWith returns a job with a template.
func jobWith(text string) *runtime.Job {
	job := testJob()
	template(text)(job)
	return job
}

func TestApplyTemplate(t *testing.T) {
	t.Run("documented fields", func(t *testing.T) {
		pod := newPod(t, jobWith(`{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": {"labels": {"team": "platform"}, "annotations": {"note": "x"}},
			"spec": {
				"nodeSelector": {"disk": "ssd"},
				"tolerations": [{"key": "jobs", "operator": "Exists"}],
				"initContainers": [{"name": "tools", "image": "tools:1",
					"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
				"containers": [
					{"name": "proxy", "image": "proxy:1"},
					{"name": "pulumi-workflow", "workingDir": "/tmp", "env": [{"name": "HOME", "value": "/tmp"}],
						"resources": {"limits": {"memory": "2Gi"}},
						"volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
						"securityContext": {"runAsUser": 1000}}
				],
				"volumes": [{"name": "cache", "emptyDir": {}}]
			}}`))
		golden(t, "pod-template", pod)
	})

	t.Run("protected fields are restored", func(t *testing.T) {
		pod := newPod(t, jobWith(`{
			"metadata": {"name": "mine", "namespace": "other",
				"labels": {"cmwa.job": "other", "app.kubernetes.io/name": null},
				"annotations": {"cmwa.job": "other", "cmwa.handoff": "text"}},
			"spec": {
				"restartPolicy": "Always", "activeDeadlineSeconds": 1,
				"initContainers": [{"name": "pulumi-workflow-prepare", "image": "thief", "command": ["steal"],
					"restartPolicy": "Always",
					"env": [{"name": "A", "value": "b"}], "resources": {"requests": {"cpu": "10m"}}}],
				"containers": [{"name": "pulumi-workflow", "command": ["steal"], "args": ["all"],
					"terminationMessagePath": "/x",
					"volumeMounts": [{"name": "other", "mountPath": "/mnt/pulumi/runner"}]}],
				"volumes": [
					{"name": "pulumi-workflow-runner", "hostPath": {"path": "/tmp"}},
					{"name": "pulumi-workflow-handoff", "$patch": "delete"},
					{"name": "other", "emptyDir": {}}]
			}}`))
		golden(t, "pod-protected", pod)
	})

	t.Run("annotations for autoscalers can be changed and removed", func(t *testing.T) {
		pod := newPod(t, jobWith(`{"metadata": {"annotations": {
			"karpenter.sh/do-not-disrupt": "4h", "cluster-autoscaler.kubernetes.io/safe-to-evict": null}}}`))
		got := pod.Annotations["karpenter.sh/do-not-disrupt"]
		_, found := pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]
		if got != "4h" || found {
			t.Errorf("the annotations are %v", pod.Annotations)
		}
	})

	t.Run("template without changes", func(t *testing.T) {
		want, _ := json.Marshal(newPod(t, testJob()))
		for _, template := range []string{
			"null", "{}", `{"spec": {}}`, `{"spec": {"containers": []}}`, `{"status": {"phase": "Failed"}}`,
		} {
			if got, _ := json.Marshal(newPod(t, jobWith(template))); string(got) != string(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", template, got, want)
			}
		}
	})

	t.Run("invalid template is refused", func(t *testing.T) {
		for _, c := range []struct{ template, want string }{
			{`{`, "not valid JSON"},
			{`[]`, "not a mapping"},
			{`"x"`, "not a mapping"},
			{`true`, "not a mapping"},
			{`{"spec": {"containers": [{"image": "x"}]}}`, "spec.containers[0] has no name"},
			{`{"spec": {"containers": [{"name": ["a"]}]}}`, "spec.containers[0].name has a wrong type"},
			{`{"spec": {"containers": [{"name": {"a": 1}}]}}`, "spec.containers[0].name has a wrong type"},
			{`{"spec": {"containers": [{"name": null}]}}`, "spec.containers[0].name has a wrong type"},
			{`{"spec": {"containers": [{"name": 7}]}}`, "spec.containers[0].name has a wrong type"},
			{`{"spec": {"containers": ["a"]}}`, "spec.containers[0] is not a mapping"},
			{
				`{"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]}}`,
				"same name as element 0",
			},
			{
				`{"spec": {"containers": [{"name": "pulumi-workflow", "volumeMounts": [{"mountPath": []}]}]}}`,
				"volumeMounts[0].mountPath has a wrong type",
			},
			{
				`{"spec": {"containers": [{"name": "pulumi-workflow", "ports": [{"containerPort": "http"}]}]}}`,
				"ports[0].containerPort has a wrong type",
			},
			{`{"spec": {"volumes": [{"emptyDir": {}}]}}`, "spec.volumes[0] has no name"},
			{`{"spec": {"containers": null}}`, "must not be removed"},
			{`{"spec": {"containers": [{"name": "pulumi-workflow", "$patch": "delete"}]}}`, "must not be removed"},
			{
				`{"spec": {"containers": [{"$patch": "replace"}, {"name": "other", "image": "x"}]}}`,
				"must not be removed",
			},
			{`{"spec": {"containers": [{"name": "pulumi-workflow", "$patch": "explode"}]}}`, "unknown patch type"},
			{`{"spec": {"containers": {}}}`, "cannot unmarshal"},
			{`{"spec": []}`, "cannot unmarshal"},
			{`{"spec": null}`, "must not be removed"},
			{`{"spec": {"contaners": []}}`, `unknown field "spec.contaners"`},
			{
				`{"spec": {"containers": [{"name": "pulumi-workflow", "imge": "x"}]}}`,
				`unknown field "spec.containers[0].imge"`,
			},
			{
				`{"spec": {"containers": [{"name": "pulumi-workflow-x", "image": "x"}]}}`,
				"name pulumi-workflow-x is reserved",
			},
			{
				`{"spec": {"initContainers": [{"name": "pulumi-workflow", "image": "x"}]}}`,
				"name pulumi-workflow is reserved",
			},
			{
				`{"spec": {"containers": [{"name": "reader", "image": "x",
					"volumeMounts": [{"name": "pulumi-workflow-runner", "mountPath": "/x"}]}]}}`,
				"must not mount the volume pulumi-workflow-runner",
			},
			{
				`{"spec": {"containers": [{"name": "pulumi-workflow", "resources": {"limits": {"cpu": "two"}}}]}}`,
				"quantities must match",
			},
		} {
			pod, err := podOf(jobWith(c.template), "name", settingsOf("image"))
			if err == nil {
				t.Errorf("%s: got %+v, want an error", c.template, pod.Spec)
				continue
			}
			if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "pod_template") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want one line with %q", c.template, err, c.want)
			}
		}
	})

	t.Run("directives in new fields are applied", func(t *testing.T) {
		pod := newPod(t, jobWith(`{"spec": {
			"nodeSelector": {"$retainKeys": ["disk"], "disk": "ssd"}, "affinity": {"$patch": "delete"},
			"containers": [
				{"name": "pulumi-workflow", "securityContext": {"$patch": "replace", "runAsUser": 1},
					"env": [{"$patch": "replace"}, {"name": "A", "value": "1"}]},
				{"name": "proxy", "image": "p",
					"ports": [{"containerPort": 1, "$patch": "delete"}, {"containerPort": 2}]},
				{"name": "none", "$patch": "delete"}]}}`))
		main, proxy := pod.Spec.Containers[0], pod.Spec.Containers[1]
		if len(pod.Spec.Containers) != 2 || *main.SecurityContext.RunAsUser != 1 || len(main.Env) != 1 ||
			len(proxy.Ports) != 1 || proxy.Ports[0].ContainerPort != 2 ||
			len(pod.Spec.NodeSelector) != 1 || pod.Spec.Affinity != nil {
			t.Errorf("got %+v", pod.Spec)
		}
	})

	t.Run("service account of the template has its token", func(t *testing.T) {
		for template, want := range map[string]bool{
			`{"spec": {"serviceAccountName": "worker"}}`:                                        true,
			`{"spec": {"serviceAccountName": "worker", "automountServiceAccountToken": false}}`: false,
			`{"spec": {"hostname": "a"}}`:                                                       false,
		} {
			pod := newPod(t, jobWith(template))
			if *pod.Spec.AutomountServiceAccountToken != want {
				t.Errorf("%s: got %+v, want automountServiceAccountToken %v", template, pod, want)
			}
		}
	})

	t.Run("fields that only a cluster sets are removed", func(t *testing.T) {
		pod := newPod(t, jobWith(`{"metadata": {"uid": "u", "resourceVersion": "1",
			"creationTimestamp": "2026-01-02T15:04:05Z", "deletionTimestamp": "2026-01-02T15:04:05Z",
			"finalizers": ["example.com/a"]}, "status": {"phase": "Running"}}`))
		if pod.UID != "" || pod.ResourceVersion != "" || !pod.CreationTimestamp.IsZero() ||
			pod.DeletionTimestamp != nil || pod.Status.Phase != "" || len(pod.Finalizers) != 1 {
			t.Errorf("got %+v", pod)
		}
	})

	t.Run("ports of two protocols are kept, and the last variable of a name counts", func(t *testing.T) {
		main := newPod(t, jobWith(`{"spec": {"containers": [{"name": "pulumi-workflow",
			"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}],
			"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}}`)).Spec.Containers[0]
		if len(main.Ports) != 2 || main.Env[len(main.Env)-1].Value != "2" {
			t.Errorf("got %+v", main)
		}
	})

	t.Run("lists and directives without a merge key are accepted", func(t *testing.T) {
		pod := newPod(t, jobWith(`{"spec": {"tolerations": [{"operator": "Exists"}],
			"$setElementOrder/containers": [{"name": "pulumi-workflow"}],
			"containers": [
				{"name": "pulumi-workflow", "env": [{"$patch": "replace"}, {"name": "A", "value": "b"}]}]}}`))
		if len(pod.Spec.Containers[0].Env) != 1 {
			t.Errorf("got %+v", pod)
		}
	})
}

// FuzzApplyTemplate finds templates that cause a panic or change how the runner is started.
func FuzzApplyTemplate(f *testing.F) {
	f.Add(`{"spec": {"containers": [{"name": ["a"]}]}}`)
	f.Add(`{"spec": {"volumes": [{"name": "pulumi-workflow-runner", "hostPath": {"path": "/"}}]}}`)
	f.Add(`{"spec": {"initContainers": [{"name": "pulumi-workflow-prepare", "command": ["x"]}]}}`)
	f.Add(`{"spec": {"containers": [{"name": "a", "image": "a"}], "initContainers": [{"name": "b", "image": "b"}]}}`)
	f.Fuzz(func(t *testing.T, template string) {
		pod, err := podOf(jobWith(template), "name", settingsOf("cmwa/cmwa:1"))
		if err != nil {
			return
		}
		main, prepare := pod.Spec.Containers[0], pod.Spec.InitContainers[0]
		command := strings.Join(mainCommand(runnerDirectory, inAnnotation, exampleName), " ")
		if main.Name != MainContainer || strings.Join(main.Command, " ") != command || len(main.Args) > 0 {
			t.Errorf("%q: the job's container is %+v, want the name and the command of the agent", template, main)
		}
		if prepare.Name != prepareContainer || prepare.Image != "cmwa/cmwa:1" ||
			prepare.Command[0] != programImagePath {
			t.Errorf("%q: the init container is %+v, want the name, image and command of the agent", template, prepare)
		}
		for i, volume := range ownVolumes(inAnnotation.volume(pod.Name)) {
			if pod.Spec.Volumes[i].String() != volume.String() {
				t.Errorf("%q: volume %d is %+v, want %+v", template, i, pod.Spec.Volumes[i], volume)
			}
		}
	})
}

func TestTemplateRules(t *testing.T) {
	rules := []runtime.TemplateRule{
		{Project: "web-*", Patch: []byte(`{"metadata": {"labels": {"size": "large", "rule": "1"}},
			"spec": {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "5Gi"}}]}}`)},
		{Project: "web-*", Stack: "production", Patch: []byte(`{
			"metadata": {"labels": {"rule": "2", "cmwa.job": "other"}},
			"spec": {"restartPolicy": "Always", "containers": [{"name": "sidecar", "image": "s"},
				{"name": "pulumi-workflow", "command": ["evil"], "resources": {"limits": {"memory": "8Gi"}}}]}}`)},
	}
	podFor := func(project, stack string) *corev1.Pod {
		job := testJob()
		job.Definition.Work = runtime.Work{Project: project, Stack: stack}
		job.Tuning.Instance.Kubernetes.Template = []byte(`{"metadata": {"labels": {"size": "small", "team": "a"}},
			"spec": {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}]}}`)
		job.Tuning.Instance.Kubernetes.TemplateRules = rules
		return newPod(t, job)
	}
	for _, c := range []struct{ project, stack, size, rule, cache string }{
		{"shop", "production", "small", "", "1Gi"},
		{"web-shop", "test", "large", "1", "5Gi"},
		{"web-shop", "production", "large", "2", "5Gi"},
		{"", "", "small", "", "1Gi"},
	} {
		pod := podFor(c.project, c.stack)
		cache := ""
		for _, v := range pod.Spec.Volumes {
			if v.Name == "cache" {
				cache = v.EmptyDir.SizeLimit.String()
			}
		}
		if pod.Labels["size"] != c.size || pod.Labels["rule"] != c.rule || pod.Labels["team"] != "a" ||
			cache != c.cache {
			t.Errorf("%s/%s: the labels are %v and the cache has %s, want size %s, rule %q and %s",
				c.project, c.stack, pod.Labels, cache, c.size, c.rule, c.cache)
		}
	}

	pod := podFor("web-shop", "production")
	main := pod.Spec.Containers[0]
	if main.Name != MainContainer || main.Command[0] == "evil" || main.Resources.Limits.Memory().String() != "8Gi" ||
		pod.Labels[labelJob] != "job-1" || pod.Spec.RestartPolicy != corev1.RestartPolicyNever ||
		pod.Spec.InitContainers[0].Name != prepareContainer || len(pod.Spec.Containers) != 2 {
		t.Errorf("a rule has changed protected fields: %+v", pod)
	}

	rules[1].Patch = []byte(`{"spec": {"contaners": []}}`)
	job := testJob()
	job.Definition.Work = runtime.Work{Project: "web-shop", Stack: "production"}
	job.Tuning.Instance.Kubernetes.TemplateRules = rules
	if _, err := podOf(job, "name", settingsOf("image")); err == nil ||
		!strings.HasPrefix(err.Error(), "pod_template_rules.1: ") || !strings.Contains(err.Error(), "contaners") {
		t.Errorf("got %v, want an error that names the rule", err)
	}
}

// TestTerminationPolicy checks that the output of steps does not become the message of an ended container.
func TestTerminationPolicy(t *testing.T) {
	for local, want := range map[bool]corev1.TerminationMessagePolicy{
		false: corev1.TerminationMessageFallbackToLogsOnError,
		true:  corev1.TerminationMessageReadFile,
	} {
		job := testJob()
		job.Tuning.Instance.LocalLog = local
		if got := newPod(t, job).Spec.Containers[0].TerminationMessagePolicy; got != want {
			t.Errorf("with the log of steps: %t, the policy is %s, want %s", local, got, want)
		}
	}
}
