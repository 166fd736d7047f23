package schema

import (
	"slices"
	"time"
)

// Kind is the kind of value that a key accepts.
type Kind string

// The kinds.
const (
	KindText     Kind = "text"
	KindBool     Kind = "bool"
	KindInt      Kind = "int"
	KindDuration Kind = "duration"
	KindQuantity Kind = "quantity" // a number, or a text such as 500m
	KindList     Kind = "list"     // of text
	KindMapping  Kind = "mapping"
	KindMappings Kind = "mappings" // a list of mappings
	KindTree     Kind = "tree"     // a mapping that is checked by another schema
	KindAny      Kind = "any"
)

// Class is the reload class of a key: when a changed value takes effect in a running agent.
// The value of a variable never changes while the agent runs.
type Class string

// The classes.
const (
	ReloadLive    Class = "live"    // immediately
	ReloadJob     Class = "job"     // for jobs that are claimed later
	ReloadDrain   Class = "drain"   // the old pool finishes its jobs, a new one starts
	ReloadRebind  Class = "rebind"  // the new listener opens, then the old one closes
	ReloadRestart Class = "restart" // only after a restart of the agent
)

// Field describes one key of the schema.
type Field struct {
	Key          string        // with dots, such as ecs.cluster; pools.name for a key that only pools have
	Kind         Kind          // of its value
	Choices      []string      // of a text, or of each entry of a list; nil allows any text
	Pattern      string        // regular expression that a text, or each entry of a list, matches; may be empty
	Min, Max     *int64        // of an int; nil if unbounded
	Required     bool          // the key must be set
	Pool         bool          // a pool may set it
	Shortest     time.Duration // of a duration
	Longest      time.Duration // of a duration
	Seconds      bool          // a duration may be a number of seconds
	Empty        bool          // "" is a value, and means unset
	Secret       bool          // the value is never shown
	Reload       Class         // when a change takes effect
	Variable     string        // that overrides the key; may be empty
	Separator    string        // of a list in that variable: "," or " "
	Unit         string        // of a number without a unit in that variable
	OnlyVariable bool          // the setting has a variable, but no key
	Doc          string        // sentences
	Default      string        // as JSON; empty without a default
	Old          string        // the key that replaced this one
	Unused       string        // why this key has no effect
	Ignored      bool          // has no effect and causes no warning

	must, each string
}

// Fields returns every key of the schema and every variable without a key, in the order of
// schema.cue, except that the keys of pools come before those of the whole agent. The caller
// must not change the slices in them.
func Fields() []Field { return slices.Clone(fieldTable) }
