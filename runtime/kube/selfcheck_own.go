package kube

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

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
	case apierrors.IsForbidden(err):
		return unknown.WithCure("grant get on pods in that namespace, as the documented Role does")
	case apierrors.IsNotFound(err):
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
				return file == mount.MountPath || strings.HasPrefix(file, mount.MountPath+"/")
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
