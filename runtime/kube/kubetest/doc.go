// Package kubetest gives tests a namespace in the real Kubernetes cluster that
// testdata/toolchain/kube-up starts ([New]), with clients of two identities: the
// cluster's administrator, and a service account with exactly the Role that the
// agent's documentation grants.
//
// For what a cluster cannot be asked to do, it has an API server in memory ([API])
// that serves Pods, ConfigMaps and Secrets over HTTP with injected faults, and runs
// Pods ([Kubelet]) as processes ([Processes]) or as functions. Without a network
// ([NewAPIWithoutNetwork]), an outage of minutes takes no time.
//
// It will never use another cluster: it reads CMWA_TEST_KUBECONFIG only, not
// KUBECONFIG or ~/.kube/config, and refuses a kubeconfig that kube-up has not
// written. No production code imports it.
//
// It is a package of its own, apart from runtimetest, because runtimetest does
// not know how an executor works: the tests of the runner and of package cloud
// import runtimetest, and would otherwise be linked with client-go.
package kubetest
