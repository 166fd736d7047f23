// Package position reads YAML into values with their origin: a position in a file, or a
// variable. It also defines problems: the rule, position, order and text of each mistake.
// It does not depend on which keys a file may have. The packages schema and
// schema/podtemplate define these keys.
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
// reports need it. It does not import CUE.
package position
