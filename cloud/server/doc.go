// Package server knows the service's side of the wire: organisations, agent
// pools, stacks, deployments and their jobs, as agents, runners and people call
// for them, so that everything runs on one machine without an account. It will
// never know how a job is run, nor whether an agent is ours.
//
// # What it keeps
//
// One folder holds everything: a SQLite database, the master key, and the first
// user's access token. The write-ahead log is synced with every transaction
// (synchronous=FULL): what an agent or a runner was told is so stays so after a
// power cut, a claim above all, because a job that is handed out twice runs
// twice. That is one sync of the disk for each call that changes something, and a
// job makes few of them. With synchronous=NORMAL a transaction took 0.02 ms where
// FULL took 0.06 ms: not enough to give a promise up for. What comes often and
// may be lost, the heartbeat, is kept in memory alone, and a start counts as one
// from every job. Log lines are stored a
// row per batch, as one blob.
//
// Tokens are stored as hashes. Whatever may be secret in settings, and every
// definition of a job, is sealed with AES-256-GCM under a key of its stack, which
// is wrapped by the master key; the first byte tells the form.
//
// # What it decides
//
//   - Deployments without a pool of their own are for the organisation's default
//     pool, or for its only one. Where there are several and no default, they are
//     refused; where there is none, they wait for the first.
//   - First come, first served in each pool; one deployment per stack at a time.
//   - A step goes from not-started to running to its end, each after the success
//     of the one before. Repeating a status, or a stored batch of lines, is fine.
//     Everything else is refused: a leap or a way back with 409, a gap between
//     batches with 400, lines before or after the step with 409.
//   - A cancel ends a job at once, as failed; so does a silence longer than the
//     heartbeat limit. From then on its runner is refused with 409, and a job is
//     never handed out again. After an ordinary end a late heartbeat is fine.
//   - An agent may exchange an OIDC token for a pool token that expires. Naming
//     an issuer is the policy that allows it: whoever has a token of that issuer
//     for the organisation speaks for any of its pools. Without an issuer, every
//     exchange is denied (403). Keys are read at the start, never fetched.
//   - A deleted pool shuts its agents out; what they run goes on to its end.
//
// # What it does not do
//
// The steps of a job are complete scripts, so there is no deployment executor to
// download (404). It issues no OIDC tokens to jobs, leases no scans or policy
// evaluations, caches nothing, and keeps no state of stacks: programs bring a
// backend of their own, by the variable PULUMI_BACKEND_URL of a deployment's
// settings.
//
// Two things are its own and not Pulumi's. The fields cmwaSteps and cmwaTimeout
// of a deployment request replace the compiled steps by any scripts. And a job's
// definition names its secret variables, in the field cmwaSecretVariables, since
// the variables themselves are plain strings.
package server
