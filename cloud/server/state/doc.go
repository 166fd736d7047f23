// Package state computes with the state of a stack: a deployment, in the JSON format of Pulumi's
// apitype.UntypedDeployment. All its functions are pure: they read no file, no clock and no
// database, and change none of their arguments.
//
//   - [Decode], [Deployment.Encode] and [Empty]: a deployment as bytes and as a value.
//   - [Deployment.Resources], [Deployment.Outputs]: what a page shows, without secrets.
//   - [Entries], [Check], [Journal]: the journal protocol, version 1. An update sends the changes
//     that it makes instead of whole deployments. A Check refuses an entry before it is stored,
//     a Journal applies the stored entries.
//   - [Rename]: a stack or its project has a new name.
//   - [RewriteProvider]: the secrets provider of a stack under the URL of a request.
//
// # Bytes, not types
//
// A deployment consists of slices of the JSON text, and this package decodes only the fields that
// it needs. So fields that it does not know, the order of fields and the form of numbers stay as
// the client wrote them; white space between fields does not. The types of Pulumi's apitype would
// drop unknown fields. Importing apitype would also bring gRPC and OpenTelemetry into the service.
// The module testdata/journal compares this package with Pulumi's own library.
//
// encoding/json checks the text and decodes fields. But it would scan and copy the text again for each level of lists
// and objects, so json.go finds the ends of values itself. The package encoding/json/jsontext needs a GOEXPERIMENT in
// Go 1.26.
//
// A state of 50 MB takes its own size and about a kilobyte for each resource.
//
// # Differences from Pulumi's library
//
// An entry must fit the entries before it. Pulumi's JournalReplayer ignores an entry of an unknown
// kind, panics at an index that is out of range, and removes the first new resource if an entry
// refers to an operation that made no resource. Here all of them are errors. A journal that was
// accepted always gives a deployment: if two resources claim the same alias, or the provider of a
// resource is no reference, then these references stay as they are.
//
// Features of the base that do not follow from its resources, such as byteString, stay.
// The secrets provider stays if a new base has none, because new resources are encrypted with it.
package state
