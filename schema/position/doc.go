// Package position knows YAML with positions, and problems: the origin of each value of
// a file or a variable, and the rule, order and text of a mistake. It will never know
// which keys a file may have; the packages schema and schema/podtemplate know that.
//
// [Parse] returns values of this package rather than of CUE. They keep line and column
// through aliases and overlays. Parse reports duplicate keys, which CUE accepts if their
// values are equal, and limits the number of values that aliases produce.
//
// No problem of this package quotes a value, because a value may be a secret in the wrong
// place. [SafeName] decides which names a problem may quote. [Rules] is the only list of
// rules; it includes the rules that other packages report, because users select rules by name.
//
// It is a separate package because configurations, Pod templates and all formats of
// reports need it, and none of them needs CUE for that.
package position
