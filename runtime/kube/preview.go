package kube

import (
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
)

// exampleName stands for what each job has of its own.
const exampleName = "example"

// Preview returns the Pod that a job of a pool gets, as [Executor.Start] makes it.
// The name, the job and the agent are placeholders, and image is that of the job
// unless the configuration overrides it. It asks no cluster: equal arguments give
// equal documents. Of the options, Image and RunnerDirectory count.
func Preview(spec runtime.PoolSpec, image string, options Options) (patch.Document, error) {
	return previewOf(spec, exampleJob(spec, image), options)
}

// TemplateChanges returns what the template of a pool changes in the Pod of a job.
// Without a template there is no change.
func TemplateChanges(spec runtime.PoolSpec, options Options) ([]patch.Change, error) {
	plain := spec
	plain.Tuning.Place.Kubernetes.Template = nil
	return Changes(plain, spec, options)
}

// Changes returns what differs between the Pods of two versions of a pool. The
// labels and annotations by which an agent recognises the pool are left out: they
// follow from its identity.
func Changes(from, to runtime.PoolSpec, options Options) ([]patch.Change, error) {
	var documents [2]patch.Document
	for i, spec := range []runtime.PoolSpec{from, to} {
		job := exampleJob(spec, exampleName)
		job.Pool, job.PoolName, job.Identity = to.Key(), to.Name, to.Identity
		var err error
		if documents[i], err = previewOf(spec, job, options); err != nil {
			return nil, err
		}
	}
	return documents[0].Changes(documents[1]), nil
}

// exampleJob returns a job of a pool, with placeholders in place of what the
// service and the agent give each job.
func exampleJob(spec runtime.PoolSpec, image string) *runtime.Job {
	return &runtime.Job{
		ID: exampleName, Kind: runtime.Deployment, Subject: exampleName, Agent: exampleName,
		Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity, Tuning: spec.Tuning, Generation: 1,
		Definition: runtime.Definition{Image: runtime.Image{Reference: image}},
	}
}

// previewOf returns the Pod of a job, in the namespace of its pool and without what
// only the cluster reports.
func previewOf(spec runtime.PoolSpec, job *runtime.Job, options Options) (patch.Document, error) {
	settings := podSettings{image: options.Image, runnerDirectory: options.RunnerDirectory}
	pod, err := podOf(job, namePrefix+exampleName, settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = spec.Identity.Namespace
	return patch.NewDocument(pod, mainContainer, prepareContainer)
}
