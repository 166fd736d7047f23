// Package secret has a string that cannot be printed, and the one function that
// reads a file from outside. It does not know what a secret is for.
//
// Both schema and runtime carry tokens, and neither may import the other. So this
// is a package without imports from this module, which every other may import.
package secret
