// Package claims encodes the records of claimed jobs ([runtime.Record]) for objects that
// others can read: ConfigMaps and Secrets. It does not know the Kubernetes API.
//
// # Sealing
//
// Everyone who may get ConfigMaps of a namespace can read the text of a record, and an agent
// that replaces an agent that was killed must be able to open it. The static token of the pool
// is the only secret that both agents have and that readers of ConfigMaps do not have. The key
// is derived from this token (HKDF-SHA256), and the whole record is sealed with AES-256-GCM,
// bound to the name of its object. Without the token a record cannot be read, changed (its
// stage, for example), or stored under the name of another job. The service creates the token
// as a long random text, so the key cannot be found by trying tokens.
//
// A pool with OIDC credentials has no such token. Its records are not sealed, and may be
// stored in Secrets only. After a change of the pool's token, an agent that was started
// with the new token cannot open the records that were sealed with the old one.
package claims
