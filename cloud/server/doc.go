// Package server is the service's side of the wire protocol: organizations, agent pools,
// stacks, deployments and their jobs, for agents, runners and users. With it,
// no Pulumi Cloud account is needed. It depends only on the protocol, and not on how an
// agent runs jobs.
//
// # Storage
//
// One folder contains everything: a SQLite database, the master key, and the first
// user's access token. Each transaction syncs the write-ahead log (synchronous=FULL), so
// a change that was confirmed to an agent or runner survives a power failure. This matters
// most for a claim, because a job that is claimed twice runs twice. A call with a change
// costs one sync of the disk, and a job makes few of them. A transaction took 0.02 ms
// with synchronous=NORMAL and 0.06 ms with FULL: the difference is not worth the risk. Heartbeats
// are frequent and may be lost, so they are only in memory, and a start of the service
// counts as a heartbeat of every job. Each batch of log lines is one row, with all its lines
// in one blob.
//
// Tokens are stored as hashes. Settings that may be secret, and the definitions of jobs,
// are encrypted with AES-256-GCM under a key of their stack, which is encrypted under
// the master key. The first byte is the version of the format.
//
// # Decisions
//
//   - A deployment without a pool is for the default pool of the organization, or for
//     its only pool. It is refused if there are several pools and no default. It waits
//     for the first pool if there is none.
//   - Each pool claims deployments in the order of the queue, and each stack has at most
//     one running deployment.
//   - A step goes from not-started to running to a final status, and starts only after the
//     success of the step before it. A retry of a status, or of a stored batch of lines,
//     is accepted. Other reports are refused: with 409 for an invalid change of status
//     and for lines of a step that is not running, with 400 for a gap between batches.
//   - A claim returns to the queue after 35 seconds in which its agent did not fetch the
//     definition and sent no heartbeat: the answer to the poll was lost, or the agent has
//     died. Nothing of the job can have run, and the token of the lost claim is deleted, so
//     that nothing runs twice.
//   - A cancelled job fails at once, and so does a job without a heartbeat for longer
//     than the limit. From then on the calls of its runner are refused with 409, and the
//     job is never claimed again. Only the lines of the step that a cancel has interrupted
//     are accepted: they report how the step has ended. After an ordinary end a late heartbeat
//     is accepted.
//   - An agent may exchange an OIDC token for a pool token that expires. The
//     configuration of an issuer allows it, with the claims that a token must have, and
//     for one pool or every pool of the organization: see package idtoken. An issuer that
//     serves the customers of a public service is refused without a claim that identifies
//     one of them. Without an issuer, every exchange is denied (403). Keys are read at the
//     start and never fetched.
//   - A scan or policy evaluation is leased to one agent at a time. A lease that is not renewed
//     expires: from then on all calls of its holder and of its job are refused with 409, and
//     the next agent of the pool gets the work, as long as retries are left. Work that had begun
//     waits for two thirds of the duration of a lease, in which the runner of the expired lease
//     finds that its calls are refused, and stops. An expired lease is lost even if no other
//     agent has the work yet. The success of the last step completes
//     the work in the same transaction, so it is never repeated. A failed step ends only the
//     job: the holder completes the lease as failed, or asks for a retry.
//   - A pool that has running jobs, or that the settings of a stack name, is deleted only
//     with force=true. Its agents are refused from then on; their running jobs continue.
//     Its leased work is cancelled.
//
// # Retention
//
// The limits of [Retention] bound the database. A log above its limit loses batches in its
// middle, because its beginning shows what ran, and its end why it failed. A row with the
// number of lines takes their place, so offsets stay exact, a retry of lines that are not
// stored is accepted, and readers see one line about them. Old deployments are deleted in
// small transactions, and free pages are returned to the file system (incremental vacuum)
// beyond a reserve of 4 MiB. A log of 20 MB with a limit of 1 MiB left 5 MB, most of it
// the write-ahead log. 2,000 deployments with 40 MB of logs needed at most 8 MB when the
// last 20 deployments were kept.
//
// # Limits
//
// The steps of a job are complete scripts, so there is no deployment executor to
// download (404). The service issues no OIDC tokens to jobs, caches nothing, and stores no
// state of stacks: programs use another backend, which the variable PULUMI_BACKEND_URL in a
// deployment's settings names.
//
// # Extensions
//
// These are not part of Pulumi's API:
//
//   - The fields cmwaSteps and cmwaTimeout of a deployment request replace the
//     compiled steps with any scripts.
//   - The definition of a job lists its secret variables in cmwaSecretVariables,
//     because the variables themselves are plain strings.
//   - Deployments and steps have a cmwaStatus, which is "cancelled" where Pulumi has
//     only failed and skipped. If the service ended a deployment before its steps
//     did, the log ends with a header that gives the reason.
//   - The 400 for lines at a wrong offset has the right one in cmwaNextOffset.
//   - POST /api/orgs/{org}/agent-pools/{pool}/tokens makes another token for a pool.
//   - GET and POST /api/orgs/{org}/agent-pools/{pool}/activities, and below them /{id},
//     /{id}/logs and /{id}/cancel: the scans and policy evaluations of a pool. Their steps are
//     scripts.
//   - GET /api/capabilities lists "cmwa-leases": the service leases work. Agents send
//     cmwaKinds, the kinds that they can carry out, with POST .../worker/lease/acquire; the
//     answer has the fields of a poll, and cmwaKind, cmwaLeaseID, cmwaLeaseToken and
//     cmwaLeaseSeconds. With that token they call POST .../worker/lease/{id}/begin, /renew
//     and /complete. The job itself uses the calls of deployments.
package server
