// Package patch merges strategic merge patches into Pods, and compares two Pods. It does
// not know which parts of a Pod an agent needs, and uses no cluster.
//
// It is a separate package because it does not depend on how a job is run.
package patch
