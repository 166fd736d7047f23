// Package cloud knows the wire between agent, runner and service: URLs, JSON,
// tokens, retries, and when the service may be polled again. It satisfies what
// package runtime asks for. It will never know how a job is run.
//
// The shapes are those of Pulumi Cloud's public REST documentation and of its
// public repositories, and where these are silent, of agents observed from
// outside. Whatever is read is read leniently: unknown fields are ignored,
// missing ones and nulls accepted, since no two services agree to the letter.
//
// # Wrong answers
//
// Proxies, ingress controllers and captive portals answer in the service's place,
// and a running deployment must survive that. Three rules follow:
//
//   - A call about a job is retried after every failure, until its context ends. A
//     refusal is an error only when it is repeated or confirmed: see refusals.
//   - A success has an empty body or a JSON one. A web page is a failure.
//   - No call follows a redirect, so a token stays with the configured address.
//
// The poll is the exception to the first rule, since an answer that is lost may be
// a job: it is made once, on a connection of its own, and never within one call again.
//
// # The schedule of polls
//
// One type, schedule, owns the polling interval, Retry-After, the retries of a poll
// that failed, and the circuit breaker; each answer to [Client.Claim] and
// [Client.Tune] has the time of the next poll that follows from them. It also logs
// polls: whether a failure is new, a repetition or the one that opens the breaker
// is known only there.
package cloud
