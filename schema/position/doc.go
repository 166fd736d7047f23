// Package position knows YAML with positions, and the problems that are found in it:
// where a value of a file or a variable comes from, and how a mistake is named,
// ordered and worded. It will never know which keys a file may have: that is the
// subject of schema and of schema/podtemplate, which both report such problems.
//
// [Parse] reads YAML into values of its own instead of CUE's, because these keep line
// and column through aliases and overlays, find duplicate keys that CUE accepts when
// their values are equal, and limit how far aliases unfold.
//
// No problem quotes a value, because a value may be a secret in the wrong place.
// [SafeName] decides for names. [Rules] is the only list of rules, also of those
// that other packages report: users select and filter by their names.
//
// The package is one of its own because both kinds of files and every format of a
// report need it, and none of them needs CUE for that.
package position
