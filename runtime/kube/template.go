package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/patch"
)

// applyTemplate returns the Pod with a strategic merge patch applied to it.
//
//  1. What has no effect is left out, and what a service account needs is added.
//  2. The patch is merged.
//  3. What the executor needs is restored, and its containers come first: the
//     merge puts those of the patch before the existing ones.
func applyTemplate(pod *corev1.Pod, template []byte) (*corev1.Pod, error) {
	var content any
	if err := json.Unmarshal(template, &content); err != nil {
		return nil, fmt.Errorf("pod_template is not valid JSON: %w", err)
	}
	fields, ok := content.(map[string]any)
	if !ok {
		if content == nil {
			return pod, nil
		}
		return nil, errors.New("pod_template is not a mapping")
	}

	// 1. Prepare the patch.
	discard(fields)
	mountToken(fields)

	// 2. Merge.
	result, err := patch.Merge(pod, fields)

	// 3. Restore.
	if err == nil {
		err = restore(result, pod)
	}
	if err != nil {
		return nil, fmt.Errorf("pod_template: %s", oneLine(err.Error()))
	}
	return result, nil
}

// discard removes from a patch what [restore] would undo and what need not even be
// valid: the status, the containers of a running Pod, and changes of a command.
func discard(fields map[string]any) {
	delete(fields, "status")
	spec, _ := fields["spec"].(map[string]any)
	delete(spec, "ephemeralContainers")
	containers, _ := spec["containers"].([]any)
	for _, one := range containers {
		if c, _ := one.(map[string]any); c["name"] == mainContainer {
			for _, key := range []string{"command", "args"} {
				delete(c, key)
				delete(c, "$deleteFromPrimitiveList/"+key)
			}
		}
	}
}

// mountToken lets a Pod have the token of a service account that the template names,
// unless the template decides that itself. kubernetes.service_account does the same.
func mountToken(fields map[string]any) {
	spec, _ := fields["spec"].(map[string]any)
	if account, _ := spec["serviceAccountName"].(string); account == "" {
		return
	}
	if _, set := spec["automountServiceAccountToken"]; !set {
		spec["automountServiceAccountToken"] = true
	}
}

// restore puts back what a template must not change in a Pod: names, labels and
// annotations of the agent, both volumes and their mounts, and the commands. With
// another init container or other volumes, a template would get the key that the
// handoff is sealed to. What only the cluster sets is removed: a template may be a
// Pod that was read from a cluster.
func restore(pod, plain *corev1.Pod) error {
	pod.TypeMeta, pod.Status = plain.TypeMeta, corev1.PodStatus{}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name:   plain.Name,
		Labels: laidOver(pod.Labels, plain.Labels), Annotations: laidOver(pod.Annotations, plain.Annotations),
		Finalizers: pod.Finalizers, OwnerReferences: pod.OwnerReferences,
	}
	pod.Spec.RestartPolicy = plain.Spec.RestartPolicy
	pod.Spec.ActiveDeadlineSeconds = plain.Spec.ActiveDeadlineSeconds
	pod.Spec.EphemeralContainers = nil
	yieldNodes(&pod.Spec, plain.Spec.NodeSelector)
	pod.Spec.ImagePullSecrets = firstOnes(plain.Spec.ImagePullSecrets, pod.Spec.ImagePullSecrets,
		func(r corev1.LocalObjectReference) string { return r.Name })
	pod.Spec.Volumes = firstOnes(plain.Spec.Volumes, pod.Spec.Volumes, func(v corev1.Volume) string { return v.Name })

	restoreInit(&pod.Spec, plain.Spec.InitContainers)

	// The job's container: a template may change all but what starts the runner.
	i := slices.IndexFunc(pod.Spec.Containers, named(mainContainer))
	if i < 0 {
		return fmt.Errorf("the container %s must not be removed", mainContainer)
	}
	main, before := pod.Spec.Containers[i], plain.Spec.Containers[0]
	main.Command, main.Args = before.Command, nil
	main.RestartPolicy, main.RestartPolicyRules = nil, nil
	main.TerminationMessagePath = before.TerminationMessagePath
	main.TerminationMessagePolicy = before.TerminationMessagePolicy
	mountPath := func(m corev1.VolumeMount) string { return m.MountPath }
	own := slices.DeleteFunc(slices.Clone(before.VolumeMounts), func(m corev1.VolumeMount) bool {
		return m.Name == oidcVolume // a template may mount its own there
	})
	main.VolumeMounts = firstOnes(own, main.VolumeMounts, mountPath)
	pod.Spec.Containers = firstOnes([]corev1.Container{main}, pod.Spec.Containers, containerName)

	// Names of other elements that would be taken for those of the agent.
	for _, c := range slices.Concat(pod.Spec.InitContainers[len(plain.Spec.InitContainers):], pod.Spec.Containers[1:]) {
		if strings.HasPrefix(c.Name, reservedPrefix) || c.Name == mainContainer {
			return fmt.Errorf("the container name %s is reserved", c.Name)
		}
	}
	return nil
}

// containerName returns the key of a container.
func containerName(c corev1.Container) string { return c.Name }

// restoreInit puts back the init container of the agent, if the Pod has one. A template
// may change its resources and its security.
func restoreInit(spec *corev1.PodSpec, plain []corev1.Container) {
	own := slices.Clone(plain)
	i := slices.IndexFunc(spec.InitContainers, named(prepareContainer))
	switch {
	case len(own) == 0:
		spec.InitContainers = slices.DeleteFunc(spec.InitContainers, named(prepareContainer))
		return
	case i >= 0:
		own[0].Resources = spec.InitContainers[i].Resources
		own[0].SecurityContext = spec.InitContainers[i].SecurityContext
		own[0].ImagePullPolicy = spec.InitContainers[i].ImagePullPolicy
	}
	if asRoot(spec.SecurityContext, own[0].SecurityContext) {
		own[0].SecurityContext.RunAsNonRoot = nil
	}
	spec.InitContainers = firstOnes(own, spec.InitContainers, containerName)
}

// asRoot reports whether a template makes root the user of a container.
func asRoot(pod *corev1.PodSecurityContext, container *corev1.SecurityContext) bool {
	switch {
	case container == nil:
		return false
	case container.RunAsUser != nil:
		return *container.RunAsUser == 0
	}
	return pod != nil && pod.RunAsUser != nil && *pod.RunAsUser == 0
}

// reservedPrefix begins names that a template must not use for elements of its
// own.
const reservedPrefix = mainContainer + "-"

// reservedKeys begins labels and annotations of the agent.
const reservedKeys = "cmwa."

// named returns a function that reports whether a container has the name.
func named(name string) func(corev1.Container) bool {
	return func(c corev1.Container) bool { return c.Name == name }
}

// laidOver returns base with the entries of top, which win. Keys of base that are
// the agent's own are dropped.
func laidOver(base, top map[string]string) map[string]string {
	all := map[string]string{}
	for key, value := range base {
		if !strings.HasPrefix(key, reservedKeys) {
			all[key] = value
		}
	}
	maps.Copy(all, top)
	return all
}

// firstOnes returns own, followed by those of all whose key no element of own has.
func firstOnes[T any](own, all []T, key func(T) string) []T {
	result := slices.Clone(own)
	for _, one := range all {
		if !slices.ContainsFunc(own, func(o T) bool { return key(o) == key(one) }) {
			result = append(result, one)
		}
	}
	return result
}

// oneLine returns text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
