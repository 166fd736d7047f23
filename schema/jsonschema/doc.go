// Package jsonschema translates CUE constraints to JSON Schema, draft 2020-12, as JSON
// that keeps its order. It translates one expression at a time. It does not depend on the
// keys and definitions that exist: its callers compose the schemas of mappings. It is a
// separate package because two callers need the same translation: schema for configuration
// files, and schema/podtemplate for Pods.
//
// It translates the syntax of CUE instead of using CUE's own encoder, which drops
// bounds and defaults, rejects open mappings, writes one number type as several
// alternatives, and gives definitions names that editors cannot follow. It supports the
// part of CUE that the files of this module use, and returns an error for everything
// else.
package jsonschema
