package kube

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
)

// Names in a job's Pod. The prefix "pulumi-workflow-" is reserved on every target.
const (
	MainContainer    = "pulumi-workflow"
	prepareContainer = "pulumi-workflow-prepare"

	runnerVolume  = "pulumi-workflow-runner"
	handoffVolume = "pulumi-workflow-handoff"
	oidcVolume    = "pulumi-workflow-oidc"
	filesVolume   = "pulumi-workflow-files"
)

// Paths in a job's Pod.
const (
	programImagePath = "/usr/local/bin/" + handoff.Program // in the image of the init container
	handoffDirectory = "/mnt/pulumi/handoff"
	oidcDirectory    = "/mnt/pulumi" // directory of the file pulumi.oidc, which contains a job's OIDC token

	// filesDirectory is where the init containers of a template leave files for the job. An example in the
	// documentation of Pulumi's own agent does.
	filesDirectory = "/mnt/pulumi/workflow"
)

// podSettings are the settings that all Pods of an agent share.
type podSettings struct {
	image           string // see Options.Image
	runnerDirectory string // directory of the runner in a job's container
	self            self   // the agent
	handoffSize     int    // in bytes; 0 if not known
	sender          string // public key of the handoff's sender
}

func startLimit(job *runtime.Job) time.Duration {
	return cmp.Or(job.Tuning.Instance.Kubernetes.StartTimeout, StartTimeout)
}

// podOf returns the Pod of a job, with the template of its pool applied. It contains no
// secrets, because everyone who may read Pods can read it.
func podOf(job *runtime.Job, name string, settings podSettings) (*corev1.Pod, error) {
	pod, err := plainPod(job, name, settings)
	if err != nil {
		return nil, err
	}
	return applyTemplate(pod, patchesOf(job))
}

func plainPod(job *runtime.Job, name string, settings podSettings) (*corev1.Pod, error) {
	place := job.Tuning.Instance.Kubernetes
	resources, err := resourcesOf(place)
	if err != nil {
		return nil, err
	}
	image, err := settings.runnerImage(place)
	if err != nil {
		return nil, err
	}
	delivery := deliveryOf(place.Handoff, settings.handoffSize)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(job), Annotations: annotations(job)},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			NodeSelector:                  nodeSelectorOf(job),
			ServiceAccountName:            place.ServiceAccount,
			AutomountServiceAccountToken:  new(place.ServiceAccount != ""),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(stopSeconds(job)),
			Volumes:                       ownVolumes(delivery.volume(name)),
			InitContainers: []corev1.Container{
				prepareOf(place, image, settings.runnerDirectory, resources),
			},
			Containers: []corev1.Container{{
				Name:                     MainContainer,
				Image:                    cmp.Or(job.Tuning.Instance.OverrideImage, job.Definition.Image.Reference),
				Command:                  mainCommand(settings.runnerDirectory, delivery, settings.sender),
				Resources:                resources,
				TerminationMessagePolicy: terminationPolicy(job.Tuning.Instance),
				VolumeMounts:             ownMounts(settings.runnerDirectory),
			}},
		},
	}
	settings.self.mark(pod)
	if delivery == inSecret {
		pod.Annotations[annotationHandoff] = delivery.annotationValue()
	}
	if !job.OIDC.Empty() {
		addOIDCVolume(&pod.Spec)
	}
	if hasCredentials(job) {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: pullSecretOf(name)}}
	}
	limit := job.Definition.Timeout
	if limit <= 0 {
		limit = runtime.LeftoverAge // without a deadline, a Pod whose agent is gone could run for ever
	}
	seconds := int64(limit/time.Second) + int64((startLimit(job)+deadlineMargin)/time.Second)
	pod.Spec.ActiveDeadlineSeconds = new(min(seconds, 1<<31-1)) // the API server refuses more than 32 bits
	return pod, nil
}

// stopSeconds returns the grace period of a job's Pod in seconds. In this time the runner
// interrupts the step, and then terminates it.
func stopSeconds(job *runtime.Job) int64 {
	return int64(math.Ceil((job.Tuning.CancelGrace + runtime.StopGrace).Seconds()))
}

// resourcesOf returns the requests and the limits of the job's container. Its error names the
// setting with an invalid amount.
func resourcesOf(place runtime.Kubernetes) (corev1.ResourceRequirements, error) {
	requests, err := amountsOf(place.Requests, "")
	if err != nil {
		return corev1.ResourceRequirements{}, err
	}
	limits, err := amountsOf(place.Limits, "_limit")
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}, err
}

func amountsOf(resources runtime.Resources, suffix string) (corev1.ResourceList, error) {
	amounts := corev1.ResourceList{}
	for _, r := range []struct {
		name corev1.ResourceName
		key  string
		text string
	}{
		{corev1.ResourceCPU, "cpu", resources.CPU},
		{corev1.ResourceMemory, "memory", resources.Memory},
		{corev1.ResourceEphemeralStorage, "ephemeral_storage", resources.EphemeralStorage},
	} {
		if r.text == "" {
			continue
		}
		quantity, err := resource.ParseQuantity(r.text)
		if err != nil || quantity.Sign() <= 0 {
			return nil, fmt.Errorf("kubernetes.%s%s: %q is not a positive Kubernetes quantity", r.key, suffix, r.text)
		}
		amounts[r.name] = quantity
	}
	return amounts, nil
}

