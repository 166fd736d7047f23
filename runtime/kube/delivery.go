package kube

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
)

// handoffSecret is the value of kubernetes.handoff for nodes that do not refresh the files of a
// running Pod. With any other value, the handoff is sealed.
const handoffSecret = "secret"

// largeHandoff is the size in bytes, before compression, above which a sealed handoff is sent in a
// ConfigMap. An annotation stays until the Pod is deleted, and each agent of the group receives it with
// each of the about nine events of the Pod. A ConfigMap takes two requests more.
const largeHandoff = 16 << 10

// delivery is how a handoff reaches its Pod: the resource of the object that carries it, or the
// empty string for an annotation of the Pod.
type delivery string

const (
	inAnnotation delivery = ""         // sealed to the key of the Pod
	inConfigMap  delivery = configMaps // sealed in the same way, for a large handoff
	inSecret     delivery = secrets    // not sealed, and created before the Pod
)

// deliveryOf returns how a handoff of this size in bytes is sent. Setting is the value of
// kubernetes.handoff.
func deliveryOf(setting string, size int) delivery {
	switch {
	case setting == handoffSecret:
		return inSecret
	case size > largeHandoff:
		return inConfigMap
	}
	return inAnnotation
}

// objectOf returns the name of the object that carries the handoff of a Pod.
func objectOf(pod string) string { return pod + "-handoff" }

// volume returns the volume from which the runner reads its handoff. The object in it is
// optional, because the agent deletes the object when the runner has read it. If the object
// were mandatory, a kubelet that restarts after the deletion would not report the end of
// the Pod.
func (d delivery) volume(pod string) corev1.Volume {
	v := corev1.Volume{Name: handoffVolume}
	recipient := []corev1.DownwardAPIVolumeFile{
		downwardFile(handoff.PodFile, "metadata.uid"),
		downwardFile(handoff.JobFile, "metadata.labels['"+labelJob+"']"),
		downwardFile(handoff.GenerationFile, "metadata.labels['"+labelGeneration+"']"),
	}
	only := func(name string) []corev1.KeyToPath { return []corev1.KeyToPath{{Key: name, Path: name}} }
	switch d {
	case inAnnotation:
		sealed := downwardFile(handoff.SealedFile, "metadata.annotations['"+annotationHandoff+"']")
		v.DownwardAPI = &corev1.DownwardAPIVolumeSource{
			Items: append([]corev1.DownwardAPIVolumeFile{sealed}, recipient...),
		}
	case inSecret:
		v.Secret = &corev1.SecretVolumeSource{
			SecretName: objectOf(pod), Optional: new(true), Items: only(handoff.PackedFile),
		}
	case inConfigMap:
		v.Projected = &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: recipient}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: objectOf(pod)},
				Optional:             new(true), Items: only(handoff.SealedFile),
			}},
		}}
	}
	return v
}

func downwardFile(name, field string) corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{
		Path: name, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: field},
	}
}

// arguments returns the arguments of the runner for its handoff. Directory is the directory of
// the runner. Sender is the key that checks the signature of the handoff: no client can change the
// arguments of a Pod that exists.
func (d delivery) arguments(directory, sender string) []string {
	if d == inSecret {
		return []string{"--handoff", path.Join(handoffDirectory, handoff.PackedFile), "--sender", sender}
	}
	return []string{
		"--handoff", path.Join(handoffDirectory, handoff.SealedFile), "--sender", sender,
		"--key", path.Join(directory, handoff.KeyFile),
	}
}

// carrierPrefix is the prefix of the handoff's annotation if an object carries the handoff.
// The name of the resource follows. The prefix is not valid base64, so the value cannot be
// a sealed handoff.
const carrierPrefix = "in "

func (d delivery) annotationValue() string { return carrierPrefix + string(d) }

// carrierOf returns how the handoff reaches a Pod.
func carrierOf(pod *corev1.Pod) delivery {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Name != handoffVolume:
		case v.Secret != nil:
			return inSecret
		case v.Projected != nil:
			return inConfigMap
		}
	}
	return inAnnotation
}

func (d delivery) object(meta metav1.ObjectMeta, text []byte) object {
	if d == inSecret {
		return &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{handoff.PackedFile: text}}
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{handoff.SealedFile: string(text)}}
}

// createPacked creates the object with a handoff that is not sealed. It is called before
// the Pod is created, so that the file exists on every node when the job's container
// starts.
func (s *starting) createPacked(ctx context.Context, pod string) error {
	s.setup.Log("The job is sent in %s/%s; this object is deleted when the runner has read it",
		s.delivery, objectOf(pod))
	text, err := s.setup.Handoff(ctx, "/")
	if err != nil {
		return err
	}
	packed, err := s.sender.Pack(text, handoff.MaxObject)
	if err != nil {
		return sendError(err)
	}
	if err := s.createCarrier(ctx, pod, packed, s.deadline); err != nil {
		return err
	}
	s.sendTried, s.sent = true, true
	return nil
}

// createCarrier creates the object with a handoff, or replaces it with a later version. The Pod owns
// it, if the Pod exists already.
func (s *starting) createCarrier(ctx context.Context, pod string, text []byte, until time.Time) error {
	e, resource := s.executor, string(s.delivery)
	s.carrier = s.delivery.object(e.objectMeta(s.job, objectOf(pod), s.deadline), text)
	if s.created != nil {
		s.carrier.SetOwnerReferences(ownedBy(s.created.Name, s.created.UID))
	}
	s.objectTried, s.delivered = true, true
	if s.versions > 1 {
		_, err := e.client.updateObject(ctx, resource, s.carrier)
		return err
	}
	return e.createObject(ctx, resource, s.carrier, retry{
		deadline: until, refusalLimit: e.refusalLimit(),
		explain: func(err error) error { return e.explainObject("create", resource, err) },
	})
}

// setOwner makes the Pod the owner of its handoff, so that the cluster deletes both. If this
// fails, the job continues: the agent deletes the object too.
func (e *Executor) setOwner(ctx context.Context, o object, pod *corev1.Pod) {
	ctx, cancel := detached(ctx, callLimit)
	defer cancel()
	o.SetOwnerReferences(ownedBy(pod.Name, pod.UID))
	if _, err := e.client.updateObject(ctx, secrets, o); err != nil {
		e.log.Debug("cannot set owner of handoff", "pod", pod.Name, "error", err)
	}
}

// sendError returns the error for a handoff that cannot be packed or sealed.
func sendError(err error) error {
	if errors.Is(err, handoff.ErrTooLarge) {
		return runtime.NewJobFault("send the job to its Pod: %w: shorten the scripts and variables of its deployment "+
			"settings, or move their content to its repository or image", err)
	}
	return fmt.Errorf("send the job to its Pod: %w", err)
}
