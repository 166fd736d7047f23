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
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	identifyLimit = 15 * time.Second // of one request for the agent's own Pod
	identifyRetry = 2 * time.Second  // after a request that was refused
)

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
// error. The first refusal is believed when it has lasted for refusalLimit, because
// what starts without an owner is never adopted.
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
	pod, err := c.ownPod(ctx)
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

// ownPod reads the agent's own Pod. A refusal is not believed at once, unless one was
// before. The caller holds c.identifying.
func (c *Cluster) ownPod(ctx context.Context) (*corev1.Pod, error) {
	refusals := doubt{limit: refusalLimit}
	for {
		limited, cancel := context.WithTimeout(ctx, identifyLimit)
		pod, err := c.client.get(limited, c.at.namespace, c.at.name)
		cancel()
		refused := apierrors.IsForbidden(err) && !fromProxy(err)
		switch {
		case !refused, c.warned, !refusals.about(err):
			return pod, err
		case !pause(ctx, identifyRetry):
			return nil, context.Cause(ctx)
		}
	}
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

// SelfCheckOwnPod returns the check of the Pod that the agent runs in, or false if it
// runs in none, or in one of another cluster. Grace is the time that the agent may need
// to end; files are those of its configuration, as absolute paths.
func SelfCheckOwnPod(
	options Options, grace time.Duration, files []string,
) (check runtime.SelfCheck, inside bool) {
	cluster, err := New(options)
	if err != nil || cluster.at == (agentPod{}) {
		return check, false
	}
	return runtime.SelfCheck{Name: "kubernetes-agent-pod", Run: func(ctx context.Context) runtime.CheckResult {
		return cluster.checkOwnPod(ctx, grace, files)
	}}, true
}

// checkOwnPod reads the agent's own Pod, without which no other agent adopts its jobs.
func (c *Cluster) checkOwnPod(ctx context.Context, grace time.Duration, files []string) runtime.CheckResult {
	pod, err := c.client.get(ctx, c.at.namespace, c.at.name)
	if err == nil {
		return judgeOwnPod(pod, grace, files)
	}
	unknown := runtime.CheckWarned("cannot read the agent's own Pod %s in namespace %s, "+
		"so that no other agent adopts its jobs when it ends: %s", c.at.name, c.at.namespace, shortened(err.Error()))
	switch {
	case apierrors.IsForbidden(err) && !fromProxy(err):
		return unknown.WithCure("grant get on pods in that namespace, as the documented Role does")
	case absent(err):
		return unknown.WithCure("set the variable POD_NAME from metadata.name in the agent's Pod")
	}
	return unknown.WithCure("see the check %s", apiCheck)
}

// judgeOwnPod judges the Pod of the agent.
func judgeOwnPod(pod *corev1.Pod, grace time.Duration, files []string) runtime.CheckResult {
	var problems, cures []string
	needed := int64(math.Ceil(grace.Seconds()))
	if given := pod.Spec.TerminationGracePeriodSeconds; given != nil && *given < needed {
		problems = append(problems, fmt.Sprintf("terminationGracePeriodSeconds is %d, "+
			"and the agent may need %d to end while jobs run", *given, needed))
		cures = append(cures, fmt.Sprintf("set it to %d, or shorten shutdown_timeout", needed))
	}
	for _, container := range pod.Spec.Containers {
		for _, mount := range container.VolumeMounts {
			within := func(file string) bool {
				at := path.Clean(mount.MountPath)
				return file == at || strings.HasPrefix(file, at+"/")
			}
			if (mount.SubPath != "" || mount.SubPathExpr != "") && slices.ContainsFunc(files, within) {
				problems = append(problems, mount.MountPath+
					" is mounted with subPath, so that the agent sees no change of it")
				cures = append(cures, "mount the folder of "+mount.MountPath+" without subPath")
			}
		}
	}
	if len(problems) > 0 {
		return runtime.CheckWarned("Pod %s: %s", pod.Name, strings.Join(problems, "; ")).
			WithCure("%s", strings.Join(cures, "; "))
	}
	return runtime.CheckPassed("Pod %s gives the agent time to end, and lets it see changes of its configuration",
		pod.Name)
}
