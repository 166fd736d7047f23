// Package kube runs jobs as Pods: it creates them, finds them by their labels, follows
// their logs and removes them. It does not know the purpose of a job, the service that
// the job came from, or how a step is run.
//
// The agent needs only the rights of the documented Role: create, get, list, watch, update
// and delete on pods, pods/log and configmaps of one namespace. It never patches. It creates
// Pods, and ConfigMaps for records of jobs and for large handoffs. Only some settings and
// jobs need rights on Secrets; then the agent creates Secrets, and reads only those that it
// has created. It reads events if a Role allows it, and only for a Pod that does not start
// and whose status has no reason. The self checks also request the version of the API
// server, the namespace, and reviews of the agent's own access. If a cluster refuses these
// requests, their checks are skipped.
//
// The figures below are medians, measured on one idle node with two cores, Kubernetes
// 1.36 and containerd 1.6.
//
// # One create
//
// The agent creates the Pod with one request. By default, the start of the Pod depends on
// no other object: a ConfigMap that is created one second too late would delay the start by
// two more seconds. The agent chooses the name of the Pod, so a create whose response was
// lost can be retried: the API server refuses the second create. Errors that may be
// temporary (a quota that is used up, an API server that does not answer) are retried until
// the start times out, because the job is already claimed.
//
// # How the runner gets into the container
//
// An init container with the agent's image copies the runner into a volume in memory. From
// the create to the first line of the job's container, this takes 1.1 s. With a sidecar
// that copies the runner in a postStart hook it would take 0.7 s, but this works only since
// Kubernetes 1.36, and the sidecar would run during the whole job.
//
// # The handoff
//
// Everyone who may read Pods can read their specs, and usually ConfigMaps too; the Role
// has no right on Secrets. Therefore:
//
//  1. The init container creates a key pair and reports the public key as its termination
//     message.
//  2. The agent seals the handoff to this key (package handoff) and writes it into an
//     annotation.
//  3. The runner reads the annotation through a downward API volume.
//
// The job's container waits 0.08 s for the handoff, at most one second. Only root of the
// node, and users who may exec into the Pod within that time, can get the private key: the
// runner deletes it before it runs anything else. The annotation exists as long as the Pod,
// and cannot be opened without the key.
//
// Two alternatives are worse. If the job's container created the key, this would take 0.2
// to 1.1 s, and the agent would have to poll the log. A ConfigMap without sealing would be
// readable while an image is pulled.
//
// All annotations of a Pod together may have 256 KiB. A handoff that might not fit is
// sealed in the same way and stored in a ConfigMap that the Pod owns. The only purpose of
// the annotation is then that the kubelet reads the ConfigMap at once, which takes 0.1 s.
// The Role allows ConfigMaps, and sealed data is safe from readers of ConfigMaps. If the
// compressed handoff has more than 1 MB, the job fails, and the message recommends to
// shorten it.
//
// With kubernetes.handoff: secret, the handoff is compressed and not sealed. This is for nodes
// that do not refresh the files of a running Pod, such as virtual kubelets: on these, the agent
// cannot respond to a key that the Pod creates.
//
//   - The Secret with the handoff is created before the Pod, because the Pod cannot wait
//     for it on such nodes. Afterwards the Pod becomes the owner of the Secret.
//   - The Secret is optional in the volume of the Pod, so that the agent can delete it when
//     the runner has read it, that is, at the first line of progress. Until then (one
//     second, or as long as an image pull) users who may get Secrets of the namespace can
//     read it, and the steps of the job can read the file.
//   - The removal of the job, a sweep by label, and the garbage collector delete Secrets
//     that are left over.
//   - A job takes seven requests. The log of step 0 contains problems of the start only if
//     the start fails, because the runner continues the log after the last line at the time
//     of the handoff.
//
// # Registry credentials
//
// Directly after the create of the Pod, the agent creates an image pull secret with the
// credentials of the job's image. The Pod owns this secret. The kubelet reads it when the
// init container has ended. If the agent may not create Secrets, the log of step 0
// describes the alternatives, and the job continues: its image may be public.
//
// # Users and security contexts
//
// The agent sets the security context of its own init container only, to the values that
// Pod Security "restricted" requires. Jobs may need root, so the user of the job's
// container is that of its image. The init container names no user, because some clusters
// assign one. If a template makes root the user of the whole Pod, runAsNonRoot of the init
// container is removed. In a namespace that enforces "restricted", a template sets
// runAsNonRoot, runAsUser and seccompProfile of the Pod, and allowPrivilegeEscalation and
// capabilities of the job's container; the error of the API server lists the missing
// fields.
//
// Nothing depends on the user of the job's container: every user can write to the volumes
// and delete the key. A job with an OIDC token gets a volume at /mnt/pulumi for the file,
// because this folder belongs to root in every image. With a read-only root file system,
// the runner uses its own volume for the home, the root and the scripts of a job, if there
// is no other writable folder; /dev/shm is mounted noexec. Steps start in the workingDir of
// the template, or in / if it sets none. The working directory of the image is ignored.
//
// # Nodes and networks
//
// A Pod selects nodes by kubernetes.io/os and, if the service names an architecture, by
// kubernetes.io/arch: an image of another architecture fails with only "exec format error".
// Selectors and required affinities of a template override these.
//
// On Fargate, each Pod has its own node, and its requests (kubernetes.cpu and
// kubernetes.memory) decide the size of the node; the smallest size leaves a job 256 MB.
// Kubernetes counts the larger request of init container and job; both have the same. The
// documented labels select the Fargate profile. The volumes in memory take 10 MB of the
// Pod's memory, plus the size of an OIDC token.
//
// Proxy settings can contain secrets, so the agent writes none into a Pod. Variables in
// env_forward_allowlist are sent in the handoff; the steps and the runner's own requests
// use them. A template may set proxy variables in the container's environment. A template
// sets DNS (dnsPolicy, dnsConfig, hostAliases).
//
// # One watch
//
// One watch shows all Pods of the agent in a namespace. It is client-go's reflector with a
// store that keeps less than 1 kB of each Pod; a whole Pod takes 14 kB. The whole object is
// kept only between create and handoff, because an update needs it. Nothing is polled: Wait
// and Start read the store. A job takes four requests: create, update, log, delete. Its
// record takes two more.
//
// # Outages and wrong answers of the API server
//
// An outage delays jobs and ends none. A create, and the handoff, are retried as long as a
// start may take, and a started job needs no API server. A Pod that has its handoff may
// have started, so its start does not time out before the outage has ended and the watch
// has shown the Pod.
//
// Only a response of the API server itself ends a job:
//
//   - If a list or a watch no longer shows a Pod, the agent gets the Pod, because a list
//     can be outdated.
//   - An HTML page of a proxy with status 404 counts as no answer.
//   - An error about the agent's credentials or rights must last for 20 seconds: tokens are
//     replaced, and an API server that has just started may not have loaded all Roles.
//   - Timeouts never compare a time of the cluster with the agent's clock.
//
// Requests, watches and logs have timeouts. The retries of client-go for watches and logs
// are off, because they wait as long as a Retry-After header requires.
//
// A job has ended when its container has ended. The phase of the Pod changes up to 2.5 s
// later. The end of a log stream does not mean that the job has ended, because the stream
// of a Pod on a lost node ends too.
//
// # Ownership
//
// The Pod of an agent is replaced whenever its image, its settings or its node change, and
// its state folder is then lost. Therefore, in a cluster, a job's Pod belongs to the agent's
// Pod: a label holds the name of the agent's Pod, an annotation its namespace, name and uid.
// The agent reads its own Pod once to find the controller that replaces it: a Deployment
// (the ReplicaSet's name without the pod-template-hash), a StatefulSet, a DaemonSet, a Job,
// or only the Pod's name. The namespace and the controller form the group, which is in a
// second label. One watch shows the Pods of the whole group in a namespace, so every replica
// sees the Pods of the others. Other Deployments in the namespace have other groups, even if
// they serve the same pool: their Pods are neither watched nor adopted nor swept.
//
// Each pool checks every 20 seconds for Pods whose owners no longer exist. An owner counts
// as missing if there is no Pod with its name, or if the Pod with its name has another uid,
// has succeeded or has failed. An owner that cannot be read, is being deleted, or is on a
// lost node counts as existing: its agent may be running. A check makes no request if the
// watch shows no Pod of other owners, and otherwise one get per owner. One check at the
// start is not enough: during a rolling update, a new agent starts while the old one
// drains.
//
// An agent whose Pod was force-deleted may continue to run for a while. It sends no handoff
// to a Pod that another agent has adopted, because the other agent removes a Pod that has
// no handoff. A Pod must contain only one agent: two agents in one Pod would have the same
// owner and manage each other's jobs.
//
// An agent adopts a Pod with an update that names the version that it read. The API server
// accepts one such update per version (in 200 of 200 races of two agents; the other agent
// gets a 409), so exactly one replica gets the Pod. The update needs the whole Pod, which is
// read first: the store of the watch holds only a part. If the response to the update is
// lost, the next check finds the result. If a container of the agent restarts in its Pod,
// the uid of the Pod is the same, and the first list of the new container finds the jobs.
//
// Job Pods have no owner reference, because the garbage collector would end the jobs with
// the agent's Pod. There is no Lease, because the Role does not allow it. If a Deployment is
// removed while jobs run, the Pods of these jobs end by themselves and stay until a user
// deletes them.
//
// An agent in a Pod never ends its jobs when it stops: the kubelet sends the same TERM
// whether the Pod is deleted, moved or replaced. The job continues, its runner reports the
// result, and another agent adopts the Pod, even while the kubelet pulls its image. If the
// agent stops before it has sent the handoff of a job, this job fails. If the agent crashes
// before that, the next agent uses the record of the job.
//
// An agent that runs outside of a cluster, or may not read its own Pod, finds the Pods of
// its jobs by its agent id. The id is in its state folder.
//
// # Records
//
// An agent that is killed must not lose a job that it has claimed. Its state directory is lost with
// its Pod, so package records keeps a record of each job in a ConfigMap, or in a Secret if
// kubernetes.handoff is secret. A pool with OIDC credentials needs Secrets. Without them, its jobs
// are recorded in the state directory, which survives a restart of the agent's container, but not
// the replacement of the Pod. A job with a record takes 6.0 requests instead of 4.0 (200 jobs at a
// time).
//
// A pool lists the records of other agents once a minute, every 20 seconds while there are such
// records, and after each adoption of a Pod.
//
// # Templates
//
// A template is a strategic merge patch of the Pod, as in kubectl patch. Users know this
// format, and other agents accept it. Package strategicpatch panics on a merge key that is a
// list, drops a new mapping with $patch: replace, accepts unknown fields, and puts new
// containers first. Therefore package patch checks keys before the merge, applies directives
// that match nothing in the Pod, and decodes the result strictly. Then the fields that the
// agent needs are restored. Package schema/podtemplate reports the same errors earlier, with
// line and column; a test in cmd/cmwa/pods compares the errors of both packages.
//
// Preview and Changes show the Pod that Start creates, with the same functions. They need no
// cluster. They mask values that may be secret.
//
// # Failures
//
// The agent measures the start timeout itself: activeDeadlineSeconds does not count before
// the Pod has a node. A transient problem may last for start_timeout (ten minutes), and any
// other problem for at most two minutes. Transient problems are a cluster without a free
// node, an image that cannot be pulled, and a Pod whose status has no reason, because
// faults of mounts and sandboxes are only in events. In both cases the error contains the
// reason and the message of Kubernetes. See diagnose for the whole list.
//
// Evictions, preemptions and deletions send a TERM first, and the runner reports the failure
// before the Pod has ended. The runner waits three seconds before that report. In this time
// the agent adds a last line to the log of the step, with the reason that the watch shows.
// Only the runner reports the failure. So the failure is reported exactly once, even while
// no agent runs.
//
// # Deletion
//
// A deletion with a grace period of zero removes the object at once, and the container ends
// later. So the grace period is at least one second for a Pod whose job may run. Deletions
// name the uid, because a name can be used again.
//
// # The client
//
// The client is a REST client with core/v1 only, created when the first pool of this target
// is configured. It adds 14.6 MB to the program; the generated clientset would add 29.7 MB.
// An agent without such pools does not create it, which saves 10 MB of memory. The limits
// of client-go's rate limiter (five requests per second) are raised. The client follows no
// redirect, because that would send the token of the service account to another host.
//
// Each context of a kubeconfig (kubernetes.context) is a cluster with its own client. The
// context is part of a pool's identity: instances stay in their cluster, so a pool whose
// context changes is drained there. Credential plugins (exec) of a kubeconfig work, because
// package rest contains them; the auth providers of older kubectl releases do not work.
package kube
