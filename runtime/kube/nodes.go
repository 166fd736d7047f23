package kube

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// nodeSelectorOf returns the node selector of a job's Pod: nodes that run Linux and, if the
// service names an architecture for the job's image, have this architecture. Every kubelet
// sets both labels. An image that overrides the job's may have another architecture.
func nodeSelectorOf(job *runtime.Job) map[string]string {
	nodes := map[string]string{corev1.LabelOSStable: "linux"}
	architecture := runtime.GoArchitecture(job.Definition.Architecture)
	if architecture != "" && job.Tuning.Instance.OverrideImage == "" {
		nodes[corev1.LabelArchStable] = architecture
	}
	return nodes
}

// yieldToAffinity removes entries from a Pod's node selector. Own are the entries that the
// agent has set. Such an entry is removed if the required node affinity of the template has
// an expression for its label: then the template decides.
func yieldToAffinity(spec *corev1.PodSpec, own map[string]string) {
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
