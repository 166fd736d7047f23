// Package cloud knows the wire between agent, runner and service: URLs, JSON,
// tokens, repetition and the circuit breaker. It satisfies what package runtime
// asks for. It will never know how a job is run.
//
// The shapes are those of Pulumi Cloud's public REST documentation and of its
// public repositories, and where these are silent, of agents observed from
// outside. Whatever is read is read leniently: unknown fields are ignored,
// missing ones and nulls accepted, since no two services agree to the letter.
package cloud
