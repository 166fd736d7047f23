// Package secret knows one thing: a string that must not be shown.
//
// It will never know what the string is for, where it came from or how it is
// kept. It stands apart from schema and runtime, where a reader may look for
// it first, because both vocabularies carry tokens and neither may import the
// other; two copies of a type whose whole worth is that it has no gap would be
// two chances of a gap.
package secret
