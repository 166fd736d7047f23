package kube

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// SelfCheckOwnPod returns the check of the Pod that the agent runs in, or false
// outside of one. Grace is the time that the agent may need to end; files are those
// of its configuration.
func SelfCheckOwnPod(options Options, grace int64, files []string) (check runtime.SelfCheck, inside bool) {
	if _, err := os.Stat(namespaceFile); err != nil {
		return check, false
	}
	return runtime.SelfCheck{Name: "kubernetes-agent-pod", Run: func(ctx context.Context) runtime.CheckResult {
		cluster, err := New(options)
		if err != nil {
			return runtime.CheckError(err, runtime.CheckResult{})
		}
		name, err := os.Hostname()
		if err != nil {
			return runtime.CheckResult{Level: runtime.CheckSkipped, Message: err.Error()}
		}
		pod, err := cluster.client.get(ctx, cluster.namespace, name)
		if err != nil {
			return runtime.CheckResult{
				Level: runtime.CheckSkipped, Message: fmt.Sprintf("cannot read the agent's own Pod %s: %s", name, shortened(err.Error())),
			}
		}
		return judgeOwnPod(pod, grace, files)
	}}, true
}

// judgeOwnPod judges the Pod of the agent.
func judgeOwnPod(pod *corev1.Pod, grace int64, files []string) runtime.CheckResult {
	var problems, cures []string
	if given := pod.Spec.TerminationGracePeriodSeconds; given != nil && *given < grace {
		problems = append(problems, fmt.Sprintf("terminationGracePeriodSeconds is %d, and the agent may need %d to end with jobs that run", *given, grace))
		cures = append(cures, fmt.Sprintf("set it to %d, or shorten shutdown_timeout", grace))
	}
	for _, container := range pod.Spec.Containers {
		for _, mount := range container.VolumeMounts {
			within := func(file string) bool { return file == mount.MountPath || strings.HasPrefix(file, mount.MountPath+"/") }
			if (mount.SubPath != "" || mount.SubPathExpr != "") && slices.ContainsFunc(files, within) {
				problems = append(problems, mount.MountPath+" is mounted with subPath, so that a change of it never reaches the agent")
				cures = append(cures, "mount the folder of "+mount.MountPath+" without subPath")
			}
		}
	}
	if len(problems) == 0 {
		return runtime.CheckPassed("Pod %s gives the agent time to end, and mounts its configuration so that changes are seen", pod.Name)
	}
	return runtime.CheckResult{
		Level: runtime.CheckWarning, Message: "Pod " + pod.Name + ": " + strings.Join(problems, "; "), Cure: strings.Join(cures, "; "),
	}
}
