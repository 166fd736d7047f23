// Package podtemplate knows Pod templates: which keys and values a Pod may have, which
// templates the API server or the strategic merge rejects, and which parts of a Pod
// belong to the agent. It will never know the agent's own configuration, or how a Pod is
// created.
//
// It is a separate package because nothing in it depends on the configuration, and
// because it is large: the schema of a Pod is as large as the schema of the agent's file.
//
// pod.cue has the types of a Pod. The command podgen writes it from the OpenAPI
// document of Kubernetes. overlay.cue adds what that document leaves out:
// enumerations, formats and bounds. The tests of the module oracle compare the check
// with the validation of the API server.
//
// CUE checks single values. [Check] itself checks keys, merge directives and rules across
// values, because CUE would report these without a position. Compiling all types takes
// CUE four times as long as compiling those that a typical template uses, so each check
// compiles only these, in a context that is dropped afterwards.
//
// [Definition] and [WriteCUE] export the types as JSON Schema and as CUE.
package podtemplate
