// Package effective renders the settings of a loaded configuration as a file: what
// the agent uses after variables and defaults are applied, and where each value
// comes from.
//
// It knows the layout of a configuration file: the top level, pools, and the form
// of values. It never reads a file or a variable, and never sees a secret, because
// settings contain the mark of a secret only.
//
// It is a package because it needs nothing of package schema but settings, and
// loading a configuration needs nothing of it.
package effective
