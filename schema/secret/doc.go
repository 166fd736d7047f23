// Package secret has a string type that never prints its value, and a function that opens
// regular files without blocking. It does not depend on what a secret is used for.
//
// It is a separate package because both schema and runtime have tokens, and neither may
// import the other. It imports no package of this module.
package secret
