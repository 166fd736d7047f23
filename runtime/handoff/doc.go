// Package handoff passes the handoff of a job, which contains its definition and tokens,
// through annotations or ConfigMaps, which others can read and write. The agent seals the
// handoff to a key that exists only inside the job's instance, and signs it. The package
// implements the keys, the sealed text, and the files in the instance. It does not know the Kubernetes API or the
// contents of a handoff.
//
// The Kubernetes executor seals, and workflow-runner creates the key and opens. Both need
// this package: workflow-runner is copied into every job and must not contain client-go, so
// sealing cannot be in runtime/kube. Nor can it be in package runtime: every program that
// imports runtime would then link the cryptography.
//
// # Scheme
//
// Keys are X25519; sealing is HPKE in base mode (RFC 9180: DHKEM(X25519, HKDF-SHA256),
// HKDF-SHA256, AES-256-GCM) by Go's crypto/hpke. The sealed text is bound to the Pod, the
// job and the generation, so no other recipient can open it. Anyone can seal a text in this mode,
// so the sealed text is signed with Ed25519 (a [Sender]; the signature is before the text). The
// runner checks the signature before it opens or decompresses anything. Its arguments contain the
// sender's public key. HPKE's own mode with a sender is not in crypto/hpke. The text is compressed before
// it is sealed, because all annotations of a Pod together may have 262,144 bytes, and a
// ConfigMap 1 MiB: the largest definition, 8 MiB, fits if it compresses well. The compressed length
// reveals little about the text, because an attacker who can choose parts of the text does
// not see the sealed lengths of many variants.
//
// A text can also be packed, which compresses and signs it without encryption ([Sender.Pack],
// [ReceivePacked]). Packing is for clusters whose nodes do not refresh the files of a
// running Pod: on these nodes, a text that is sealed after the Pod has created its key
// would never arrive.
//
// # Files
//
// [Prepare] copies the program and writes the private key into a directory that
// every user may delete from, because the user of a job's image is not known.
// [Receive] reads and deletes the key before anything else runs, and then waits
// for the sealed text.
package handoff
