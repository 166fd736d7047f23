package schema

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue"
)

// Kind is what sort of value a key takes.
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

// Class says when a changed value takes effect in a running agent. A value that
// came from a variable never changes.
type Class string

// The classes.
const (
	ReloadLive    Class = "live"    // from the next turn or request
	ReloadJob     Class = "job"     // for jobs claimed from then on
	ReloadDrain   Class = "drain"   // the old pool finishes its jobs, a new one starts
	ReloadRebind  Class = "rebind"  // the new listener opens, then the old one closes
	ReloadRestart Class = "restart" // not in a running process
)

// Field is what the schema says about one key.
type Field struct {
	Key          string        // with dots: ecs.cluster; of a pool itself, pools.name
	Kind         Kind          //
	Choices      []string      // of a text, or of each entry of a list; nil is anything
	Pattern      string        // regular expression that a text, or each entry of a list, matches; empty is none
	Min, Max     *int64        // of an int; nil is no bound
	Required     bool          // the key must be there
	Pool         bool          // a pool may set it for itself
	Shortest     time.Duration // of a duration
	Longest      time.Duration //
	Seconds      bool          // a duration may be a bare number of seconds
	Empty        bool          // "" is a value, and means unset
	Secret       bool          // the value is never shown
	Reload       Class         //
	Variable     string        // that overlays the key; empty is none
	Separator    string        // of a list in that variable: "," or " "
	Unit         string        // of a bare number in that variable
	OnlyVariable bool          // there is no key of this name
	Doc          string        // sentences
	Default      string        // as JSON; empty is none
	Old          string        // the key that has taken this one's place
	Unused       string        // why this key has no effect
	Ignored      bool          // has no effect, and no word is lost on it

	must, each string
}

// Fields returns every key of the schema and every setting that only a variable
// has, in the order of schema.cue, those that a pool may set first.
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

// fieldsOf reads the fields of a definition, those of mappings in it included, but
// only those of the keys that are wanted.
func fieldsOf(definition cue.Value, prefix string, wanted func(key string) bool) ([]Field, error) {
	var fields []Field
	keys, err := definition.Fields(cue.Optional(true))
	if err != nil {
		return nil, err
	}
	for keys.Next() {
		if !wanted(keys.Selector().Unquoted()) {
			continue
		}
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

// shape reads what the constraint itself says.
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

// texts returns what a text may be: the alternatives of an enumeration, and
// whether the empty text is among them; or the one regular expression. To take an
// expression apart is the most costly question to CUE, so it is asked once.
func texts(v cue.Value) (choices []string, empty bool, pattern string) {
	op, args := cue.Dereference(v).Expr()
	switch op {
	case cue.RegexMatchOp:
		if text, err := args[len(args)-1].String(); err == nil {
			pattern = text
		}
	case cue.OrOp:
		for _, arg := range args {
			switch word, err := arg.String(); {
			case err != nil:
			case word == "":
				empty = true
			default:
				choices = append(choices, word)
			}
		}
	}
	return choices, empty, pattern
}

// attributes reads what CUE has no word for.
func (f *Field) attributes(v cue.Value) error {
	for _, a := range v.Attributes(cue.FieldAttr) {
		first := ""
		if a.NumArgs() > 0 {
			var err error
			if first, err = a.String(0); err != nil {
				return err
			}
		}
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
			return fmt.Errorf("attribute @%s is not known", a.Name())
		}
	}
	return nil
}

// docOf returns the comment above a key as one line.
func docOf(v cue.Value) string {
	var words []string
	for _, group := range v.Doc() {
		words = append(words, strings.Fields(group.Text())...)
	}
	return strings.Join(words, " ")
}
