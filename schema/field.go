package schema

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue"
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
	Kind         Kind          //
	Choices      []string      // of a text, or of each entry of a list; nil allows any text
	Pattern      string        // regular expression that a text, or each entry of a list, matches; may be empty
	Min, Max     *int64        // of an int; nil if unbounded
	Required     bool          // the key must be set
	Pool         bool          // a pool may set it
	Shortest     time.Duration // of a duration
	Longest      time.Duration //
	Seconds      bool          // a duration may be a number of seconds
	Empty        bool          // "" is a value, and means unset
	Secret       bool          // the value is never shown
	Reload       Class         //
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
// schema.cue, except that the keys of pools come before those of the whole agent.
func Fields() ([]Field, error) {
	d, err := define()
	if err != nil {
		return nil, err
	}
	fields := slices.Clone(d.fields)
	for i, f := range fields {
		if f.OnlyVariable || f.Kind == KindMapping {
			continue
		}
		if v := d.defaults.LookupPath(cue.ParsePath(f.Key)); v.Exists() {
			text, err := v.MarshalJSON()
			if err != nil {
				return nil, fmt.Errorf("read the default of %s: %w", f.Key, err)
			}
			fields[i].Default = string(text)
		}
	}
	return fields, nil
}

// fieldsOf returns the fields of a definition, including those in its mappings, for which
// wanted returns true.
func fieldsOf(definition cue.Value, prefix string, wanted func(key string) bool) ([]Field, error) {
	// Iterate over the keys.
	var fields []Field
	keys, err := definition.Fields(cue.Optional(true))
	if err != nil {
		return nil, err
	}
	for keys.Next() {
		if !wanted(keys.Selector().Unquoted()) {
			continue
		}

		// Describe one key, and the keys in it.
		v := keys.Value()
		f := Field{Key: prefix + keys.Selector().Unquoted(), Doc: docOf(v),
			Required: keys.Selector().ConstraintType() == cue.RequiredConstraint}
		f.shape(v)
		if err := f.attributes(v); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Key, err)
		}
		fields = append(fields, f)
		if f.Kind == KindMapping {
			inner, err := fieldsOf(v, f.Key+".", wanted)
			if err != nil {
				return nil, err
			}
			fields = append(fields, inner...)
		}
	}
	return fields, nil
}

// shape sets the parts of the field that depend on its constraint.
func (f *Field) shape(v cue.Value) {
	switch v.IncompleteKind() {
	case cue.BoolKind:
		f.Kind = KindBool
	case cue.IntKind:
		f.Kind = KindInt
		f.bounds(v)
	case cue.ListKind:
		f.Kind = KindList
		entry := v.LookupPath(cue.MakePath(cue.AnyIndex))
		if entry.IncompleteKind() == cue.StructKind {
			f.Kind = KindMappings
			return
		}
		f.Choices, _, f.Pattern = texts(entry)
	case cue.StructKind:
		f.Kind = KindMapping
	case cue.TopKind:
		f.Kind = KindAny
	default:
		f.Kind = KindText
		f.Choices, f.Empty, f.Pattern = texts(v)
	}
}

func (f *Field) bounds(v cue.Value) {
	op, args := v.Expr()
	switch op {
	case cue.AndOp:
		for _, arg := range args {
			f.bounds(arg)
		}
	case cue.GreaterThanEqualOp:
		if n, err := args[0].Int64(); err == nil {
			f.Min = &n
		}
	case cue.LessThanEqualOp:
		if n, err := args[0].Int64(); err == nil {
			f.Max = &n
		}
	}
}

// texts returns the choices of an enumeration without the empty text, and whether the empty
// text is a choice too; or it returns the regular expression of a pattern. It does both in
// one call, because taking an expression apart is the most expensive operation of CUE.
func texts(v cue.Value) (choices []string, empty bool, pattern string) {
	op, args := cue.Dereference(v).Expr()
	switch op {
	case cue.RegexMatchOp:
		if text, err := args[len(args)-1].String(); err == nil {
			pattern = text
		}
	case cue.OrOp:
		for _, arg := range args {
			switch text, err := arg.String(); {
			case err != nil:
			case text == "":
				empty = true
			default:
				choices = append(choices, text)
			}
		}
	}
	return choices, empty, pattern
}

// attributes sets the parts of the field that depend on its attributes.
func (f *Field) attributes(v cue.Value) error {
	for _, a := range v.Attributes(cue.FieldAttr) {
		// The first argument.
		first := ""
		if a.NumArgs() > 0 {
			var err error
			if first, err = a.String(0); err != nil {
				return err
			}
		}

		// The attribute itself.
		switch a.Name() {
		case "env":
			f.Variable = first
			name, _, err := a.Lookup(1, "separator")
			if err != nil {
				return err
			}
			f.Separator = map[string]string{"comma": ",", "space": " "}[name]
			if f.Unit, _, err = a.Lookup(1, "unit"); err != nil {
				return err
			}
		case "reload":
			f.Reload = Class(first)
		case "secret":
			f.Secret = true
		case "seconds":
			f.Seconds = true
		case "quantity":
			f.Kind = KindQuantity
		case "tree":
			f.Kind = KindTree
		case "duration":
			f.Kind = KindDuration
			for name, bound := range map[string]*time.Duration{"min": &f.Shortest, "max": &f.Longest} {
				text, _, err := a.Lookup(0, name)
				if err != nil {
					return err
				}
				if *bound, err = time.ParseDuration(text); err != nil {
					return err
				}
			}
		case "must":
			f.must = first
		case "each":
			f.each = first
		case "old":
			f.Old = first
		case "unused":
			f.Unused = first
		case "ignored":
			f.Ignored = true
		default:
			return fmt.Errorf("unknown attribute @%s", a.Name())
		}
	}
	return nil
}

// docOf returns the comment above a key as one line.
func docOf(v cue.Value) string {
	var fields []string
	for _, group := range v.Doc() {
		fields = append(fields, strings.Fields(group.Text())...)
	}
	return strings.Join(fields, " ")
}