// prepareOf returns the init container. It has the same resources as the job's container.
// This costs nothing, because those of a Pod are the larger of the two; a quota may
// require it.
func prepareOf(
	place runtime.Kubernetes, image, directory string, resources corev1.ResourceRequirements,
) corev1.Container {
	return corev1.Container{
		Name:            prepareContainer,
		Image:           image,
		ImagePullPolicy: corev1.PullPolicy(place.ImagePullPolicy),
		Command:         []string{programImagePath, "prepare", directory, corev1.TerminationMessagePathDefault},
		Resources:       *resources.DeepCopy(),
		VolumeMounts:    []corev1.VolumeMount{{Name: runnerVolume, MountPath: directory}},
		// The fields that Pod Security "restricted" requires. The agent sets no user: the
		// image has one, and some clusters assign another one.
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

// mainCommand returns the command of the job's container. Directory is the directory of the
// runner, and sender the public key of the handoff's sender.
func mainCommand(directory string, d delivery, sender string) []string {
	return append([]string{path.Join(directory, handoff.Program), "run"}, d.arguments(directory, sender)...)
}

// ownVolumes returns the volumes that the executor needs. The first is in memory, because it contains
// the private key; it is as fast as a volume on disk. The last is on disk, because the files that
// init containers leave may be large.
func ownVolumes(handoff corev1.Volume) []corev1.Volume {
	files := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	return []corev1.Volume{memoryVolume(runnerVolume), handoff, {Name: filesVolume, VolumeSource: files}}
}

func memoryVolume(name string) corev1.Volume {
	memory := corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &memory}}
}

// addOIDCVolume adds a volume for the job's OIDC token: the directory belongs to root in every
// image, and the job may run as another user. A template may mount another volume there.
func addOIDCVolume(spec *corev1.PodSpec) {
	spec.Volumes = append(spec.Volumes, memoryVolume(oidcVolume))
	main := &spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: oidcVolume, MountPath: oidcDirectory})
}

func ownMounts(directory string) []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: runnerVolume, MountPath: directory},
		{Name: handoffVolume, MountPath: handoffDirectory, ReadOnly: true},
		{Name: filesVolume, MountPath: filesDirectory},
	}
}

func recipientOf(pod *corev1.Pod) handoff.Recipient {
	return handoff.Recipient{
		Pod:        string(pod.UID),
		Job:        pod.Labels[labelJob],
		Generation: pod.Labels[labelGeneration],
	}
}

const exampleName = "example" // the placeholder for values that differ between jobs

// Preview returns the Pod that [Executor.Start] creates for a job of a pool. The name, the
// job and the agent are placeholders. Image is the image of the job, unless the
// configuration overrides it. Work selects the rules of the template. Preview needs no cluster:
// equal arguments give equal documents. It uses the options Image and RunnerDirectory. Without an image, it
// shows a placeholder for the image of the agent's Pod.
func Preview(spec runtime.PoolSpec, image string, work runtime.Work, options Options) (patch.Document, error) {
	job := exampleJob(spec, image)
	job.Definition.Work = work
	return previewOf(spec, job, options)
}

// TemplateChanges returns the changes that the template of a pool, and its rules for all jobs,
// make in the Pod of a job. It returns none if the pool has no template.
func TemplateChanges(spec runtime.PoolSpec, options Options) ([]patch.Change, error) {
	plain := spec
	plain.Tuning.Instance.Kubernetes.Template, plain.Tuning.Instance.Kubernetes.TemplateRules = nil, nil
	return Changes(plain, spec, options)
}

// Changes returns the differences between the Pods of two versions of a pool. It omits the
// labels and annotations of the pool itself: they follow from its identity.
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

// exampleJob returns a job of a pool, with placeholders for the values that the service and
// the agent set.
func exampleJob(spec runtime.PoolSpec, image string) *runtime.Job {
	return &runtime.Job{
		ID: exampleName, Kind: runtime.Deployment, WorkflowID: exampleName, Agent: exampleName,
		Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity, Tuning: spec.Tuning, Generation: 1,
		Definition: runtime.Definition{Image: runtime.Image{Reference: image}},
	}
}

// previewOf returns the Pod of a job, in the namespace of its pool, without a status.
func previewOf(spec runtime.PoolSpec, job *runtime.Job, options Options) (patch.Document, error) {
	settings := podSettings{
		image: cmp.Or(options.Image, exampleName), runnerDirectory: options.RunnerDirectory, sender: exampleName,
	}
	pod, err := podOf(job, namePrefix+exampleName, settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = spec.Identity.Namespace
	return patch.NewDocument(pod, MainContainer, prepareContainer)
}

// terminationPolicy returns where the message of an ended container comes from. If the runner fails without a message,
// it is the end of the log, unless the log has the output of steps.
func terminationPolicy(spec runtime.InstanceSpec) corev1.TerminationMessagePolicy {
	if spec.LocalLog {
		return corev1.TerminationMessageReadFile
	}
	return corev1.TerminationMessageFallbackToLogsOnError
}
