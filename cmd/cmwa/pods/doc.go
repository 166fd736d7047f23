// Package pods knows which Pods a configuration, a Pod template or a manifest leads to,
// and what changes in them. It never asks a cluster, and knows no command line.
//
// It is a package because cmwa pod, plan, vet and doctor need the same answers, and
// cmd/cmwa itself holds flags and wiring only. It is beside cmd/cmwa and not in
// runtime/kube, because it reads configurations, which an executor must not know.
package pods
