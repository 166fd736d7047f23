package kube

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// runnerImage is the value of kubernetes.runner for a runner in an image volume. With any
// other value, the runner is copied.
const runnerImage = "image"

const (
	imageVolume = "pulumi-workflow-image"
	imageFolder = "/mnt/pulumi/runner" // mount path of the agent's whole image
)

// useImageVolume changes a Pod so that its runner comes from a volume with the agent's
// image, instead of a copy. The init container then only creates the key for a sealed
// handoff. If the handoff is not sealed, the init container is removed.
func useImageVolume(spec *corev1.PodSpec, d delivery) {
	prepare, main := &spec.InitContainers[0], &spec.Containers[0]
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: imageVolume, VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: prepare.Image, PullPolicy: prepare.ImagePullPolicy},
	}})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{
		Name: imageVolume, MountPath: imageFolder, ReadOnly: true,
	})
	main.Command[0] = path.Join(imageFolder, programImagePath)
	prepare.Command = []string{programImagePath, "key", prepare.Command[2], prepare.Command[3]}
	if d.packed {
		spec.InitContainers = nil
	}
}

// imageVolumeHint is added to errors that container runtimes without image volumes cause.
const imageVolumeHint = "kubernetes.runner is image, which requires a container runtime with image volumes, " +
	"such as containerd 2.1; otherwise set it to copy"

// aboutImageVolume reports whether a container may have failed with this reason because the
// container runtime has no image volumes, or mounts them noexec.
func aboutImageVolume(reason string) bool {
	return reason == "CreateContainerError" || reason == "StartError" || reason == "RunContainerError"
}
