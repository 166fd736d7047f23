package kube

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// namedPatch is a strategic merge patch in JSON, and the key of the configuration that has it.
type namedPatch struct {
	key  string
	text []byte
}

// patchesOf returns the patches for the Pod of a job, in the order in which they are merged.
func patchesOf(job *runtime.Job) (patches []namedPatch) {
	place := job.Tuning.Instance.Kubernetes
	if len(place.Template) > 0 {
		patches = append(patches, namedPatch{"pod_template", place.Template})
	}
	for i, rule := range place.TemplateRules {
		if rule.Matches(job.Definition.Work) {
			patches = append(patches, namedPatch{fmt.Sprintf("pod_template_rules.%d", i), rule.Patch})
		}
	}
	return patches
}

// applyTemplate returns the Pod with strategic merge patches applied.
//
//  1. Remove fields without effect from each patch, and add what a service account needs.
//  2. Merge the patch.
//  3. After all patches, restore the fields that the executor needs, and put its containers first:
//     the merge puts the containers of a patch first.
func applyTemplate(pod *corev1.Pod, patches []namedPatch) (*corev1.Pod, error) {
	result, keys := pod, []string{}
	for _, p := range patches {
		var content any
		if err := json.Unmarshal(p.text, &content); err != nil {
			return nil, fmt.Errorf("%s is not valid JSON: %w", p.key, err)
		}
		if content == nil {
			continue
		}
		fields, ok := content.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not a mapping", p.key)
		}

		// 1. Prepare the patch.
		dropIneffective(fields)
		mountToken(fields)

		//  2. Merge the patch.
		merged, err := patch.Merge(result, fields)
		if err != nil {
			return nil, fmt.Errorf("%s: %s", p.key, printable.OneLine(err.Error()))
		}
		result, keys = merged, append(keys, p.key)
	}
	if len(keys) == 0 {
		return pod, nil
	}

	//  3. Restore fields and order.
	if err := restore(result, pod); err != nil {
		return nil, fmt.Errorf("%s: %s", strings.Join(keys, ", "), printable.OneLine(err.Error()))
	}
	return result, nil
}

// dropIneffective removes fields from a patch whose changes [restore] would undo: the
// status, ephemeral containers, and the commands of the job's container. These fields need
// not be valid.
func dropIneffective(fields map[string]any) {
	delete(fields, "status")
	spec, _ := fields["spec"].(map[string]any)
	delete(spec, "ephemeralContainers")
	containers, _ := spec["containers"].([]any)
	for _, item := range containers {
		if c, _ := item.(map[string]any); c["name"] == MainContainer {
			for _, key := range []string{"command", "args"} {
				delete(c, key)
				delete(c, "$deleteFromPrimitiveList/"+key)
			}
		}
	}
}

// mountToken mounts the token of a service account that the template names, unless the
// template sets automountServiceAccountToken. For the account of the setting
// kubernetes.service_account, the token is mounted too.
func mountToken(fields map[string]any) {
	spec, _ := fields["spec"].(map[string]any)
	if account, _ := spec["serviceAccountName"].(string); account == "" {
		return
	}
	if _, set := spec["automountServiceAccountToken"]; !set {
		spec["automountServiceAccountToken"] = true
	}
}

