// Package records keeps the records of claimed jobs ([runtime.Record]) in ConfigMaps or Secrets, so
// that an agent that is killed loses no job. A [Store] is the journal of one pool. It sends its
// requests through the interface [Cluster] and does not know the Kubernetes API.
//
// # Sealing
//
// Everyone who may get ConfigMaps of a namespace can read the text of a record, and an agent
// that replaces an agent that was killed must be able to open it. The static token of the pool
// is the only secret that both agents have and that readers of ConfigMaps do not have. The key
// is derived from this token (HKDF-SHA256), and the whole record is sealed with AES-256-GCM,
// bound to the name of its object. Without the token a record cannot be read, forged, or stored
// under the name of another job. The service creates the token as a long random text, so the key
// cannot be found by trying tokens. The labels and the owner of an object are not sealed, and an
// earlier version of an object can be written back: see Edited records.
//
// A pool with OIDC credentials has no such token. Its records are not sealed, and may be
// stored in Secrets only. After a change of the pool's token, an agent that was started
// with the new token cannot open the records that were sealed with the old one.
//
// # Stages
//
// The record is the first object of a job, and is created before the agent fetches the definition.
// At the handoff, one update stores that the job may run, and makes the Pod the owner of the record.
// When the Pod is removed, the cluster removes the record too, even if no agent runs. A record
// without a Pod is swept after a day, or after a week if the job may have run.
//
// The report of the outcome is not stored. Whether an agent ends directly before or directly after
// this report, it leaves the same objects, so the next agent requests the outcome from the service
// in both cases. Progress is stored only together with the next stage: the log of the Pod has the
// later progress.
//
// The price is two requests for each job, the create and the update. Without the update, a record
// without a Pod would belong either to a job that has not run, or to a job whose Pod was deleted,
// and another start could run the job twice. If the record were the owner of the Pod, a job would
// need one request less at its end, but there would still be an update at the handoff, and the
// deletion of a ConfigMap would end a job.
//
// # Adoption
//
// An agent adopts the record of an agent that no longer exists with an update of the version that
// it read, so exactly one agent gets it. If the record names a Pod that exists, only the agent that
// has adopted the Pod adopts the record, so that one agent gets both. If the old agent still runs,
// its update at the handoff fails, and it gives up the job without a report.
//
// A job whose Pod has no handoff has not run, even if its record has the later stage, because only
// the old agent could send the handoff. There is one exception: if an object carries the handoff,
// the kubelet may have read it.
//
// # Edited records
//
// Everyone who may write ConfigMaps can delete a record, change its owner, or write back its first
// version, whose stage is claimed. A restore of the namespace from a backup does the same. None of
// this starts a job a second time:
//
//   - Before an agent uses a record of an earlier run or of another agent, it lists all Pods of
//     the job. If another agent has one, it leaves the record. If its own Pod may have the handoff,
//     the job may have run, regardless of the record's stage.
//   - Before it sends the handoff, an agent stores the next stage. If the record has changed or was
//     deleted, it lists the Pods again, and gives the job up if another agent has one.
//   - If the Pods of the job no longer exist, nothing in the cluster shows that the job has run.
//     Then the sealed time of the claim and the service protect the job: it is started only within
//     nine minutes of the claim, and only if the service accepts a heartbeat and does not report
//     that the job has ended.
//
// The list is not part of a normal start, which keeps its number of requests. An edit can still make
// the agent lose a job, which the service then ends: users who may write ConfigMaps in the namespace
// can stop jobs, and cannot repeat them.
package records
