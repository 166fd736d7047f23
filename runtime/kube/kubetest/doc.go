// Package kubetest provides clusters for tests. No production code imports it.
//
// [New] returns a namespace in the real Kubernetes cluster that testdata/toolchain/kube-up
// starts. It has clients for two identities: the cluster's administrator, and a service
// account with exactly the documented Role of the agent. The package uses no other cluster:
// it reads only the kubeconfig in CMWA_TEST_KUBECONFIG, not KUBECONFIG or ~/.kube/config,
// and refuses a kubeconfig that kube-up has not written.
//
// [API] is an API server in memory, for faults that a real cluster cannot produce on
// request. It serves Pods, ConfigMaps, Secrets and events over HTTP. A [Kubelet] runs the
// Pods of an API as functions. [NewAPIWithoutNetwork] works in simulated time, so an outage
// of minutes takes no time.
//
// The package is separate from package runtimetest, because the tests of the runner and of
// package cloud import runtimetest and would otherwise be linked with client-go.
package kubetest
