// Package oracle asks the API server's own code what it thinks of a Pod on which
// a template was laid. It exists for the test beside it and is a module of its
// own, because the API server can be built as a library only with replacements,
// which would keep others from installing our programs.
package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Base is a Pod such as the agent makes for a job.
const Base = `
apiVersion: v1
kind: Pod
metadata:
  name: pulumi-workflow-runner-0123456789ab
  namespace: cmwa
  labels:
    app.kubernetes.io/component: pulumi-workflow
    app.kubernetes.io/name: workflow-runner
  annotations:
    cmwa/job: 0123456789ab
spec:
  restartPolicy: Never
  serviceAccountName: workflow-agent
  terminationGracePeriodSeconds: 60
  nodeSelector:
    kubernetes.io/os: linux
  initContainers:
  - name: pulumi-workflow-prepare
    image: pulumi/customer-managed-workflow-agent:latest
    command: [cp, /usr/local/bin/workflow-runner, /mnt/pulumi/workflow/]
    volumeMounts:
    - {name: pulumi-workflow, mountPath: /mnt/pulumi/workflow}
  containers:
  - name: pulumi-workflow
    image: pulumi/pulumi:latest
    imagePullPolicy: Always
    command: [/mnt/pulumi/workflow/workflow-runner]
    env:
    - {name: PULUMI_JOB_TOKEN_FILE, value: /mnt/pulumi/workflow/token}
    volumeMounts:
    - {name: pulumi-workflow, mountPath: /mnt/pulumi/workflow}
  volumes:
  - name: pulumi-workflow
    emptyDir: {}
`

// types knows the defaults and how the API server sees a Pod within.
var types = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
})

// Judge says why the API server would refuse the Pod that a template makes, or
// nil if it would take it. The merge panics at some values, such as a list for a
// name, which counts as a refusal.
func Judge(template []byte) (refusal error) {
	defer func() {
		if r := recover(); r != nil {
			refusal = fmt.Errorf("panic: %v", r)
		}
	}()
	base, err := yaml.YAMLToJSON([]byte(Base))
	if err != nil {
		return fmt.Errorf("read the base: %w", err)
	}
	patch := template
	if !json.Valid(template) {
		if patch, err = yaml.YAMLToJSONStrict(template); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	if string(patch) == "null" {
		patch = []byte("{}")
	}
	merged, err := strategicpatch.StrategicMergePatch(base, patch, corev1.Pod{})
	if err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	var pod corev1.Pod
	strict, err := strictjson.UnmarshalStrict(merged, &pod)
	if err := errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	capabilities.Setup(true, 0) // as clusters do that allow privileged containers
	scheme := types()
	scheme.Default(&pod)
	var internal core.Pod
	if err := scheme.Convert(&pod, &internal, nil); err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	options.ResourceIsPod = true
	if errs := validation.ValidatePodCreate(&internal, options); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return nil
}
