package kube

import (
	"cmp"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// owner is the agent's Pod that a job's Pod belongs to.
type owner struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// self is what an agent knows of the Pod that it runs in.
type self struct {
	owner owner
	group string // value of labelGroup; empty if the agent's Pod is not known
}

// known reports whether the agent knows its own Pod. One that does not finds its
// jobs by its id.
func (s self) known() bool { return s.group != "" }

// selfOf returns what the agent's own Pod shows.
func selfOf(pod *corev1.Pod) self {
	return self{
		owner: owner{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		group: groupOf(pod),
	}
}

// groupOf returns the value of labelGroup for the workers of an agent's Pod: its
// namespace, and the kind and name of what replaces the Pod when it is gone.
func groupOf(pod *corev1.Pod) string {
	kind, name := controllerOf(pod)
	return labelValue(pod.Namespace + "." + strings.ToLower(kind) + "." + name)
}

// controllerOf returns what makes a new Pod when this one is gone. For the Pod of a
// ReplicaSet that is the Deployment, because a rolling update makes a new
// ReplicaSet; for a Pod without a controller it is the Pod itself.
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
	return controller.Kind, controller.Name
}

// mark writes into a job's Pod that it belongs to this agent.
func (s self) mark(pod *corev1.Pod) {
	if !s.known() {
		return
	}
	text, err := json.Marshal(s.owner)
	if err != nil {
		panic(err) // strings only
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Labels[labelGroup], pod.Labels[labelOwner] = s.group, labelValue(s.owner.Name)
	pod.Annotations[annotationOwner] = string(text)
}

// ownerOf returns the owner of a job's Pod. One with a damaged annotation is the
// owner that the label names, in the namespace of the Pod; without a uid it exists as
// long as a Pod of that name does.
func ownerOf(pod *corev1.Pod) owner {
	var o owner
	if json.Unmarshal([]byte(pod.Annotations[annotationOwner]), &o) != nil || !o.valid() {
		o = owner{Name: pod.Labels[labelOwner]}
	}
	o.Namespace = cmp.Or(o.Namespace, pod.Namespace)
	return o
}

// valid reports whether an owner can exist: its parts become parts of URLs.
func (o owner) valid() bool {
	return len(validation.IsDNS1123Label(o.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(o.Name)) == 0
}

// ended reports whether an owner does not exist any more. Pod is what has its name
// now, nil for nothing. A Pod that is being deleted exists: its agent lets jobs
// finish.
func (o owner) ended(pod *corev1.Pod) bool {
	return pod == nil || o.UID != "" && string(pod.UID) != o.UID ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
