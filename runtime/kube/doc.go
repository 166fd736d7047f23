// Package kube knows how a job is a Pod: how it is created in a cluster, found by
// its labels, followed and removed. It will never know what a job is for, which
// service it came from, or how a step is run.
//
// The agent needs the rights of the documented Role and nothing more: create, get,
// list, watch, update and delete on pods and pods/log of one namespace. It never
// patches, reads no Secret, and creates nothing but Pods, and ConfigMaps
// for large handoffs. The right to create Secrets is asked for only by settings and
// jobs that need it. Events are read where a Role allows it, and only for a Pod that
// does not start and does not tell why. Its self checks also ask for the version of the
// API server, for the namespace, and for reviews of the agent's own access. A cluster
// may refuse these; they then decide nothing.
//
// The figures below are medians, measured on one idle node of two cores with
// Kubernetes 1.36 and containerd 1.6.
//
// # One create
//
// A Pod is made by one create, and nothing that its start depends on comes before
// or later: a ConfigMap that comes a second late costs two seconds more. The agent
// chooses the name, so that a create whose answer was lost can be repeated: the
// second one is refused. What may succeed later (a quota that is used up, an API
// server that does not answer) is tried again until the start's limit, because the
// job is claimed already.
//
// # How the runner gets in
//
// An init container of the agent's image copies it into a volume in memory, which
// takes 1.1 s from the create to the first line of the job's container. A sidecar
// that copies in a postStart hook takes 0.7 s, but only since Kubernetes 1.36, and
// stays for the whole job.
//
// With kubernetes.runner: image, it is run from a volume with that image, and the init
// container only makes the key; a handoff that is not sealed needs none. This takes a
// container runtime with image volumes (containerd 2.1), which the Role cannot find out,
// so copy is the default. The tests hold such Pods against the API server and run them
// with the kubelet of package kubetest; the cluster of the tests has an older runtime, on
// which they show the error that a user gets.
//
// # The handoff
//
// Everyone who may read Pods reads their specs, and usually ConfigMaps, too; the
// Role has no right on Secrets. So the init container makes a key pair and reports
// the public half as its termination message, the agent seals the handoff to it
// (package handoff) and writes it into an annotation, and the runner reads that
// through a downward API volume. The job's container waits 0.08 s for it, at most
// one second. Only root of the node, and who may exec into the Pod within that
// time, can get the private half: the runner deletes it before anything else runs.
// The annotation stays for the life of the Pod and is worthless without the key.
//
// Neither a key from the job's container (0.2 to 1.1 s, and the log must be polled)
// nor a ConfigMap (readable by others for as long as an image is pulled) is better.
//
// All annotations of a Pod may have 256 KiB. A handoff that might not fit is sealed in
// the same way and put into a ConfigMap that the Pod owns; the annotation then only
// makes the kubelet read it at once, which takes 0.1 s. That is better than a failed
// job: the Role allows ConfigMaps, and what is sealed may be read by all. Above 1 MB,
// compressed, the job fails with the advice to shorten it.
//
// Two settings of kubernetes.handoff are for nodes that do not refresh the files of a
// running Pod, such as virtual kubelets: there no key that is made in the Pod can be
// answered. With secret and configmap the handoff is compressed and not sealed. Its
// object is created before the Pod, because the Pod cannot wait for it on such nodes;
// the Pod is made its owner afterwards. Its volume is optional, so that the object can
// be deleted when the runner has read it, which its first line of progress shows. Until
// then, a second or as long as an image is pulled, it is readable to those who may get
// Secrets (ConfigMaps) of the namespace, and in the file to the steps of the job
// itself. Removal, a sweep by label, and the owner delete what is left. It takes seven
// requests a job, and step 0 shows trouble of the start only if the start fails, as the
// runner continues the log from where the handoff was made.
//
// # Registry credentials
//
// Credentials that a job brings become an image pull secret directly after the create
// of the Pod, which owns it; the kubelet reads it when the init container has ended.
// Where the agent may not create Secrets, the log of step 0 says what to do instead,
// and the job goes on: its image may be public.
//
// # Users and security contexts
//
// The agent sets the security context of its own init container, to all that Pod
// Security "restricted" demands, and of nothing else: jobs may need root, and the image
// decides. It names no user, because some clusters assign one; where a template makes
// root the user of the whole Pod, runAsNonRoot of the init container gives way. In a
// namespace that enforces "restricted", a template sets runAsNonRoot, runAsUser and
// seccompProfile of the Pod, and allowPrivilegeEscalation and capabilities of the job's
// container; the API server's refusal lists what is missing.
//
// Nothing depends on the user of the job's container: volumes are writable for all, the
// key may be deleted by all, and a job with an OIDC token gets a volume at /mnt/pulumi
// for its file, as the folder belongs to root in every image. The runner finds a home, a
// root and a place for scripts also with a read-only root (its own volume, if there is no
// other; /dev/shm is mounted noexec). Steps start in the template's workingDir, and in /
// without one, whatever the image says.
//
// # Nodes and networks
//
// A Pod selects nodes by kubernetes.io/os and, if the service names an architecture, by
// kubernetes.io/arch: an image of another one fails with "exec format error" and nothing
// else. Selectors and required affinities of a template win.
//
// On Fargate a Pod is alone on its node, whose size follows from the requests
// (kubernetes.cpu and kubernetes.memory; the smallest size leaves a job 256 MB); the
// larger of init container and job counts, and both have the same. The documented labels
// select the profile. The volumes in memory take 10 MB of the Pod's memory, and a token.
//
// Proxy settings are secrets at times, so the agent writes none into a Pod.
// env_forward_allowlist sends them in the handoff, to the steps and to the runner's own
// calls; a template may set them in the container's environment. DNS is the template's
// (dnsPolicy, dnsConfig, hostAliases).
//
// # One watch
//
// All Pods of the agent in a namespace are watched once, by client-go's reflector
// with a store of our own that keeps less than a kilobyte of each; a whole Pod takes
// 14. The whole object is kept between create and handoff only, because an update
// needs it. Nothing is polled: Wait and Start read what the watch shows. A job takes
// four requests: create, update, log, delete.
//
// # An API server that is down, or wrong
//
// An outage delays jobs and ends none: a create, and the handoff, are tried again
// for as long as a start may take, and what has started needs no API server. A Pod that
// has its handoff may have started: its start is not late before the outage has ended
// and the watch has shown it.
//
// Only the API server's own statement ends a job. A Pod that a list or a watch does not
// show any more is asked for, because a list can be old; a page of a proxy with the
// status 404 states nothing; a refusal of the agent's credentials or rights must last
// for 20 seconds, because tokens are replaced and an API server that has just
// started may not know all Roles. No time of the cluster's clock is compared with
// the agent's to end anything. Calls, watches and logs all have limits, and client-go's
// own retries of watches and logs are off: they wait for as long as a Retry-After
// asks for.
//
// The state of the job's container decides when a job has ended, and not the phase
// of the Pod, which follows up to 2.5 s later. The end of a log stream decides
// nothing: the stream of a Pod on a lost node ends, too.
//
// # Ownership
//
// An agent's Pod is replaced whenever its image, its settings or its node change, and
// its state folder is gone with it. So in a cluster a job's Pod belongs to the
// agent's Pod: a label holds its name, an annotation its namespace, name and uid. The
// agent reads its own Pod once, and learns from it which controller replaces it: a
// Deployment (the ReplicaSet's name without the pod-template-hash), a StatefulSet, a
// DaemonSet, a Job, or nothing but the Pod's name. Namespace and controller are the
// group, a second label. One watch of a namespace shows the Pods of the whole group,
// so every replica sees what the others run. Other Deployments in the namespace have
// another group, also if they serve the same pool: their Pods are neither watched nor
// adopted nor swept.
//
// Each pool looks every 20 seconds for Pods of owners that no longer exist. An owner
// does not exist if its name is not found, has another uid, or belongs to a Pod that
// succeeded or failed. One that cannot be read, is being deleted, or is on a node that
// is lost exists: its agent may run. A look costs nothing if the watch shows no Pod of
// others, else one get for each owner. A new agent of a rolling update starts while the
// old one still drains, which is why a look at the start is not enough.
//
// An agent whose Pod was deleted by force may run on for a while. It sends no handoff to
// a Pod that another agent has adopted, because that one removes a Pod without a handoff.
// Two agents in one Pod would have the same owner, and attend each other's jobs: a Pod
// has one agent.
//
// A Pod is adopted by an update that names the version that was read. The API server
// accepts one such update of a version (200 of 200 races of two agents; the other one
// is answered with 409), so exactly one replica gets the Pod. The update needs the
// whole Pod, which is read first: the store of the watch holds a part of it. If the
// answer of the update is lost, the next look finds out what became of it. A
// container of the agent that starts again in its Pod has the same uid, and finds its
// jobs by its first list.
//
// There is no owner reference, because the garbage collector would end the jobs with
// the agent's Pod, and no Lease, because the Role does not allow it. What remains when
// a Deployment is removed with jobs running are Pods that end by themselves and stay
// until somebody deletes them.
//
// An agent in a Pod never ends its jobs when it stops: the kubelet sends the same
// TERM whether the Pod is deleted, moved or replaced. The job goes on, its runner
// reports by itself, and another agent adopts it, also if the kubelet still pulls its
// image. A job whose handoff is not sent yet fails, because only the agent that claimed
// it has its token.
//
// An agent outside of a cluster, and one that may not read its own Pod, finds its
// Pods by its id, which its state folder keeps.
//
// # Templates
//
// A template is a strategic merge patch on the Pod, as of kubectl patch: people know
// it, and other agents take it. strategicpatch needs help: it panics on a merge key
// that is a list, drops a new mapping with $patch: replace, accepts unknown fields,
// and puts new containers first. So package patch checks keys before the merge,
// carries out directives that meet nothing, and decodes the result strictly. Then
// what the agent needs is restored. Package schema/podtemplate refuses with line and
// column what this would refuse; a test in cmd/cmwa/pods compares the two.
//
// Preview and Changes show the Pod that Start makes, by the same functions. They take
// no cluster, and mask what people write secrets into.
//
// # Failures
//
// The agent keeps the clock of a start: activeDeadlineSeconds does not run before
// the Pod has a node. What may heal (no room, an image that cannot be pulled, and
// silence, because faults of mounts and sandboxes are reported in events only) has
// start_timeout (ten minutes), what cannot heal two minutes at most. Both are answers
// with the reason and the message of Kubernetes. The whole list is judge.
//
// Evictions, preemptions and deletions send a TERM first, which the runner answers with a
// report of its own before the Pod has ended. The runner therefore waits for three
// seconds before that report, and the agent adds a last line to the log of the step
// with the reason, which it knows from the watch. Only the runner reports the failure,
// so that it is reported once, and also while no agent runs.
//
// # Deletion
//
// A deletion with a grace of zero removes the object and leaves the container to
// end by itself, so a Pod whose job may run gets one second at least. Deletions
// name the uid, because a name can be used again.
//
// # The client
//
// A bare REST client with core/v1, made when the first pool of this target is
// configured: 14.6 MB of program against 29.7 MB with the generated clientset, and
// 10 MB less memory in agents that do not use it. The limits of client-go's own
// limiter (five requests a second) are raised. It follows no redirect, which would
// take the token of the service account to another host.
//
// Each context of a kubeconfig (kubernetes.context) is a cluster with a client of its
// own. The context is part of a pool's identity: instances stay where they are, so a pool
// that changes it drains there. Credential plugins (exec) of a kubeconfig work, because
// package rest contains them; providers that were compiled into clients do not.
package kube
