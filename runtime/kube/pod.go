package kube

import (
	"cmp"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
)

// Names in a job's Pod. Those that begin with "pulumi-workflow-" are reserved on
// every target.
const (
	mainContainer    = "pulumi-workflow"
	prepareContainer = "pulumi-workflow-prepare"

	runnerVolume  = "pulumi-workflow-runner"
	handoffVolume = "pulumi-workflow-handoff"
	oidcVolume    = "pulumi-workflow-oidc"
)

// Paths in a job's Pod.
const (
	programImagePath = "/usr/local/bin/" + handoff.Program // in the image of the init container
	handoffFolder    = "/mnt/pulumi/handoff"
	oidcFolder       = "/mnt/pulumi" // of the file pulumi.oidc, in which a job finds its OIDC token
)

// overtime is how much longer than its job a Pod may be active, beyond the time
// that its start may take. The runner keeps the job's limit and the agent a later
// one; the cluster's own is for a job that both have lost.
const overtime = 10 * time.Minute

// podSettings are what all Pods of an agent have in common.
type podSettings struct {
	image           string // that the runner is copied from, unless a pool's configuration names another
	runnerDirectory string // where the runner lies in a job's container
	self            self   // the agent
	handoffSize     int    // in bytes, as far as it is known
}

// startLimit returns how long the Pod of a job may take to start.
func startLimit(job *runtime.Job) time.Duration {
	return cmp.Or(job.Tuning.Place.Kubernetes.StartTimeout, StartTimeout)
}

// podOf returns the Pod of a job, with the template of its pool applied. It holds
// nothing secret: everyone who may read Pods may read all of it.
func podOf(job *runtime.Job, name string, settings podSettings) (*corev1.Pod, error) {
	pod, err := plainPod(job, name, settings)
	if err != nil {
		return nil, err
	}
	if template := job.Tuning.Place.Kubernetes.Template; len(template) > 0 {
		return applyTemplate(pod, template)
	}
	return pod, nil
}

// plainPod returns the Pod of a job without a template.
func plainPod(job *runtime.Job, name string, settings podSettings) (*corev1.Pod, error) {
	place := job.Tuning.Place.Kubernetes
	requests, err := requestsOf(place)
	if err != nil {
		return nil, err
	}
	delivery := deliveryOf(place.Handoff, settings.handoffSize)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(job), Annotations: annotations(job)},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			NodeSelector:                  nodesOf(job),
			ServiceAccountName:            place.ServiceAccount,
			AutomountServiceAccountToken:  new(place.ServiceAccount != ""),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(runtime.StopGrace / time.Second)),
			Volumes:                       ownVolumes(delivery.volume(name)),
			InitContainers: []corev1.Container{
				prepareOf(
					cmp.Or(place.Image, settings.image), corev1.PullPolicy(place.ImagePullPolicy),
					settings.runnerDirectory, requests,
				),
			},
			Containers: []corev1.Container{{
				Name:      mainContainer,
				Image:     cmp.Or(job.Tuning.Place.OverrideImage, job.Definition.Image.Reference),
				Command:   mainCommand(settings.runnerDirectory, delivery),
				Resources: corev1.ResourceRequirements{Requests: requests},
				// What the runner logs last, when it leaves no message of its own.
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				VolumeMounts:             ownMounts(settings.runnerDirectory),
			}},
		},
	}
	settings.self.mark(pod)
	if delivery.packed {
		pod.Annotations[annotationHandoff] = delivery.mark()
	}
	if place.Runner == runnerImage {
		useImageVolume(&pod.Spec, delivery)
	}
	if !job.OIDC.Empty() {
		addOIDCVolume(&pod.Spec)
	}
	if bringsCredentials(job) {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: pullSecretOf(name)}}
	}
	if limit := job.Definition.Timeout; limit > 0 {
		seconds := int64(limit/time.Second) + int64((startLimit(job)+overtime)/time.Second)
		// The API server refuses more than 32 bits.
		pod.Spec.ActiveDeadlineSeconds = new(min(seconds, 1<<31-1))
	}
	return pod, nil
}

// requestsOf returns what the job's container requests.
func requestsOf(place runtime.Kubernetes) (corev1.ResourceList, error) {
	requests := corev1.ResourceList{}
	for _, one := range []struct {
		key, text string
		name      corev1.ResourceName
	}{
		{"kubernetes.cpu", place.CPU, corev1.ResourceCPU},
		{"kubernetes.memory", place.Memory, corev1.ResourceMemory},
	} {
		if one.text == "" {
			continue
		}
		quantity, err := resource.ParseQuantity(one.text)
		if err != nil || quantity.Sign() <= 0 {
			return nil, fmt.Errorf("%s: %q is not an amount that Kubernetes knows", one.key, one.text)
		}
		requests[one.name] = quantity
	}
	if len(requests) == 0 {
		return nil, nil
	}
	return requests, nil
}

