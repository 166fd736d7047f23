// Package podtemplate checks Pod templates. A template is a strategic merge patch, which
// the agent applies to the Pod of a job. The package reports keys and values that a Pod
// must not have, templates that the API server or the merge would reject, and changes of
// parts of the Pod that belong to the agent. It must not depend on the agent's own
// configuration, and does not create Pods.
//
// It is a separate package because nothing in it depends on the configuration, and
// because it is large: the schema of a Pod is as large as the schema of the agent's file.
//
// pod.cue has the types of a Pod. The command podgen writes it from the OpenAPI
// document of Kubernetes. overlay.cue adds what that document leaves out:
// enumerations, formats and bounds. The tests of the module oracle compare the check
// with the validation of the API server.
//
// CUE checks single values. Go code checks keys, merge directives and rules that depend on
// several values, because CUE would report these mistakes without a position. CUE takes
// four times as long to compile all types as to compile the types that a typical template
// uses. Each check therefore compiles only the types that its template uses, in a CUE
// context that is discarded afterwards.
//
// [Definition] and [WriteCUE] export the types as JSON Schema and as CUE.
package podtemplate
