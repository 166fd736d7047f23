package kube

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cmwa-project/cmwa/runtime"
)

// Labels of a job's Pod. Pulumi documents the first two; Fargate profiles and scripts
// select Pods by them.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	labelManagedBy = "app.kubernetes.io/managed-by"

	labelAgent      = "cmwa.agent" // id of the agent
	labelOwner      = "cmwa.owner" // name of the agent's Pod, or a digest of it
	labelGroup      = "cmwa.group" // group of the agent; agents of a group adopt each other's Pods, see groupOf
	labelPool       = "cmwa.pool"
	labelJob        = "cmwa.job" // the job's id, or a digest if the id is not valid in a label
	labelGeneration = "cmwa.generation"
	labelKind       = "cmwa.kind"   // kind of leased work; the Pod of a deployment does not have this label
	labelRecord     = "cmwa.record" // marks an object that is the record of a claimed job
	labelKeep       = "cmwa.keep"   // "failed": keep the Pod of a failed job; "all": keep it; "until": it is being kept
)

// Values of labels.
const (
	managedByValue = "cmwa"

	keepFailed = "failed"
	keepAll    = "all"
	keepUntil  = "until"
)

// Annotations of a job's Pod: values that are too long or not valid for a label.
const (
	annotationJob      = "cmwa.job"
	annotationSubject  = "cmwa.subject"
	annotationPoolName = "cmwa.pool-name"
	annotationIdentity = "cmwa.pool-identity" // of the pool, in JSON
	annotationHandoff  = "cmwa.handoff"       // sealed handoff, or carrierPrefix and a resource
	annotationOwner    = "cmwa.owner"         // namespace, name and uid of the agent's Pod, in JSON
	annotationKept     = "cmwa.kept-until"    // when a kept Pod is removed, RFC 3339
)

// defaultAnnotations prevent that Karpenter or the cluster autoscaler removes the node of a
// running job to save costs: the job would fail. A template can change or remove them.
var defaultAnnotations = map[string]string{
	"karpenter.sh/do-not-disrupt":                    "true",
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}

// workLabels are the parts of the job's work in labels, for kubectl and for reports of costs. The
// agent does not read these labels. A value that is not valid in a label is replaced by a digest.
// Annotations with the same names have all parts themselves.
var workLabels = []string{
	runtime.LabelOrganization, runtime.LabelProject, runtime.LabelStack, runtime.LabelOperation,
}

const target = "kubernetes" // the deploy_target of this executor

func labels(job *runtime.Job) map[string]string {
	all := map[string]string{
		labelName:       "workflow-runner",
		labelComponent:  "pulumi-workflow",
		labelManagedBy:  managedByValue,
		labelAgent:      labelValue(job.Agent),
		labelPool:       labelValue(job.Pool),
		labelJob:        labelValue(job.ID),
		labelGeneration: strconv.FormatUint(job.Generation, 10),
	}
	if job.Kind.Leased() {
		all[labelKind] = string(job.Kind)
	}
	if keep := job.Tuning.Instance.Kubernetes.KeepPods; keep != "" {
		all[labelKeep] = keep
	}
	work := job.Definition.Work.Labels()
	for _, key := range workLabels {
		if value := work[key]; value != "" {
			all[key] = labelValue(value)
		}
	}
	return all
}

// annotations returns the annotations that the agent sets on a new Pod of a job.
func annotations(job *runtime.Job) map[string]string {
	all := map[string]string{
		annotationJob:      job.ID,
		annotationSubject:  job.WorkflowID,
		annotationPoolName: job.PoolName,
		annotationIdentity: job.Identity.Text(),
	}
	maps.Copy(all, defaultAnnotations)
	maps.Copy(all, job.Definition.Work.Labels())
	return all
}

// labelValue returns text, or a digest of it if text is not valid as the value of a label.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// poolOf returns the name and the identity of the pool of a job's Pod or record. A damaged
// annotation yields a pool that is not configured.
func poolOf(object metav1.Object) runtime.PoolSpec {
	all := object.GetAnnotations()
	return runtime.PoolSpec{
		Name:     all[annotationPoolName],
		Identity: runtime.ParseIdentity(all[annotationIdentity], target),
	}
}

func instanceOf(pod *corev1.Pod) runtime.Instance {
	pool := poolOf(pod)
	generation, _ := strconv.ParseUint(pod.Labels[labelGeneration], 10, 64)
	return runtime.Instance{
		ID:         idOf(pod.Name, string(pod.UID)),
		Pool:       pool.Key(),
		PoolName:   pool.Name,
		Identity:   pool.Identity,
		Job:        cmp.Or(pod.Annotations[annotationJob], pod.Labels[labelJob]),
		WorkflowID: pod.Annotations[annotationSubject],
		Kind:       runtime.Kind(pod.Labels[labelKind]),
		Work:       runtime.WorkOf(pod.Annotations),
		Generation: generation,
	}
}

// namePrefix is the prefix of the names of jobs' Pods, as documented by Pulumi. The name
// does not contain "agent", because some users have policies that exempt Pods with "agent"
// in their name.
const namePrefix = "pulumi-workflow-runner-"

// newName returns a new name for a job's Pod. The API server does not choose it, so that a
// retried create cannot make a second Pod.
func newName() string { return namePrefix + strings.ToLower(rand.Text()[:12]) }

// idOf returns the id of an instance. It contains the uid, because a name can be used
// again.
func idOf(name, uid string) string { return name + "/" + uid }

// parseID splits the id of an instance. It reports whether the parts are valid; they become
// parts of URLs.
func parseID(id string) (name, uid string, ok bool) {
	name, uid, ok = strings.Cut(id, "/")
	return name, uid, ok && uid != "" && len(validation.IsDNS1123Subdomain(name)) == 0
}

const managedSelector = labelManagedBy + "=" + managedByValue // of the Pods and objects of all agents

// watchedSelector returns the selector of the Pods that an agent watches: those of its
// group, so that it can adopt the Pods of agents that end, except kept Pods. An agent that does not
// know its own Pod watches the Pods with its id; an agent without an id watches all.
func watchedSelector(s self, agent string) string {
	switch {
	case s.known():
		return managedSelector + "," + labelGroup + "=" + s.group + "," + labelKeep + "!=" + keepUntil
	case agent != "":
		return managedSelector + "," + labelAgent + "=" + labelValue(agent)
	}
	return managedSelector
}

func ownedSelector(s self, agent string) string {
	if s.known() {
		return watchedSelector(s, agent) + "," + labelOwner + "=" + labelValue(s.owner.Name)
	}
	return managedSelector + "," + labelAgent + "=" + labelValue(agent)
}

// keptSelector returns the selector of the kept Pods that the agent deletes when their time
// is over: those of its group, or those without a group.
func keptSelector(s self) string {
	keeps := managedSelector + "," + labelKeep + "=" + keepUntil
	if s.known() {
		return keeps + "," + labelGroup + "=" + s.group
	}
	return keeps + ",!" + labelGroup
}