// prepareOf returns the init container. It requests as much as the job's
// container, which costs nothing, because a Pod's request is the larger of the
// two; a quota may demand it.
func prepareOf(image string, policy corev1.PullPolicy, folder string, requests corev1.ResourceList) corev1.Container {
	return corev1.Container{
		Name:            prepareContainer,
		Image:           image,
		ImagePullPolicy: policy,
		Command:         []string{programImagePath, "prepare", folder, corev1.TerminationMessagePathDefault},
		Resources:       corev1.ResourceRequirements{Requests: requests},
		VolumeMounts:    []corev1.VolumeMount{{Name: runnerVolume, MountPath: folder}},
		// All that Pod Security "restricted" demands. It names no user: the image has
		// one, and some clusters assign another.
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			RunAsNonRoot:             new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// mainCommand is the command of the job's container, whose runner lies in a folder.
func mainCommand(folder string, d delivery) []string {
	return append([]string{path.Join(folder, handoff.Program), "run"}, d.arguments(folder)...)
}

// ownVolumes returns the two volumes that the executor needs. The first is in
// memory for the sake of the key; it is as fast as one on disk.
func ownVolumes(handoff corev1.Volume) []corev1.Volume {
	return []corev1.Volume{
		{Name: runnerVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
		}},
		handoff,
	}
}

// addOIDCVolume adds a volume to which the runner writes the job's OIDC token: the
// folder belongs to root in every image, and the user of the job may be another one. A
// template may put its own volume there.
func addOIDCVolume(spec *corev1.PodSpec) {
	memory := corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name: oidcVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &memory},
	})
	main := &spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: oidcVolume, MountPath: oidcFolder})
}

// ownMounts returns the mounts of the job's container that the executor needs.
func ownMounts(folder string) []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: runnerVolume, MountPath: folder},
		{Name: handoffVolume, MountPath: handoffFolder, ReadOnly: true},
	}
}

// recipientOf returns whom a handoff for the Pod is sealed to.
func recipientOf(pod *corev1.Pod) handoff.Recipient {
	return handoff.Recipient{
		Pod:        string(pod.UID),
		Job:        pod.Labels[labelJob],
		Generation: pod.Labels[labelGeneration],
	}
}

// exampleName stands for what each job has of its own.
const exampleName = "example"

// Preview returns the Pod that a job of a pool gets, as [Executor.Start] makes it.
// The name, the job and the agent are placeholders, and image is that of the job
// unless the configuration overrides it. It asks no cluster: equal arguments give
// equal documents. Of the options, Image and RunnerDirectory count.
func Preview(spec runtime.PoolSpec, image string, options Options) (patch.Document, error) {
	return previewOf(spec, exampleJob(spec, image), options)
}

// TemplateChanges returns what the template of a pool changes in the Pod of a job.
// Without a template there is no change.
func TemplateChanges(spec runtime.PoolSpec, options Options) ([]patch.Change, error) {
	plain := spec
	plain.Tuning.Place.Kubernetes.Template = nil
	return Changes(plain, spec, options)
}

// Changes returns what differs between the Pods of two versions of a pool. The
// labels and annotations by which an agent recognises the pool are left out: they
// follow from its identity.
func Changes(from, to runtime.PoolSpec, options Options) ([]patch.Change, error) {
	var documents [2]patch.Document
	for i, spec := range []runtime.PoolSpec{from, to} {
		job := exampleJob(spec, exampleName)
		job.Pool, job.PoolName, job.Identity = to.Key(), to.Name, to.Identity
		var err error
		if documents[i], err = previewOf(spec, job, options); err != nil {
			return nil, err
		}
	}
	return documents[0].Changes(documents[1]), nil
}

// exampleJob returns a job of a pool, with placeholders in place of what the
// service and the agent give each job.
func exampleJob(spec runtime.PoolSpec, image string) *runtime.Job {
	return &runtime.Job{
		ID: exampleName, Kind: runtime.Deployment, Subject: exampleName, Agent: exampleName,
		Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity, Tuning: spec.Tuning, Generation: 1,
		Definition: runtime.Definition{Image: runtime.Image{Reference: image}},
	}
}

// previewOf returns the Pod of a job, in the namespace of its pool and without what
// only the cluster reports.
func previewOf(spec runtime.PoolSpec, job *runtime.Job, options Options) (patch.Document, error) {
	settings := podSettings{image: options.Image, runnerDirectory: options.RunnerDirectory}
	pod, err := podOf(job, namePrefix+exampleName, settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = spec.Identity.Namespace
	return patch.NewDocument(pod, mainContainer, prepareContainer)
}
