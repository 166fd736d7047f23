package kube

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Document is a Pod as data of JSON: mappings, lists, text, whole numbers and true
// or false. Text that may be secret is a [secret.String]: it prints as a mark, and
// two of them are equal if they hold the same.
type Document map[string]any

// exampleName stands for what each job has of its own.
const exampleName = "example"

// Preview returns the Pod that a job of a pool gets, as [Executor.Start] makes it.
// The name, the job and the agent are placeholders, and image is that of the job
// unless the configuration overrides it. It asks no cluster: equal arguments give
// equal documents. Of the options, Image and RunnerDirectory count.
func Preview(spec runtime.PoolSpec, image string, options Options) (Document, error) {
	return previewOf(spec, exampleJob(spec, image), options)
}

// TemplateChanges returns what the template of a pool changes in the Pod of a job.
// Without a template there is no change.
func TemplateChanges(spec runtime.PoolSpec, options Options) ([]Change, error) {
	plain := spec
	plain.Tuning.Place.Kubernetes.Template = nil
	return Changes(plain, spec, options)
}

// Changes returns what differs between the Pods of two versions of a pool. The
// labels and annotations by which an agent recognises the pool are left out: they
// follow from its identity.
func Changes(from, to runtime.PoolSpec, options Options) ([]Change, error) {
	var documents [2]Document
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
func previewOf(spec runtime.PoolSpec, job *runtime.Job, options Options) (Document, error) {
	settings := podSettings{image: options.Image, runnerDirectory: options.RunnerDirectory}
	pod, err := podOf(job, namePrefix+exampleName, settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = spec.Identity.Namespace
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("write the Pod as JSON: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var data map[string]any
	if err := decoder.Decode(&data); err != nil {
		return nil, fmt.Errorf("read the Pod as JSON: %w", err)
	}
	delete(data, "status")
	return masked(data).(map[string]any), nil
}

// masked returns data with [secret.String] in place of what may be secret: values
// of environment variables, commands of containers other than the agent's, and text
// that looks like a token. These are the rules of cmwa config. Numbers become int64,
// or float64 if they are not whole.
func masked(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return maskedFields(value)
	case []any:
		for i := range value {
			value[i] = masked(value[i])
		}
		return value
	case string:
		if secret.ContainsToken(value) {
			return secret.New(value)
		}
		return value
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		number, _ := value.Float64() // JSON was decoded, so it is one
		return number
	default:
		return value
	}
}

// maskedFields is masked for a mapping.
func maskedFields(fields map[string]any) map[string]any {
	name, named := fields["name"]
	own := name == mainContainer || name == prepareContainer
	for key, value := range fields {
		text, isText := value.(string)
		list, isList := value.([]any)
		switch {
		case isText && named && key == "value":
			fields[key] = secret.New(text)
		case isList && !own && (key == "command" || key == "args"):
			for i := range list {
				text, _ := list[i].(string)
				list[i] = secret.New(text)
			}
		default:
			fields[key] = masked(value)
		}
	}
	return fields
}
