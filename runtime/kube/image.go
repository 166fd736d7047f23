package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// agentContainer is the name of the agent's container in the installations of this project and of
// Pulumi's own agent.
const agentContainer = "agent"

// imageOf returns the image of the agent in its own Pod. It is empty if the Pod has several containers
// and none is called "agent".
func imageOf(pod *corev1.Pod) string {
	containers := pod.Spec.Containers
	if len(containers) == 1 {
		return containers[0].Image
	}
	if i := slices.IndexFunc(containers, hasName(agentContainer)); i >= 0 {
		return containers[i].Image
	}
	return ""
}

// errNoImage is returned if no image is known from which Pods can copy the runner.
var errNoImage = errors.New("the image of the agent's own Pod is not known, so Pods have no image to copy the runner " +
	"from: set kubernetes.image to an image of this agent's release")

// runnerImage returns the image from which a Pod copies the runner: kubernetes.image, or otherwise the image of
// the agent's own Pod, or otherwise that of the variable PULUMI_AGENT_IMAGE.
func (s podSettings) runnerImage(place runtime.Kubernetes) (string, error) {
	image := cmp.Or(place.Image, s.self.image, s.image)
	if image == "" {
		return "", errNoImage
	}
	return image, nil
}

const (
	imageVariable = "PULUMI_AGENT_IMAGE"
	variableHint  = "remove the variable; to use another image of the agent's release, set kubernetes.image, " +
		"or the variable PULUMI_AGENT_KUBERNETES_IMAGE"
)

// ignoresVariable reports whether PULUMI_AGENT_IMAGE names another image than the agent's own Pod.
func (c *Cluster) ignoresVariable(own self) bool {
	return c.options.Image != "" && own.image != "" && c.options.Image != own.image
}

// checkRunner checks that an image is known from which Pods can copy the runner. A later check uses the
// agent's own Pod, which checkRunner gets.
func (c *selfChecker) checkRunner(ctx context.Context, e *Executor) selfcheck.Result {
	if at := e.cluster.agentPod; at != (agentPod{}) {
		if pod, err := e.cluster.home.get(ctx, at.namespace, at.name); err == nil {
			e.self = selfOf(pod, e.cluster.homeID)
		}
	}
	place := c.spec.Tuning.Instance.Kubernetes
	image, err := e.podSettings().runnerImage(place)
	source := "kubernetes.image"
	switch {
	case err != nil:
		return selfcheck.Error(err, selfcheck.Result{})
	case place.Image != "":
	case e.cluster.ignoresVariable(e.self):
		return selfcheck.Warned("%s is %s, which has no effect: Pods copy the runner from %s, the image of the "+
			"agent's own Pod", imageVariable, e.cluster.options.Image, image).WithHint("%s", variableHint)
	case e.self.image != "":
		source = "the image of the agent's own Pod"
	default:
		source = imageVariable
	}
	return selfcheck.Passed("Pods copy the runner from %s (%s)", image, source)
}
