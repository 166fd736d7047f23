// Package schema knows where the configuration is, what it may say, what it
// says, and how to say what is wrong with it. It will never know what is done
// with a configuration: no service, no engine, no pool.
//
// schema.cue is the single source: constraints, variables, secrecy, reload
// classes and documentation of every key stand there once, and [Fields] hands
// them out. defaults.cue stands apart, for a reason told in schema.cue.
//
// [Load] is a function of values. It works in this order: syntax; unknown and
// old names; the environment over the file, each value parsed under its
// variable's name; constraints; defaults; rules across keys. All problems are
// reported at once, each once, in the order of the file.
//
// CUE judges and Go speaks. CUE's own messages print values, tokens included,
// and one line per choice of an enumeration, so only the path of a failure is
// taken from them; the sentence is made from the schema. For the same reason no
// message quotes what a file or a variable says: it names the place, and what to
// write instead. CUE is asked key by key, and about equal values of one key once:
// to unify whole pools costs ten times as much, nearly all of it for keys that they
// do not set. So a constraint in schema.cue is about one key; what is about several
// stands in rules.go.
//
// YAML is read into a tree of ours before CUE sees it, which keeps line and
// column through aliases and overlays, finds the duplicate keys that CUE lets
// pass when their values are equal, and bounds what aliases unfold to. Every
// load has a CUE context of its own, because contexts never shrink; nothing of
// CUE outlives the load.
package schema
