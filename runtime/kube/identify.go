package kube

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// identifyLimit bounds the request for the agent's own Pod.
const identifyLimit = 15 * time.Second

// agentPod names the Pod that the agent runs in; zero if it runs in none.
type agentPod struct{ namespace, name string }

// agentPodOf returns the Pod that the agent runs in. The host name of a Pod is its
// name, unless its spec sets another or uses the host's network: then POD_NAME,
// which the Pod's spec sets from metadata.name, is needed.
func agentPodOf(lookup func(string) (string, bool), namespace string) agentPod {
	named, _ := lookup("POD_NAME")
	host, _ := lookup("HOSTNAME")
	if named == "" && host == "" {
		host, _ = os.Hostname()
	}
	return agentPod{namespace: namespace, name: cmp.Or(named, host)}
}

// Identify finds out to which Pod and controller the agent belongs, with one
// request. Executors that are opened afterwards adopt the Pods of agents of the same
// controller that no longer exist; without it, and outside of a cluster, the Pods
// of an agent are those with its id.
//
// It returns an error if the API server gives no answer, and the caller repeats the
// call. An answer that the agent's own Pod cannot be read is logged once, and is no
// error.
func (c *Cluster) Identify(ctx context.Context) error {
	if c.at == (agentPod{}) || c.selfNow().known() {
		return nil
	}

	// One request at a time: all pools start together.
	select {
	case c.identifying <- struct{}{}:
		defer func() { <-c.identifying }()
	case <-ctx.Done():
		return fmt.Errorf("read the agent's own Pod: %w", context.Cause(ctx))
	}
	if c.selfNow().known() {
		return nil
	}

	// Read the Pod.
	limited, cancel := context.WithTimeout(ctx, identifyLimit)
	defer cancel()
	pod, err := c.client.get(limited, c.at.namespace, c.at.name)
	switch {
	case err == nil:
		found := selfOf(pod)
		c.mu.Lock()
		c.self = found
		c.mu.Unlock()
		c.options.Log.Info("agent runs in a pod", "namespace", pod.Namespace, "agent_pod", pod.Name, "group", found.group)
		return nil
	case apierrors.IsForbidden(err) && !fromProxy(err):
		c.warnUnknown("grant get on pods in the agent's namespace, as the documented Role does, and restart the agent", err)
		return nil
	case absent(err):
		c.warnUnknown("set the variable POD_NAME from metadata.name in the agent's Pod, "+
			"because its host name is not its name", err)
		return nil
	}
	return fmt.Errorf("read the agent's own Pod %s/%s: %w", c.at.namespace, c.at.name, err)
}

// selfNow returns what the agent knows of its own Pod now.
func (c *Cluster) selfNow() self {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self
}

// warnUnknown logs once that the agent's own Pod is not known, what follows, and
// what to do. The caller holds c.identifying.
func (c *Cluster) warnUnknown(cure string, err error) {
	if c.warned {
		return
	}
	c.warned = true
	c.options.Log.Warn("cannot read the agent's own Pod: if it ends, its jobs go on, "+
		"but only an agent with the same state folder adopts them or removes their Pods; "+cure,
		"namespace", c.at.namespace, "agent_pod", c.at.name, "error", err)
}
