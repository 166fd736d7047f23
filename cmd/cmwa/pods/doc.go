// Package pods computes the Pods that jobs get with a configuration, a Pod template or a
// manifest, and how these Pods change. It uses no cluster, and does not know the command
// line.
//
// It is a separate package because cmwa pod, plan, vet and doctor need the same results,
// and cmd/cmwa contains only flags and wiring. It is not in runtime/kube, because it reads
// configurations, which an executor must not know.
package pods
