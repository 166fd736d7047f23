// Package handoff carries the handoff of a job through a store that others can
// read: the agent seals it to a key that exists only inside the job's
// environment. The package knows keys, sealed text and the files on the
// environment's side. It will never know Kubernetes' API, nor what a handoff
// contains.
//
// It is a package of its own because both ends need it: the Kubernetes executor
// seals, workflow-runner makes the key and opens. workflow-runner is copied into
// every job and must not contain client-go, so sealing cannot be in runtime/kube.
// Package runtime is not the place either: it does not know how instances are
// made, and cryptography in it would be linked by everything.
//
// # Scheme
//
// Keys are X25519; sealing is HPKE in base mode (RFC 9180: DHKEM(X25519,
// HKDF-SHA256), HKDF-SHA256, AES-256-GCM) by Go's crypto/hpke. The sealed text
// is bound to the Pod, the job and the generation, so it opens nowhere else.
// The text is compressed before it is sealed, since all annotations of a Pod
// together may have 262,144 bytes, and a ConfigMap 1 MiB: a definition of 20 MB
// that compresses well passes. Nobody who could choose parts of the text sees the
// sealed length of many variants, so compression gives nothing away.
//
// A text can also be packed, which compresses it and hides nothing ([Pack],
// [ReceivePacked]): for clusters whose nodes do not refresh the files of a running
// Pod, where a key that is made in the Pod comes too late.
//
// # Files
//
// [Prepare] copies the program and writes the private key into a folder that
// every user may delete from, because the user of a job's image is not known.
// [Receive] reads and deletes the key before anything else runs, and then waits
// for the sealed text.
package handoff
