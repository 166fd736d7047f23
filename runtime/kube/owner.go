package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	labelset "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// owner identifies the agent's Pod to which a job's Pod belongs.
type owner struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// self is the identity of the agent's own Pod.
type self struct {
	owner  owner
	group  string // value of labelGroup; empty if the agent's Pod is not known
	agents string // selector of the Pods of the group's agents; empty if their labels do not select them
	image  string // of the agent; empty if it is not known
}

// known reports whether the agent knows its own Pod. If not, it finds its jobs by its agent
// id.
func (s self) known() bool { return s.group != "" }

// selfOf returns the identity of an agent with this Pod. Home is the id of the Pod's cluster if the
// jobs run in another cluster, and else empty.
func selfOf(pod *corev1.Pod, home string) self {
	return self{
		owner:  owner{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		group:  groupOf(pod, home),
		agents: agentSelector(pod),
		image:  imageOf(pod),
	}
}

// podLabels are labels that controllers give to single Pods, or to the Pods of one revision.
var podLabels = []string{
	"pod-template-hash", "controller-revision-hash", "pod-template-generation",
	"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index",
	"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name",
	"batch.kubernetes.io/job-completion-index",
}

// agentSelector returns a selector of the Pods that have the labels of the agent's own Pod. It may
// select Pods of other programs too. It may leave out agents of the group whose labels have been
// changed in their controller; see ownerGone.
func agentSelector(pod *corev1.Pod) string {
	shared := maps.Clone(pod.Labels)
	maps.DeleteFunc(shared, func(name, _ string) bool { return slices.Contains(podLabels, name) })
	return labelset.Set(shared).String()
}

// groupOf returns the value of labelGroup for the job Pods of an agent: the namespace of
// its Pod, and the kind and name of the controller that replaces the Pod. If the jobs run in another
// cluster, the id of the Pod's cluster follows: agents of several clusters may share the cluster of
// their jobs, and each can find out only whether agents of its own cluster exist.
func groupOf(pod *corev1.Pod, home string) string {
	kind, name := controllerOf(pod)
	group := pod.Namespace + "." + strings.ToLower(kind) + "." + name
	if home != "" {
		group += "." + home
	}
	return labelValue(group)
}

// cronJobName matches the name of a Job that a CronJob has created: the name of the CronJob, and the
// scheduled time in minutes since 1970. The agent may not read the Job itself.
var cronJobName = regexp.MustCompile(`^(.+)-[0-9]{8}$`)

// labelScaledJob is the label that KEDA gives to the Pods of a ScaledJob.
const labelScaledJob = "scaledjob.keda.sh/name"

// controllerOf returns the controller that replaces a Pod. For the Pod of a ReplicaSet it
// is the Deployment, because a rolling update creates a new ReplicaSet. For the Pod of a Job it is
// the CronJob or the ScaledJob that creates the next Job. For a Pod without a controller it is the
// Pod itself.
func controllerOf(pod *corev1.Pod) (kind, name string) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return "Pod", pod.Name
	}
	if controller.Kind == "ReplicaSet" {
		hash := pod.Labels["pod-template-hash"]
		if deployment, ok := strings.CutSuffix(controller.Name, "-"+hash); ok && hash != "" && deployment != "" {
			return "Deployment", deployment
		}
	}
	if controller.Kind == "Job" {
		if name := pod.Labels[labelScaledJob]; name != "" {
			return "ScaledJob", name
		}
		if parts := cronJobName.FindStringSubmatch(controller.Name); parts != nil {
			return "CronJob", parts[1]
		}
	}
	return controller.Kind, controller.Name
}

// mark sets the labels and annotations of an object that belongs to this agent: the Pod or
// the record of a job.
func (s self) mark(o metav1.Object) {
	if !s.known() {
		return
	}
	text, _ := json.Marshal(s.owner) // strings: never fails
	labels, annotations := map[string]string{}, map[string]string{}
	maps.Copy(labels, o.GetLabels())
	maps.Copy(annotations, o.GetAnnotations())
	labels[labelGroup], labels[labelOwner] = s.group, labelValue(s.owner.Name)
	annotations[annotationOwner] = string(text)
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
}

// ownerOf returns the owner of a job's Pod or record. If the annotation is damaged, the
// owner has the name in the label, the namespace of the object and no uid. Such an owner
// counts as existing as long as a Pod with that name exists and has not ended.
func ownerOf(object metav1.Object) owner {
	var o owner
	if json.Unmarshal([]byte(object.GetAnnotations()[annotationOwner]), &o) != nil || !o.valid() {
		o = owner{Name: object.GetLabels()[labelOwner]}
	}
	o.Namespace = cmp.Or(o.Namespace, object.GetNamespace())
	return o
}

// valid reports whether an owner has valid names; they become parts of URLs.
func (o owner) valid() bool {
	return len(validation.IsDNS1123Label(o.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(o.Name)) == 0
}

// ended reports whether an owner no longer exists. Pod is the Pod that has the owner's name
// now; nil if there is none. Now is the time of the API server. An owner whose Pod is being deleted
// exists during its grace period: its agent waits for its jobs. The kubelet kills it afterwards. If
// the Pod is not gone some minutes later, its node has failed, and only an administrator
// removes the Pod.
func (o owner) ended(pod *corev1.Pod, now time.Time) bool {
	return pod == nil || o.UID != "" && string(pod.UID) != o.UID ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && overdue(pod.DeletionTimestamp.Time, now)
}

// overdue reports whether an agent's Pod that should be gone at a time exists for too long.
func overdue(deletion, now time.Time) bool {
	return !deletion.IsZero() && now.Sub(deletion) > overdueOwnerLimit
}

// selfEnded reports whether the agent's own Pod no longer exists, or has ended. Then another agent
// adopts the agent's jobs, although this process may still run: after kubectl delete --force, or
// on a node that the cluster has lost.
func (e *Executor) selfEnded(ctx context.Context) (bool, error) {
	pod, err := e.cluster.home.get(ctx, e.self.owner.Namespace, e.self.owner.Name)
	if isNotFound(err) {
		return true, nil
	}
	return err == nil && e.self.owner.ended(pod, e.cluster.home.now()), err
}
