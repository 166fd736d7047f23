// Package patch knows strategic merge patches of Pods: how one is merged, and what
// differs between two Pods. It never knows which parts of a Pod an agent needs, and
// asks no cluster.
//
// It is a package of its own because nothing in it depends on how a job is run.
package patch
