// Package kube runs jobs as Pods: it creates them, finds them by their labels, follows
// their logs and removes them. It does not know the purpose of a job, the service that
// the job came from, or how a step is run.
//
// The facts for operators are in examples/kubernetes/jobs.md: rights, users, nodes, handoffs,
// adoption. This comment has the decisions and their prices. The figures are medians, measured on
// one idle node with two cores, Kubernetes 1.36 and containerd 1.6.
//
// One job goes through the files of runtime/pool and cloud that runtime/pool/doc.go lists, and
// through these:
//
//  1. check.go: can the cluster run jobs?
//  2. journal.go, records/store.go: the record of the claim.
//  3. replace.go: the start of a job, and the replacement of a lost Pod; create.go: the start in one
//     Pod, in order; pod.go, labels.go, template.go and patch/merge.go:
//     the Pod.
//  4. await.go: waits until the Pod is ready for the handoff; watch.go, state.go: its state;
//     failure.go: why it cannot start.
//  5. delivery.go, send.go, ../handoff/seal.go: the handoff.
//  6. follow.go, wait.go, remove.go: the log, the end, the removal.
//
// After a crash: list.go, adopt.go, owner.go and records/adopt.go.
//
// # One create
//
// The agent creates the Pod with one request, and by default its start depends on no other object:
// a ConfigMap that is created one second too late would delay the start by two more seconds. The
// agent chooses the name of the Pod, so a create whose response was lost can be retried: the API
// server refuses the second create. Errors that may be temporary are retried until the start times
// out, because the job is already claimed.
//
// # The runner
//
// The image of the runner is that of the agent's own Pod, which the agent gets anyway. So an installation
// of Pulumi's own agent moves to this one by a change of only the image, although its ConfigMap still sets
// PULUMI_AGENT_IMAGE to the image of that agent, and an upgrade cannot forget the second of two names.
// The variable counts only if the agent does not know its own image. It was meant for mirrors; a user of
// a mirror sets kubernetes.image, whose explicit value always wins. A rule that compares repositories would
// keep an earlier release of the same repository. The agent cannot see which release the image of
// kubernetes.image contains before a Pod runs it.
//
// An init container with this image copies the runner into a volume in memory. From
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
//  2. The agent seals the handoff to this key (package handoff), signs it, and writes it into an
//     annotation.
//  3. The runner reads the annotation through a downward API volume, and deletes the private key
//     before it runs anything else. It accepts only a handoff of the sender whose public key is in
//     the command of its container.
//
// Everyone who may read the Pod can seal a text to its key, so without the signature a user who may
// write ConfigMaps could replace the job. No client can change the command of a Pod that exists. The
// sender's key is new for each start and only in the memory of the agent: a Pod that has no handoff
// when its agent ends never gets one, because the next agent starts the job in another Pod.
//
// A user can still read or replace a handoff who may update Pods (another image for a container that
// has not started), update pods/ephemeralcontainers (a container that mounts the private key), update
// pods/status (another public key), exec into Pods, or create Pods with the Secret of the agent.
//
// The job's container waits 0.08 s for the handoff, at most one second. If the job's container
// created the key, this would take 0.2 to 1.1 s, and the agent would have to poll the log. A
// ConfigMap without sealing would be readable while an image is pulled.
//
// An annotation is part of each event of the Pod, for each agent of the group. A handoff of more than
// 16 KiB is sealed in the same way and stored in a ConfigMap that the Pod owns. The annotation then
// only makes the kubelet read the ConfigMap at once, which takes 0.1 s: the start takes no longer,
// and the job takes two more requests. Most handoffs have 2 to 5 KiB.
//
// With kubernetes.handoff: secret, the Secret is created before the Pod, because the Pod cannot wait
// for it on nodes that do not refresh files. It is optional in the volume of the Pod, so that the
// agent can delete it at the first line of progress. A job then takes seven requests.
//
// # Two watches
//
// One watch shows all Pods of the agent's group in a namespace. It is client-go's reflector with a
// store that keeps less than 1 kB of each Pod; a whole Pod takes 14 kB. The whole object is
// kept only between create and handoff, because an update needs it. Nothing is polled: Wait
// and Start read the store. A job takes four requests: create, update, log, delete. Its
// record takes two more.
//
// A second watch shows the Pods that have the labels of the agent's own Pod: the other agents of the
// group. An agent that it shows exists, without a request. Before, each agent got the Pod of each other
// agent every 20 seconds: 50 agents sent 122 requests a second. Now 50 agents with 20 jobs each
// send 1.3: dry runs, the sweeps, and the restarts of watches. The records of other agents are
// listed when this watch shows that an agent has ended, and every five minutes, without their texts.
// If the Pods of agents have no labels, each agent gets the Pods of the others, and lists once a minute.
//
// # Newer releases of Kubernetes
//
// A typed update drops fields that the agent's types do not have, and the API server refuses it with
// a 422. Only then the agent gets the Pod as JSON, and changes only labels and annotations of it. This
// takes two more requests. The Role does not allow a patch, which would take one.
//
// # The log stream
//
// The log of each job's container is followed while the job runs: one long request for each job, which
// carries some 100 bytes for each step. To open it only at the end, or when the Pod is about to be
// deleted, would save these requests, and lose the progress when it is needed:
//
//   - The log of a Pod on a lost node, or of one that was deleted without a grace period, cannot be
//     read any more. The agent then fails the job at the last step and line that it has read. Without
//     them, it would have to find the step by trying.
//   - A Secret or a ConfigMap with the handoff is deleted at the first line. Otherwise it would exist
//     as long as the job.
//   - A line reports that the runner got a signal. It waits three seconds for the agent to add the
//     reason, which is shorter than a new request may take while a node is drained.
//   - The first line ends the back-off after failed starts, and the records of jobs get the progress.
//
// # Outages
//
// An outage delays jobs and ends none. A Pod that has its handoff may have started, so its start
// does not time out before the watch has shown the Pod again. Only a response of the API server
// itself ends a job:
//
//   - If a list or a watch no longer shows a Pod, the agent gets the Pod, because a list
//     can be outdated.
//   - An HTML page of a proxy with status 404 counts as no response.
//   - An error about the agent's credentials or rights must last for 20 seconds.
//   - Timeouts never compare a time of the cluster with the agent's clock. The sweeps and the adoption
//     use the clock of the API server, which its responses contain; see serverClock.
//
// A Pod on a node that does not answer is deleted with a grace period of zero, a minute after its own
// grace period. Otherwise its job would use a slot until an administrator removes the Node. Its
// containers may run until the node answers again. The service refuses the calls of their runner, which
// stops the job, and cmwa-cloud leases such work again only 70 seconds after the lease has ended.
//
// The retries of client-go for watches and logs are off, because they wait as long as a Retry-After
// header requires.
//
// A Pod that is lost before its job has run is replaced, for example after an eviction. Nothing can have
// run without the handoff, which opens only with the key of that Pod. After the handoff, only the last
// report of the kubelet counts, because a kubelet that does not report may start the container.
//
// A job has ended when its container has exited. The phase of the Pod changes up to 2.5 s
// later. The end of a log stream proves nothing: the stream of a Pod on a lost node ends too.
//
// # Ownership
//
// The Pod of an agent is replaced whenever its image, its settings or its node change, and its state
// directory is then lost. Therefore a job's Pod belongs to the agent's Pod: a label holds the name,
// an annotation the namespace, name and uid. A second label holds the group: the namespace of the
// agent's Pod and the controller that replaces it.
//
// An agent adopts a Pod with an update that names the version that it read. The API server accepts
// one such update per version (in 200 of 200 races of two agents; the other agent gets a 409). If
// the response to the update is lost, the next check finds the result. One check at the start is not
// enough: during a rolling update, a new agent starts while the old one drains.
//
// The Pod of an agent whose node has failed stays Running, or is being deleted for ever. Its agent may
// run behind a failed network, and still report its jobs. Therefore its jobs are adopted only when
// the kubelet must have killed it: ten minutes after the end of its grace period. If the agent runs
// nevertheless, its updates meet the conflict of the adoption, and it gives its jobs up.
//
// The jobs of a pool with kubernetes.context run in another cluster than the agent's Pod. They have the
// same owner: the agents ask the API server of their own cluster whether an agent exists. The group then
// contains an id of this cluster, because agents of several clusters may share the cluster of their
// jobs. A persistent volume for the state directory would be the other way; it needs a StatefulSet,
// and one agent could not adopt the jobs of another.
//
// Job Pods have no owner reference, because the garbage collector would end the jobs with the
// agent's Pod. There is no Lease, because the Role does not allow it. A job with a record takes 6.0
// requests instead of 4.0 (200 jobs at a time); package records gives the reasons.
//
// # Templates
//
// A template is a strategic merge patch of the Pod, as in kubectl patch. Package strategicpatch
// panics on a merge key that is a list, drops a new mapping with $patch: replace, accepts unknown
// fields, and puts new containers first. Therefore package patch checks keys before the merge,
// applies directives that match nothing in the Pod, and decodes the result strictly. Then the fields
// that the agent needs are restored. The patches of pod_template_rules are merged one after the
// other, and the fields are restored once at the end: if they were restored after each patch, a rule
// could not change a volume of the template. Package schema/podtemplate reports the same errors earlier,
// with line and column; a test in cmd/cmwa/pods compares the errors of both packages.
//
// The Pod has a volume at /mnt/pulumi/workflow, which is also mounted into the init containers of a
// template: in the documentation of Pulumi's own agent, one leaves a file there. The runner is in another
// volume, at /mnt/pulumi/runner: an init container of a template that can write there could replace the
// program that gets the handoff, or read the key.
//
// # Labels
//
// The agent finds its Pods by labels, and instances by their annotations. It does not read the
// labels of what a job works on, which are for kubectl and for reports of costs: their values come
// from variables of the job, which its users can change.
//
// # The end of a job
//
// The agent measures the start timeout itself: activeDeadlineSeconds does not count before the Pod
// has a node. See diagnose for the list of failures.
//
// Evictions, preemptions and deletions send a TERM first. The runner waits three seconds before it
// reports the failure, and in this time the agent adds the reason that the watch shows to the log of
// the step. Only the runner reports, so a failure is reported once, even while no agent runs.
//
// A deletion with a grace period of zero removes the object at once, and the container ends later.
// So the grace period is at least one second for a Pod whose job may run. Deletions name the uid,
// because a name can be used again.
//
// # The client
//
// The client is a REST client with core/v1 only. It adds 14.6 MB to the program; the generated
// clientset would add 29.7 MB. It is created when the first pool of this target is configured, which
// saves other agents 10 MB of memory. Its rate is kubernetes.qps. Creates have a limit of their own:
// with one queue, the deletions and handoffs of running jobs would wait for the creates of a thousand
// new ones. It follows no redirect, because that would send the token of
// the service account to another host.
package kube
