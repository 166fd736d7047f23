package kube

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// nodesOf returns the node selector of a job's Pod: nodes that run Linux and, if the
// service names an architecture for the job's image, nodes of that. Every kubelet sets
// both labels. The image that the agent's configuration puts in place of the job's may
// be for another architecture.
func nodesOf(job *runtime.Job) map[string]string {
	nodes := map[string]string{corev1.LabelOSStable: "linux"}
	if name := architecture(job.Definition.Architecture); name != "" && job.Tuning.Place.OverrideImage == "" {
		nodes[corev1.LabelArchStable] = name
	}
	return nodes
}

// architecture returns the label value for an architecture, which may be named as the
// kernel does.
func architecture(name string) string {
	switch name {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return name
}

// yieldNodes removes labels of the agent from the node selector of a Pod whose template
// requires something of the same labels by an affinity.
func yieldNodes(spec *corev1.PodSpec, own map[string]string) {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, required := range term.MatchExpressions {
			maps.DeleteFunc(spec.NodeSelector, func(label, value string) bool {
				return label == required.Key && own[label] == value
			})
		}
	}
}
