package kube

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

const (
	recordValue = "job"    // value of labelRecord
	recordKey   = "record" // key in the data of an object
)

// Journal returns a journal in the cluster for the executor's pool, which has this key. The executor
// must own its Pods, see Owned. Journal returns false if the pool cannot protect the tokens of jobs;
// with OIDC credentials, it logs the effect and a hint.
func (e *Executor) Journal(pool string, tuning runtime.Tuning) (runtime.Journal, bool) {
	store, ok := records.New(records.Options{
		Cluster: recordCluster{e}, Agent: records.Agent(e.self.owner), Pool: pool, Tuning: tuning, Log: e.log,
	})
	if !ok {
		if tuning.OIDCTokenFile != "" {
			e.log.Info("jobs are recorded in the state directory, which is lost with the agent's pod",
				"reason", "a pool with OIDC credentials can store the tokens of its jobs in Secrets only",
				"effect", "a job that is claimed and not started when the pod is lost ends when the service gives up",
				"hint", "set kubernetes.handoff to secret")
		}
		return nil, false
	}
	e.records.Store(store)
	return store, true
}

// recordCluster implements [records.Cluster].
type recordCluster struct{ *Executor }

// List implements [records.Cluster].
func (c recordCluster) List(ctx context.Context, resource string, filter records.Filter) ([]records.Object, error) {
	if filter.Name != "" { // labels may have been edited
		return c.listRecords(ctx, resource, named(filter.Name), filter.WithoutText)
	}
	selector := managedSelector + "," + labelRecord + "=" + recordValue
	if filter.Scope != records.OfAll {
		selector += "," + labelGroup + "=" + c.self.group
	}
	switch owner := labelValue(c.self.owner.Name); filter.Scope {
	case records.OfSelf:
		selector += "," + labelOwner + "=" + owner
	case records.OfOthers:
		selector += "," + labelOwner + "!=" + owner
	}
	if filter.Pool != "" {
		selector += "," + labelPool + "=" + labelValue(filter.Pool)
	}
	return c.listRecords(ctx, resource, metav1.ListOptions{LabelSelector: selector}, filter.WithoutText)
}

func (c recordCluster) listRecords(
	ctx context.Context, resource string, options metav1.ListOptions, withoutText bool,
) ([]records.Object, error) {
	list := c.client.listData
	if withoutText {
		list = c.client.listMetadata
	}
	listed, err := list(ctx, resource, c.namespace, options)
	if err != nil {
		return nil, c.failed("list", resource, err)
	}
	all := make([]records.Object, len(listed))
	for i, o := range listed {
		all[i] = c.recordObject(resource, o)
	}
	return all, nil
}

// Outdated implements [records.Cluster]. The watch of the group's agents does not show an agent with
// other labels, or one that starts and ends during an outage.
func (c recordCluster) Outdated() time.Time {
	if !c.agents.follows() {
		return time.Now().Add(-recordListInterval)
	}
	outdated := time.Now().Add(-recordListWatched)
	if ended := c.agents.ended(); ended.After(outdated) {
		return ended
	}
	return outdated
}

// Put implements [records.Cluster].
func (c recordCluster) Put(ctx context.Context, o records.Object) (records.Object, error) {
	verb := "update"
	stored, err := object(nil), error(nil)
	if o.Version == "" {
		verb = "create"
		stored, err = c.client.createObject(ctx, o.Resource, c.object(o), false)
	} else {
		stored, err = c.client.updateObject(ctx, o.Resource, c.object(o))
	}
	if err != nil {
		return records.Object{}, c.failed(verb, o.Resource, err)
	}
	return c.recordObject(o.Resource, stored), nil
}

// Delete implements [records.Cluster].
func (c recordCluster) Delete(ctx context.Context, o records.Object) error {
	err := c.client.deleteObject(ctx, o.Resource, c.namespace, o.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: new(types.UID(o.UID)), ResourceVersion: &o.Version},
	})
	if err != nil {
		return c.failed("delete", o.Resource, err)
	}
	return nil
}

