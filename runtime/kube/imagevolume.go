package kube

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// runnerImage is the value of kubernetes.runner for a runner that is run from a volume
// with the image of the agent. Any other value, or none, copies it.
const runnerImage = "image"

const (
	imageVolume = "pulumi-workflow-image"
	imageFolder = "/mnt/pulumi/runner" // where the whole image of the agent is mounted
)

// useImageVolume makes a Pod run its runner from a volume with the image of the agent,
// instead of a copy. The init container then makes the key for a sealed handoff only, and
// without one it is not needed.
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

// imageVolumeHint is added to a failure that a container runtime without image volumes
// may be the reason of.
const imageVolumeHint = "kubernetes.runner is image, which takes a container runtime with image volumes, " +
	"such as containerd 2.1; otherwise set it to copy"

// aboutImageVolume reports whether a container runtime that has no image volumes, or
// mounts them noexec, fails with the reason.
func aboutImageVolume(reason string) bool {
	return reason == "CreateContainerError" || reason == "StartError" || reason == "RunContainerError"
}
