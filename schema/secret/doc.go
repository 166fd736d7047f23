// Package secret keeps secrets out of what a program prints: it has a string type that never
// prints its value, and a function that masks the parts of a Pod template that may be secret.
// It also reads and writes the files that contain secrets. It does not depend on what a secret
// is used for.
//
// It is a separate package because both schema and runtime have tokens, and neither may
// import the other. It imports no package of this module.
//
// [Mask] is here because cmwa config masks the template of a file, and cmwa pod the Pod of a
// job: with two functions, one of the commands showed what the other one hid. It hides
// annotations, although cmwa pod | kubectl create --dry-run=server then sends marks to the
// webhooks of the cluster, because agents of monitoring systems and vaults read passwords from
// annotations. The exceptions are those without which the API server would refuse the Pod.
package secret
