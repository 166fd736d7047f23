// Package jsonschema translates CUE constraints to JSON Schema, draft 2020-12, as JSON
// that keeps its order. It knows one expression at a time. It will never know which
// keys or definitions there are: a schema of keys is built by its callers, schema for
// configuration files and schema/podtemplate for Pods, and both need the same
// translation, which is why it is a package of its own.
//
// It translates the syntax of CUE instead of using CUE's own encoder, which drops
// bounds and defaults, refuses open mappings, makes alternatives of one and the same
// number type, and gives definitions names that editors cannot follow. It knows the
// part of CUE in which our files are written, and returns an error for everything
// else.
package jsonschema
