// Package cloud is the client of the wire protocol between agent, runner and service:
// URLs, JSON, tokens, retries, and the time of the next poll. It implements
// [runtime.Cloud], and does not depend on how jobs are run.
//
// The protocol follows Pulumi Cloud's public REST documentation and public repositories.
// Details that these omit were observed in the traffic of Pulumi's agents. Decoding is
// lenient, because services differ in details: unknown fields are ignored, and missing
// fields and nulls are accepted.
//
// # Wrong answers
//
// Proxies, ingress controllers and captive portals may answer in place of the service.
// Running deployments must survive that:
//
//   - A call of [Jobs] is retried after every failure, up to RetryCount times or until its
//     context ends. A refusal is an error only when it is repeated or confirmed: see
//     refusals. If the service refuses a batch of lines as too large, the call fails at
//     once, so that the caller can split the batch.
//   - The body of a success is empty or JSON. A web page is a failure.
//   - No call follows a redirect, so a token is sent only to the configured address.
//
// [Client.Claim] sends one poll on a new connection and does not retry it, because a lost
// response may have been a job. [Client.JobStatus] does not retry its calls either. There is
// one exception for both: if the service rejects a token from an OIDC exchange, the request
// is made once more with a new token.
//
// # Limits
//
// A service may be hostile, and so may a user who queues deployments there. Every response has a
// limit. A definition has at most 8 MiB, 10,000 steps and 10,000 variables, and [ReadDefinition] decodes only
// what the agent needs. One attempt to fetch a definition allocates at most 64 MiB, measured with
// hostile definitions: 16 MiB.
//
// # Leases
//
// Scans and policy evaluations are leased with an extension of cmwa-cloud (leases.go). A
// service gets calls about leases only if its public capabilities contain this extension.
// Another service may answer with a lease in a form that the agent does not know. The agent
// cannot carry out such a lease, and until it expires, no other agent gets the work. With
// leased_work: always, the capabilities are not checked.
//
// # The schedule of polls
//
// One type, schedule, combines the polling interval, Retry-After, the retries of a failed
// poll, and the circuit breaker. Each result of [Client.Claim] and [Client.Tune] has the
// time of the next poll. The schedule also logs polls, because only it can
// distinguish a new failure, a failed retry, and a failure that opens the breaker.
//
// The breaker is a counter and a time. A circuit breaker of a library (sony/gobreaker) keeps
// the timeout that it was made with, and a reload has to change that of an open breaker.
package cloud