// restore undoes the changes that a template must not make: names, labels and annotations
// of the agent, its init container, its volumes and their mounts, and the commands. With
// another init container or other volumes, a template could get the private key. Init containers
// of a template get only the volume for files. It also
// removes fields that only the cluster sets: a template may be a Pod that was read from a
// cluster.
func restore(pod, plain *corev1.Pod) error {
	pod.TypeMeta, pod.Status = plain.TypeMeta, corev1.PodStatus{}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name:   plain.Name,
		Labels: overlay(pod.Labels, plain.Labels), Annotations: overlay(pod.Annotations, plain.Annotations),
		Finalizers: pod.Finalizers, OwnerReferences: pod.OwnerReferences,
	}
	pod.Spec.RestartPolicy = plain.Spec.RestartPolicy
	pod.Spec.ActiveDeadlineSeconds = plain.Spec.ActiveDeadlineSeconds
	pod.Spec.EphemeralContainers = nil
	yieldToAffinity(&pod.Spec, plain.Spec.NodeSelector)
	pod.Spec.ImagePullSecrets = ownFirst(plain.Spec.ImagePullSecrets, pod.Spec.ImagePullSecrets,
		func(r corev1.LocalObjectReference) string { return r.Name })
	pod.Spec.Volumes = ownFirst(plain.Spec.Volumes, pod.Spec.Volumes, func(v corev1.Volume) string { return v.Name })

	restoreInit(&pod.Spec, plain.Spec.InitContainers[0])

	// Restore the fields of the job's container that start the runner.
	i := slices.IndexFunc(pod.Spec.Containers, hasName(MainContainer))
	if i < 0 {
		return fmt.Errorf("the container %s must not be removed", MainContainer)
	}
	main, original := pod.Spec.Containers[i], plain.Spec.Containers[0]
	main.Command, main.Args = original.Command, nil
	main.RestartPolicy, main.RestartPolicyRules = nil, nil
	main.TerminationMessagePath = original.TerminationMessagePath
	main.TerminationMessagePolicy = original.TerminationMessagePolicy
	mountPath := func(m corev1.VolumeMount) string { return m.MountPath }
	own := slices.DeleteFunc(slices.Clone(original.VolumeMounts), func(m corev1.VolumeMount) bool {
		return m.Name == oidcVolume || m.Name == filesVolume // a template may mount another volume there
	})
	main.VolumeMounts = ownFirst(own, main.VolumeMounts, mountPath)
	pod.Spec.Containers = ownFirst([]corev1.Container{main}, pod.Spec.Containers, containerName)

	// Refuse other containers with reserved names, or with a volume of the agent.
	for _, c := range slices.Concat(pod.Spec.InitContainers[1:], pod.Spec.Containers[1:]) {
		if strings.HasPrefix(c.Name, reservedPrefix) || c.Name == MainContainer {
			return fmt.Errorf("the container name %s is reserved", c.Name)
		}
		for _, m := range c.VolumeMounts {
			if strings.HasPrefix(m.Name, reservedPrefix) {
				return fmt.Errorf("the container %s must not mount the volume %s of the agent", c.Name, m.Name)
			}
		}
	}
	for i := range pod.Spec.InitContainers[1:] {
		mountFiles(&pod.Spec.InitContainers[1+i])
	}
	return nil
}

// mountFiles mounts the volume for files of the job into an init container of a template, unless the
// template mounts a volume there.
func mountFiles(c *corev1.Container) {
	if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return path.Clean(m.MountPath) == filesDirectory
	}) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: filesVolume, MountPath: filesDirectory})
	}
}

func containerName(c corev1.Container) string { return c.Name }

// restoreInit restores the agent's init container. A template may change its resources, its
// security context and its pull policy.
func restoreInit(spec *corev1.PodSpec, own corev1.Container) {
	if i := slices.IndexFunc(spec.InitContainers, hasName(prepareContainer)); i >= 0 {
		own.Resources = spec.InitContainers[i].Resources
		own.SecurityContext = spec.InitContainers[i].SecurityContext
		own.ImagePullPolicy = spec.InitContainers[i].ImagePullPolicy
	}
	if runsAsRoot(spec.SecurityContext, own.SecurityContext) {
		own.SecurityContext.RunAsNonRoot = nil
	}
	spec.InitContainers = ownFirst([]corev1.Container{own}, spec.InitContainers, containerName)
}

// runsAsRoot reports whether a template sets root as the user of a container.
func runsAsRoot(pod *corev1.PodSecurityContext, container *corev1.SecurityContext) bool {
	switch {
	case container == nil:
		return false
	case container.RunAsUser != nil:
		return *container.RunAsUser == 0
	}
	return pod != nil && pod.RunAsUser != nil && *pod.RunAsUser == 0
}

const (
	reservedPrefix = MainContainer + "-" // of names that a template must not use
	reservedKeys   = "cmwa."             // prefix of the agent's labels and annotations
)

func hasName(name string) func(corev1.Container) bool {
	return func(c corev1.Container) bool { return c.Name == name }
}

// overlay returns the entries of base and top. Those of top override those of base, except
// the default annotations, which a template may change. Keys of base with the agent's prefix
// are dropped.
func overlay(base, top map[string]string) map[string]string {
	all := map[string]string{}
	for key, value := range base {
		if !strings.HasPrefix(key, reservedKeys) {
			all[key] = value
		}
	}
	for key, value := range top {
		if _, isDefault := defaultAnnotations[key]; !isDefault {
			all[key] = value
		}
	}
	return all
}

// ownFirst returns own, followed by the elements of all whose key is not in own.
func ownFirst[T any](own, all []T, key func(T) string) []T {
	isOwn := func(item T) bool {
		return slices.ContainsFunc(own, func(o T) bool { return key(o) == key(item) })
	}
	return slices.Concat(own, slices.DeleteFunc(slices.Clone(all), isOwn))
}
