// Package server is the service's side of the wire protocol: organizations, agent pools,
// stacks, deployments and their jobs, for agents, runners and users. With it,
// no Pulumi Cloud account is needed. It depends only on the protocol, and not on how an
// agent runs jobs.
//
// # Storage
//
// One directory contains everything: a SQLite database, the master key, and the first
// user's access token. Each transaction syncs the write-ahead log (synchronous=FULL), so
// a change that was confirmed to an agent or runner survives a power failure. This matters
// most for a claim, because a job that is claimed twice runs twice. A call that changes data
// costs one sync of the disk, and a job makes few such calls. A transaction took 0.02 ms
// with synchronous=NORMAL and 0.06 ms with FULL: the difference is not worth the risk.
// Each batch of log lines is one row, with all its lines
// in one blob.
//
// Tokens are stored as hashes. Settings that may be secret, the definitions of the jobs of
// deployments, and the secrets that a CLI has encrypted are encrypted with AES-256-GCM under a
// key of their stack. Their purpose is authenticated, so that a setting cannot be decrypted as a
// secret of a state. The definitions of leased work are encrypted under a key of the service. The
// master key encrypts these keys: see package keys. A start with another master key than
// that of the database is refused. The first byte of encrypted data is the version of its format.
//
// # Backups
//
// [Backup] reads the data directory itself, and not through the API: no token allows to read the master key. It opens
// a read transaction, links the objects to which that state refers, and copies the database within the same
// transaction. Therefore the copy and the links are of one moment, also when a checkpoint replaces an object
// afterwards. The archive contains the master key, because a backup without it is useless. Those who want the two in
// separate places keep the key outside of the data directory. [Restore] opens what it has unpacked with the code of
// the service before the directory gets its database.
//
// # Updates
//
// An update of a stack has a lease, whose token its client sends with each call, and unless it is a dry run it has the
// lock of the stack. Each write of a state checks the lease in the transaction that stores it, so a client that was
// paused cannot overwrite the state of its successor. A lease that is not renewed for five minutes is lost: the update
// fails, and the lock is free. All calls with a lost lease are refused with 403, because Pulumi's CLI stops for no
// other status.
//
// A state is an object (package objects), and a row that refers to it. The object is synced before the row. The row of
// a version exists from the start of its update: first with the object of the version before, then with that of the
// last checkpoint, whose object replaces the one before. The entries of a journal are rows. They are checked when they
// are stored, and become an object when the update ends (package state). Also an update that fails, is cancelled, or
// whose lease is lost makes a version, because its state describes what exists. Objects without a row, which crashes
// leave, are deleted after a day.
//
// TestKill of cmd/cmwa-cloud kills the service 100 times during 200 updates.
//
// # Several instances
//
// All that instances must agree on is in the database, so a call may go to any of them:
//
//   - The database refuses a second claim of a stack, a second lock of a stack, a second state of a version, and a
//     second batch of events or of a journal with the same number.
//   - A lease is checked in the transaction that it protects. An instance that was paused may write an object, but no
//     row refers to it.
//   - Heartbeats, the last calls of agents, and tokens are rows. An instance has in memory only what it can make again
//     or what may differ: keys of stacks, checks of journals, counts of failed logins, and when it has last stored a
//     call of an agent.
//   - The regular work, [Server.Run], is a duty with one holder (store.Duty). Its lease lasts at most 50 seconds, and
//     another instance continues after it. If no instance had the duty for longer than that, heartbeats may have been
//     lost: then no job fails for its silence before this gap.
//
// SQLite needs one machine, and on shared file systems two machines would damage the database. Therefore [Open] locks
// the directory, and several instances wait for a database server. TestOpenInstances, TestUpdateProperty and
// TestOpenProcesses use several instances with one directory.
//
// # Decisions
//
//   - A deployment without a pool is for the default pool of the organization, or for
//     its only pool. If there are several pools and no default, the deployment is refused. If
//     there is no pool, the deployment waits for the first one.
//   - Each pool claims deployments in the order of the queue, and each stack has at most
//     one running deployment: a unique column refuses a second one. Most polls find no job, so
//     a poll first reads, and does not wait for the changes of other calls.
//   - A step goes from not-started to running, and then to a final status. It starts only
//     after the success of the step before it. A retry of a status, or of a stored batch of
//     lines, is accepted. The status of the refusal is 409 for an invalid change of a step's
//     status and for lines of a step that is not running, and 400 for a gap between batches.
//   - A claimed deployment returns to the queue if for 35 seconds its agent neither fetched
//     the definition nor sent a heartbeat: the response to the poll was lost, or the agent has
//     crashed. No step of the job can have run. The token of the lost claim is deleted, so
//     that no step runs twice.
//   - A cancelled job fails at once, and so does a job without a heartbeat for longer
//     than the limit. From then on the calls of its runner are refused with 409, and the
//     job is never claimed again. There is one exception: lines of the step that a cancel has
//     interrupted are accepted, because they report how the step has ended. If a job has
//     ended by its steps, a late heartbeat is accepted.
//   - An agent may exchange an OIDC token for a pool token that expires, and a user for an access
//     token of the organization or of a user. Refresh tokens and tokens of teams are refused with
//     the OAuth errors unsupported_grant_type and invalid_request. The operator
//     configures the issuers whose tokens are accepted. For each issuer, the operator can
//     require claims, and can limit the tokens to one pool of the organization: see package
//     idtoken. An issuer that serves all customers of a public service is refused, unless a
//     required claim identifies one customer. Without an issuer, every exchange is denied
//     (403). The keys of issuers are read at the start and never fetched.
//   - A claimed deployment gets an OIDC token with the claims that Pulumi documents. Its issuer is the URL of the
//     service with /oidc, so a cloud provider that verifies it must reach that URL. The token expires with the
//     timeout of the job, after 24 hours without one, and after 25 hours at the latest. The key that signs it is
//     RS256, because Azure accepts no other, and is made at the first claim.
//   - Deployment settings that would have no effect are refused: see supportedSettings.
//   - A scan or policy evaluation is leased to one agent at a time. A lease that is not renewed
//     expires: from then on all calls of its holder and of its job are refused with 409, and
//     the next agent of the pool gets the work, as long as retries are left. Work that had started
//     waits for 70 seconds (Options.LeaseStop). In this time the runner of the expired lease
//     finds that its calls are refused, and stops. An expired lease is lost even if no
//     other agent has the work yet. The success of the last step completes the work in the same
//     transaction, so the work is never repeated. A failed step ends only the job: the holder
//     completes the lease with the result failed or retry.
//   - If a pool has running jobs, or if the settings of a stack refer to it, it is deleted
//     only with force=true. After that, the calls of its agents are refused, and their running
//     jobs continue. The leased work of the pool is cancelled.
//
// # Access
//
// Each route has an action, and the table access tells which kind of token allows which action, and
// whether everywhere, in its organization or on its stack. Everything else is refused: with 403
// for the wrong kind of token, and with 404 for a stack or organization that is not the
// token's, so that the response does not tell what exists. Users have no roles. The token of an
// organization has the rights of a member, or of an administrator, who also makes pools. Tokens
// that people make are listed with the time of their last use, which is written once a minute at
// most; the token of a job's programs ends with the job.
// After 20 calls with unknown tokens in a minute, further ones from the same address get 429;
// calls with valid tokens do not, because all clients behind a proxy have one address, nor do
// those of agents and runners.
//
// The web page (package page) is at / and has sessions of its own: a session is the hash of a cookie and belongs to the
// access token that opened it, so that it ends with this token. The API refuses sessions.
//
// # Stacks
//
//   - A stack with resources is deleted only with force=true, and no stack is deleted or renamed during an
//     update. If the job of a deployment deletes its own stack, such as with deleteAfterDestroy, the stack
//     and its history stay until five minutes after the deployment, so that its log can be read to the end.
//   - A renamed stack keeps its id, its key and its history. Only the newest state gets the new names. The
//     jobs of deployments contain the name, so none may wait or run.
//   - A list continues after a name and not at an offset, so that it is fast on every page.
//   - The description at /api/openapi/pulumi-spec.json is made from the routes. A call of a part of Pulumi
//     Cloud that is missing here gets a 404 with the name of this part.
//
// # Retention
//
// [Retention] limits the size of the database. From a log above its limit, batches in the
// middle are deleted: the beginning shows what ran, and the end shows why it failed. One row
// with the number of missing lines replaces these batches. Therefore offsets stay exact, a
// retry of missing lines is accepted, and readers get one line about the missing lines.
//
// Old deployments are deleted in small transactions. Free pages beyond a reserve of 4 MiB are
// returned to the file system (incremental vacuum). After a log of 20 MB with a limit of
// 1 MiB, the files of the database had 5 MB, most of it in the write-ahead log. In another
// test there were 2,000 deployments with 40 MB of logs, and the last 20 deployments were
// kept: the files had at most 8 MB.
//
// # Limits
//
// The steps of a job are complete scripts, so there is no deployment executor to
// download (404). The service caches nothing for jobs.
//
// # Extensions
//
// These are not part of Pulumi's API:
//
//   - The field cmwaSteps of a deployment request replaces the compiled steps with any
//     scripts, and cmwaTimeout sets the timeout of the job.
//   - The definition of a job lists its secret variables in cmwaSecretVariables,
//     because the variables themselves are plain strings.
//   - Deployments and steps have a cmwaStatus. After a cancel it is "cancelled", where Pulumi
//     has only failed and skipped. If the service ended a deployment before its steps ended,
//     the log ends with a header that gives the reason.
//   - Deployments have a cmwaAgent: the host and the process of the agent that claimed them.
//   - The 400 for lines at a wrong offset has the right offset in cmwaNextOffset.
//   - POST /api/orgs/{org}/agent-pools/{pool}/tokens makes another token for a pool.
//   - GET and POST /api/orgs/{org}/agent-pools/{pool}/activities, and below them /{id},
//     /{id}/logs and /{id}/cancel: the scans and policy evaluations of a pool. Their steps are
//     scripts.
//   - GET /api/capabilities lists "cmwa-leases": the service leases work. Agents send
//     cmwaKinds, the kinds that they can carry out, with POST .../worker/lease/acquire; the
//     response has the fields of a poll, and cmwaKind, cmwaLeaseID, cmwaLeaseToken and
//     cmwaLeaseSeconds. With that token they call POST .../worker/lease/{id}/begin, /renew
//     and /complete. The job itself uses the calls of deployments.
package server
