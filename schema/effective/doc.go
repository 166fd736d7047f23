// Package effective renders the settings of a loaded configuration as a file: what
// the agent uses after variables and defaults are applied, and where each value
// comes from.
//
// The package writes the layout of a configuration file: the top level, pools, and the
// form of values. It never reads a file or a variable. It never gets a secret, because
// settings contain a mark in place of each secret.
//
// The package is separate because it needs only the settings of package schema, and
// loading a configuration does not need it.
package effective
