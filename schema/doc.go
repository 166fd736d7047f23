// Package schema defines and loads the agent's configuration: where the file is, which keys
// and values it may have, which settings result from it, and how a mistake in it is
// explained. The package does not depend on how a configuration is used: it has no code for
// services, engines or running pools.
//
// schema.cue is the single source: it has the constraint, the variable, the secrecy,
// the reload class and the documentation of every key, and [Fields] returns them.
// fieldtable.go is generated from it, because a load would spend a third of its time on
// reading the fields from CUE.
// defaults.cue is separate, for the reason at the head of schema.cue.
//
// Sub-packages contain what does not depend on the agent's keys. schema imports the first
// four of them:
//
//	position     YAML with positions, and problems: for configurations and Pod templates
//	podtemplate  the check of Pod templates, a schema as large as that of the agent
//	jsonschema   the translation of CUE constraints to JSON Schema, for both schemas
//	secret       a string that is never printed, and the reading of regular files
//	report       problems as text, JSON, SARIF and annotations of GitHub
//	effective    the settings of a loaded configuration as a file
//
// The result of [Load] depends only on its argument, the [Source], and on the files that it
// reads through [Source].ReadFile. Load works in this order:
//
//  1. Read YAML (position.Parse).
//  2. Remove unknown keys and replace old names (names.go).
//  3. Apply the variables, which override the file (env.go).
//  4. Check constraints and remove the values that violate one (constraints.go).
//  5. Fill in defaults, decode (config.go, pools.go).
//  6. Check the rules across keys, and read the files that keys name (rules.go,
//     credentials.go, paths.go, files.go, pools.go).
//
// Load reports all problems at once, each once, in the order of the file. It omits the
// problems after the first thousand.
//
// CUE checks constraints, but its messages are not used: they print values, tokens
// included, and one line for each choice of an enumeration. Only the path of a failure
// is taken from CUE; the message is made from the schema. A message quotes a value of a
// file or a variable only if the value cannot be a secret: a number, a duration, a choice
// of the schema, or a path without a part that looks like one.
//
// CUE evaluates one key at a time, and equal values of one key once. To unify whole pools
// would cost ten times as much, nearly all of it for keys that the pools do not set. So a
// constraint in schema.cue concerns one key, and rules across keys are in Go. Every load
// has its own CUE context, because the memory of a context only grows. No CUE value is used
// after the load.
package schema
