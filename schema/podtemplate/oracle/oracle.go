// Package oracle applies a template to a Pod and validates the result with the code of the
// Kubernetes API server. It exists for the tests in its directory. It is a separate module
// because the API server can be built as a library only with replace directives, and go
// install does not accept a module that has replace directives.
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

// Base is a Pod as the agent creates it for a job.
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

// types returns the scheme of the API server: its defaults and its internal types.
var types = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
})

// Validate applies a template to [Base] and returns the reason why the API server would
// reject the Pod, or nil. The merge panics at some values, such as a list for a name. A
// panic counts as a rejection.
func Validate(template []byte) (rejection error) {
	defer func() {
		if r := recover(); r != nil {
			rejection = fmt.Errorf("panic: %v", r)
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
	capabilities.Setup(true, 0) // privileged containers are allowed, as in most clusters
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
