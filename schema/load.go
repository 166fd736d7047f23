package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Load makes a configuration of a source. The configuration is nil exactly if
// the problems hold an error; warnings come beside a configuration.
//
// Load never panics, whatever the source holds; it reads the files of tokens,
// certificates and Pod templates that the configuration names, and nothing else. It is safe for concurrent use.
func Load(source Source) (*Config, position.Problems) {
	outcome := Evaluate(source)
	return outcome.Config, outcome.Problems
}

// Outcome is what a load comes to.
type Outcome struct {
	Config   *Config // nil exactly if the problems hold an error
	Problems position.Problems
	Digest   string   // of everything that was looked at, in hexadecimal, also where that is refused
	Files    []string // that the configuration names, sorted, also those that are not there
}

// Evaluate is [Load] for a reader that looks again: it also tells what was looked
// at, whether that is good or not.
func Evaluate(source Source) Outcome {
	l := &load{source: source, bad: map[string]bool{}, digest: sha256.New()}
	l.digest.Write(source.Content)
	config := l.guarded()
	slices.Sort(l.files)
	outcome := Outcome{Digest: hex.EncodeToString(l.digest.Sum(nil)), Files: slices.Compact(l.files)}
	l.problems.Sort()
	l.problems = slices.Compact(l.problems) // what pools inherit is wrong once
	l.problems = l.problems.Limit(source.Path)
	if source.Elsewhere {
		l.problems = elsewhere(l.problems)
	}
	outcome.Problems = l.problems
	if config == nil || len(l.problems.Errors()) > 0 {
		return outcome
	}
	config.settings = l.settings(config)
	config.Files, config.Digest = outcome.Files, outcome.Digest
	outcome.Config = config
	return outcome
}

// load is one load under way.
type load struct {
	schema   *definition
	source   Source
	problems position.Problems
	bad      map[string]bool // paths whose value is out, so that no rule speaks of them again
	files    []string
	digest   hash.Hash

	process position.Mapping // what is in force at the top level
	pools   []*scope
}

// guarded is the load behind a net. Parser and CUE are large, and are fed what
// others write; a fault in them must not end an agent that has jobs to finish
// and is merely told of an edit. What it says of the panic is nothing, since its
// text may hold a value.
func (l *load) guarded() (config *Config) {
	defer func() {
		if fault := recover(); fault != nil {
			config = nil
			l.report(position.Problem{
				Rule: position.RuleInternal, File: l.source.Path,
				Message: "the configuration cannot be checked, through a fault of the program",
				Hint:    "undo the last change, and report this",
			})
		}
	}()
	return l.run()
}

func (l *load) report(problems ...position.Problem) { l.problems = append(l.problems, problems...) }

// run goes through the steps in the order that the package's comment tells.
func (l *load) run() *Config {
	var err error
	if l.schema, err = define(); err != nil {
		l.report(position.Problem{Rule: position.RuleInternal, Message: err.Error()})
		return nil
	}
	if filepath.Base(l.source.Path) == OldFileName {
		l.report(position.NewWarning(position.RuleOldName, position.Origin{File: l.source.Path}, "",
			"the name of the file is an old one", "rename it to "+FileName))
	}
	file, problems, ok := position.Parse(l.source.Path, l.source.Content)
	l.report(problems...)
	if !ok {
		return nil
	}
	l.report(l.schema.known(file, "")...)
	l.report(l.schema.renamed(file, l.source.Environ)...)

	keys, alone := l.variables()
	l.report(l.schema.strangers(l.source.Environ)...)
	l.overlaid(file, keys)
	merged := keys.Over(file)
	l.judge(merged)
	if (reader{merged}).bool("strict") {
		l.refuseUnknown()
	}
	alone = l.judgeAlone(alone)

	plain := map[string]any{}
	if err := l.schema.defaults.Decode(&plain); err != nil {
		l.report(position.Problem{Rule: position.RuleInternal, Message: "the defaults do not decode"})
		return nil
	}
	defaults := position.FromPlain(plain)
	config := processOf(merged.Over(defaults), alone)
	config.Path = l.source.Path
	l.process, l.pools = merged.Over(defaults), l.scopes(merged, defaults)
	for _, s := range l.pools {
		s.check()
		config.Pools = append(config.Pools, *s.pool)
	}
	l.check(config, merged, l.pools)
	return config
}

// refuseUnknown makes an error of every key that is not known.
func (l *load) refuseUnknown() {
	for i := range l.problems {
		if l.problems[i].Rule == position.RuleUnknownKey {
			l.problems[i].Severity = position.Error
		}
	}
}

// variables reads the variables that overlay keys, and those that stand alone.
// One that is empty, but for blanks, counts as not set.
func (l *load) variables() (keys, alone position.Mapping) {
	keys, alone = position.Mapping{}, position.Mapping{}
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		text := strings.TrimSpace(l.source.Environ[f.Variable])
		if f.Variable == "" || text == "" {
			continue
		}
		fmt.Fprintf(l.digest, "\x00%s=%s", f.Variable, text)
		v, ok := f.fromVariable(text)
		if !ok || !utf8.ValidString(text) {
			l.refuse(f, v, f.Key, "must be "+f.sentence())
			l.bad[f.Key] = true
			continue
		}
		if f.OnlyVariable {
			alone[f.Key] = v
		} else {
			keys.Set(v, strings.Split(f.Key, ".")...)
		}
	}
	return keys, alone
}