// Gone implements [records.Cluster].
func (c recordCluster) Gone(ctx context.Context, agent records.Agent) (gone bool, err error) {
	if o := owner(agent); o == c.self.owner {
		gone, err = c.selfEnded(ctx)
	} else {
		gone, err = c.ownerGone(ctx, o)
	}
	if err != nil {
		return false, records.NewError(records.Temporary, err)
	}
	return gone, nil
}

// Pods implements [records.Cluster]. If an object carries the handoff, the kubelet may have read it
// although the Pod has no annotation: see completeDelivery. A kept Pod has run, unless its runner
// exited without a handoff: releasePod has removed the annotation.
func (c recordCluster) Pods(ctx context.Context, job string) (all []records.Pod, err error) {
	err = c.each(ctx, metav1.ListOptions{LabelSelector: labelJob + "=" + labelValue(job)}, func(pod *corev1.Pod) {
		kept := pod.Labels[labelKeep] == keepUntil
		all = append(all, records.Pod{
			Name: pod.Name, UID: string(pod.UID),
			Foreign: ownerOf(pod) != c.self.owner && !kept,
			MayRun: pod.Annotations[annotationHandoff] != "" || carrierOf(pod) != inAnnotation ||
				kept && stateOf(pod).main.code != runtime.CodeUsage,
		})
	})
	if err != nil {
		return nil, c.explain("list the Pods of a recorded job", err)
	}
	return all, nil
}

// failed returns the error of a request, in one line and with a hint.
func (c recordCluster) failed(verb, resource string, err error) error {
	kind := records.Permanent
	switch {
	case isNotFound(err):
		kind = records.Missing
	case isConflict(err), apierrors.IsAlreadyExists(err) && !fromProxy(err):
		kind = records.Conflict
	case temporary(err):
		kind = records.Temporary
	case apierrors.IsForbidden(err):
		kind = records.Forbidden
	}
	return records.NewError(kind, c.explainObject(verb, resource, err))
}

// object returns the ConfigMap or the Secret for a record of this agent.
func (c recordCluster) object(o records.Object) object {
	job := &runtime.Job{ID: o.Job, Pool: o.Pool, Agent: c.cluster.options.Agent}
	meta := c.objectMeta(job, o.Name, o.Needed)
	meta.UID, meta.ResourceVersion = types.UID(o.UID), o.Version
	meta.Labels[labelRecord] = recordValue
	meta.Annotations[annotationJob] = o.Job
	if o.Needed.IsZero() {
		delete(meta.Annotations, annotationNeeded)
	}
	c.self.mark(&meta)
	if o.Pod != "" {
		meta.OwnerReferences = ownedBy(o.Pod, types.UID(o.PodUID))
	}
	if o.Resource == secrets {
		return &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{recordKey: o.Text}}
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{recordKey: string(o.Text)}}
}

// recordObject returns the record in a ConfigMap or a Secret.
func (c recordCluster) recordObject(resource string, stored object) records.Object {
	o := records.Object{
		Resource: resource, Name: stored.GetName(), UID: string(stored.GetUID()), Version: stored.GetResourceVersion(),
		Owner: records.Agent(ownerOf(stored)), Pool: stored.GetLabels()[labelPool],
		Job:      cmp.Or(stored.GetAnnotations()[annotationJob], stored.GetLabels()[labelJob]),
		Deleting: stored.GetDeletionTimestamp() != nil,
	}
	switch stored := stored.(type) {
	case *corev1.Secret:
		o.Text = stored.Data[recordKey]
	case *corev1.ConfigMap:
		o.Text = []byte(stored.Data[recordKey])
	}
	if needed, err := time.Parse(time.RFC3339, stored.GetAnnotations()[annotationNeeded]); err == nil {
		o.Needed = c.client.fromServer(needed)
	}
	for _, pod := range stored.GetOwnerReferences() {
		o.Pod, o.PodUID = pod.Name, string(pod.UID)
	}
	return o
}
