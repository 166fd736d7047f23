package kube

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cmwa-project/cmwa/runtime"
)

// Labels of a job's Pod. The first two are documented by Pulumi; Fargate profiles
// and scripts select Pods by them.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	labelManagedBy = "app.kubernetes.io/managed-by"

	labelAgent      = "cmwa.agent" // id of the agent
	labelOwner      = "cmwa.owner" // name of the agent's Pod, or a digest of it
	labelGroup      = "cmwa.group" // of the agents that adopt each other's Pods, see groupOf
	labelPool       = "cmwa.pool"
	labelJob        = "cmwa.job" // the job's id, or a digest of an id that is no label
	labelGeneration = "cmwa.generation"
	labelKeep       = "cmwa.keep" // "failed": the Pod of a failed job is kept; "until": it is being kept
)

// Values of labels.
const (
	nameValue      = "workflow-runner"
	componentValue = "pulumi-workflow"
	managedByValue = "cmwa"

	keepFailed = "failed"
	keepUntil  = "until"
)

// Annotations of a job's Pod: what is too long for a label, or no label.
const (
	annotationJob      = "cmwa.job"
	annotationSubject  = "cmwa.subject"
	annotationPoolName = "cmwa.pool-name"
	annotationIdentity = "cmwa.pool-identity" // of the pool, in JSON
	annotationHandoff  = "cmwa.handoff"       // sealed to the Pod's key, or what carries it
	annotationOwner    = "cmwa.owner"         // namespace, name and uid of the agent's Pod, in JSON
	annotationKept     = "cmwa.kept-until"    // when a kept Pod is removed, RFC 3339
)

// target is the deploy_target of this executor.
const target = "kubernetes"

// labels returns the agent's own labels of a job's Pod.
func labels(job *runtime.Job) map[string]string {
	all := map[string]string{
		labelName:       nameValue,
		labelComponent:  componentValue,
		labelManagedBy:  managedByValue,
		labelAgent:      labelValue(job.Agent),
		labelPool:       labelValue(job.Pool),
		labelJob:        labelValue(job.ID),
		labelGeneration: strconv.FormatUint(job.Generation, 10),
	}
	if job.Tuning.Place.Kubernetes.KeepFailedPods {
		all[labelKeep] = keepFailed
	}
	return all
}

// annotations returns the agent's own annotations of a job's Pod at its creation.
func annotations(job *runtime.Job) map[string]string {
	identity, err := json.Marshal(job.Identity)
	if err != nil {
		panic(err) // strings only
	}
	return map[string]string{
		annotationJob:      job.ID,
		annotationSubject:  job.Subject,
		annotationPoolName: job.PoolName,
		annotationIdentity: string(identity),
	}
}

// labelValue returns text as the value of a label: itself, or a digest of it when
// it contains what labels must not.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// poolOf returns the name and the identity of the pool that a Pod's job belongs to.
// A damaged annotation yields a pool that is not configured.
func poolOf(pod *corev1.Pod) runtime.PoolSpec {
	pool := runtime.PoolSpec{Name: pod.Annotations[annotationPoolName]}
	if json.Unmarshal([]byte(pod.Annotations[annotationIdentity]), &pool.Identity) != nil {
		pool.Identity = runtime.Identity{}
	}
	pool.Identity.Target = cmp.Or(pool.Identity.Target, target)
	return pool
}

// found returns what the metadata of a Pod contain about its job.
func found(pod *corev1.Pod) runtime.Found {
	pool := poolOf(pod)
	generation, _ := strconv.ParseUint(pod.Labels[labelGeneration], 10, 64)
	return runtime.Found{
		ID:         idOf(pod.Name, string(pod.UID)),
		Pool:       pool.Key(),
		PoolName:   pool.Name,
		Identity:   pool.Identity,
		Job:        cmp.Or(pod.Annotations[annotationJob], pod.Labels[labelJob]),
		Subject:    pod.Annotations[annotationSubject],
		Generation: generation,
	}
}

// namePrefix begins the names of jobs' Pods, as documented by Pulumi. Policies of
// users exempt Pods with "agent" in their name, so these have not.
const namePrefix = "pulumi-workflow-runner-"

// newName returns a name for a job's Pod. The agent chooses it, and not the API
// server, so that a repeated create cannot make a second Pod.
func newName() string { return namePrefix + strings.ToLower(rand.Text()[:12]) }

// idOf returns the id of a job's instance. The uid is part of it, because a name
// can be used again.
func idOf(name, uid string) string { return name + "/" + uid }

// parseID splits an id. Ok is false for what cannot be one: its parts become
// parts of URLs.
func parseID(id string) (name, uid string, ok bool) {
	name, uid, ok = strings.Cut(id, "/")
	return name, uid, ok && uid != "" && len(validation.IsDNS1123Subdomain(name)) == 0
}

// Selectors of jobs' Pods. The agents of a group see each other's; a kept Pod is
// nobody's.
const (
	everyWorker = labelManagedBy + "=" + managedByValue
	notKept     = "," + labelKeep + "!=" + keepUntil
)

// watched returns the selector of the Pods that an agent watches: those of its
// group, so that it sees the Pods of an agent that ends. An agent that does not know
// its own Pod watches those with its id, and one without an id watches all.
func watched(s self, agent string) string {
	switch {
	case s.known():
		return everyWorker + "," + labelGroup + "=" + s.group + notKept
	case agent != "":
		return everyWorker + "," + labelAgent + "=" + labelValue(agent)
	}
	return everyWorker
}

// owned returns the selector of an agent's own Pods.
func owned(s self, agent string) string {
	if s.known() {
		return watched(s, agent) + "," + labelOwner + "=" + labelValue(s.owner.Name)
	}
	return everyWorker + "," + labelAgent + "=" + labelValue(agent)
}

// kept returns the selector of the Pods of failed jobs that the agent removes at
// their time: those of its group, or those of agents without one.
func kept(s self) string {
	keeps := everyWorker + "," + labelKeep + "=" + keepUntil
	if s.known() {
		return keeps + "," + labelGroup + "=" + s.group
	}
	return keeps + ",!" + labelGroup
}
