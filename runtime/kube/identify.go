package kube

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// agentPod identifies the agent's own Pod; zero if the agent runs in no Pod.
type agentPod struct{ namespace, name string }

// agentPodOf returns the agent's own Pod. The host name of a Pod is its name, unless its
// spec sets another one or uses the host's network: then the spec must set POD_NAME from
// metadata.name.
func agentPodOf(lookup func(string) (string, bool), namespace string) agentPod {
	podName, _ := lookup("POD_NAME")
	host, _ := lookup("HOSTNAME")
	if podName == "" && host == "" {
		host, _ = os.Hostname()
	}
	return agentPod{namespace: namespace, name: cmp.Or(podName, host)}
}

// Identify finds the agent's own Pod and its controller, with one request. Executors that
// are created afterwards adopt the Pods of agents that have the same controller and no
// longer exist. If the agent's own Pod is not known, or the agent runs outside of a
// cluster, it finds the Pods of its jobs by its id.
//
// If the API server refuses the request (403) or does not find the Pod (404), Identify logs
// one warning and returns nil. It first retries a refused request for refusalLimit, because
// Pods that are created without an owner are never adopted. For any other failure, such as
// an API server that does not answer, it returns an error, and the caller retries.
func (c *Cluster) Identify(ctx context.Context) error {
	if c.agentPod == (agentPod{}) || c.currentSelf().known() {
		return nil
	}

	// Send one request at a time: all pools start together.
	select {
	case c.identifying <- struct{}{}:
		defer func() { <-c.identifying }()
	case <-ctx.Done():
		return fmt.Errorf("read the agent's own Pod: %w", context.Cause(ctx))
	}
	if c.currentSelf().known() {
		return nil
	}
	pod, err := c.readOwnPod(ctx)
	switch {
	case err == nil:
		own := selfOf(pod, c.homeID)
		c.mu.Lock()
		c.self = own
		c.mu.Unlock()
		c.options.Log.Info("agent pod identified", "namespace", pod.Namespace, "agent_pod", pod.Name, "group",
			own.group, "image", own.image)
		if c.ignoresVariable(own) {
			c.options.Log.Warn("PULUMI_AGENT_IMAGE has no effect, pods copy the runner from the agent's image",
				"value", c.options.Image, "agent_image", own.image, "hint", variableHint)
		}
		return nil
	case isForbidden(err):
		c.warnOwnPod("grant get on pods in the agent's namespace, as the documented Role does, and restart the agent",
			err)
		return nil
	case isNotFound(err):
		c.warnOwnPod("set the variable POD_NAME from metadata.name in the agent's Pod, "+
			"because its host name is not its name", err)
		return nil
	}
	return fmt.Errorf("read the agent's own Pod %s/%s: %w", c.agentPod.namespace, c.agentPod.name, err)
}

// readOwnPod gets the agent's own Pod. It retries a refused request for refusalLimit,
// unless the warning was already logged. The caller holds c.identifying.
func (c *Cluster) readOwnPod(ctx context.Context) (*corev1.Pod, error) {
	retries := retryPolicy{refusalLimit: refusalLimit}
	for {
		callCtx, cancel := context.WithTimeout(ctx, identifyLimit)
		pod, err := c.home.get(callCtx, c.agentPod.namespace, c.agentPod.name)
		cancel()
		switch {
		case !isForbidden(err), c.ownPodWarned, !retries.allows(err):
			return pod, err
		case !runtime.Sleep(ctx, nil, identifyRetry):
			return nil, context.Cause(ctx)
		}
	}
}

func (c *Cluster) currentSelf() self {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self
}

// warnOwnPod logs once that the agent's own Pod cannot be read, with the effect and the
// hint. The caller holds c.identifying.
func (c *Cluster) warnOwnPod(hint string, err error) {
	if c.ownPodWarned {
		return
	}
	c.ownPodWarned = true
	c.options.Log.Warn("cannot read agent pod", "namespace", c.agentPod.namespace, "agent_pod", c.agentPod.name,
		"error", err, "effect", "only an agent with the same state directory adopts the jobs of this agent, "+
			"or removes their pods, after this pod ends", "hint", hint)
}

// SelfCheckOwnPod returns the check of the agent's own Pod. It returns false if the agent
// runs in no Pod, or in a Pod of another cluster. Grace is the longest shutdown of the
// agent; files are the absolute paths of its configuration.
func SelfCheckOwnPod(
	options Options, grace time.Duration, files []string,
) (check selfcheck.Check, inside bool) {
	cluster, err := New(options)
	if err != nil || cluster.agentPod == (agentPod{}) {
		return check, false
	}
	return selfcheck.Check{Name: "kubernetes-agent-pod", Run: func(ctx context.Context) selfcheck.Result {
		return cluster.checkOwnPod(ctx, grace, files)
	}}, true
}

// checkOwnPod gets and evaluates the agent's own Pod. If the agent cannot read this Pod, no
// other agent adopts its jobs.
func (c *Cluster) checkOwnPod(ctx context.Context, grace time.Duration, files []string) selfcheck.Result {
	pod, err := c.home.get(ctx, c.agentPod.namespace, c.agentPod.name)
	if err == nil {
		return evaluateOwnPod(pod, grace, files)
	}
	unknown := selfcheck.Warned("cannot read the agent's own Pod %s in namespace %s: "+
		"when it ends, no other agent adopts its jobs: %s",
		c.agentPod.name, c.agentPod.namespace, tail(err.Error()))
	switch {
	case isForbidden(err):
		return unknown.WithHint("grant get on pods in that namespace, as the documented Role does")
	case isNotFound(err):
		return unknown.WithHint("set the variable POD_NAME from metadata.name in the agent's Pod")
	}
	return unknown.WithHint("see the result of %s", apiCheck)
}

// evaluateOwnPod checks the grace period and the mounts of the agent's own Pod.
func evaluateOwnPod(pod *corev1.Pod, grace time.Duration, files []string) selfcheck.Result {
	var problems, hints []string
	needed := int64(math.Ceil(grace.Seconds()))
	if given := pod.Spec.TerminationGracePeriodSeconds; given != nil && *given < needed {
		problems = append(problems, fmt.Sprintf("terminationGracePeriodSeconds is %d, "+
			"but the agent may need %d to end while jobs run: otherwise the next agent adopts them", *given, needed))
		hints = append(hints, fmt.Sprintf("set it to %d, or shorten shutdown_timeout", needed))
	}

	for _, container := range pod.Spec.Containers {
		for _, mount := range container.VolumeMounts {
			within := func(file string) bool {
				at := path.Clean(mount.MountPath)
				return file == at || strings.HasPrefix(file, at+"/")
			}
			if (mount.SubPath != "" || mount.SubPathExpr != "") && slices.ContainsFunc(files, within) {
				problems = append(problems, mount.MountPath+
					" is mounted with subPath: the agent cannot detect changes of it")
				hints = append(hints, "mount the directory of "+mount.MountPath+" without subPath")
			}
		}
	}
	if len(problems) > 0 {
		return selfcheck.Warned("Pod %s: %s", pod.Name, strings.Join(problems, "; ")).
			WithHint("%s", strings.Join(hints, "; "))
	}
	return selfcheck.Passed("Pod %s has a sufficient grace period, "+
		"and the agent can detect changes of its configuration", pod.Name)
}
