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

// hintForMapping is the hint for a file that is no mapping.
const hintForMapping = "write lines such as: deploy_target: docker"

// load is one call of Load.
type load struct {
	schema   *definition
	source   Source
	problems position.Problems
	bad      map[string]bool // paths of invalid values, which no rule reports again
	files    []string        // that the configuration names
	digest   hash.Hash

	process position.Mapping // the top level with variables and defaults
	pools   []*scope
}

// guarded calls run and recovers from a panic. The parser and CUE are large and read
// what others write; a fault in them must not end an agent that has jobs to finish.
// The problem does not quote the panic, because its text may contain a value.
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

// report adds problems.
func (l *load) report(problems ...position.Problem) { l.problems = append(l.problems, problems...) }

// run loads the configuration in the steps that the comment of the package numbers.
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

	// 1. Read YAML.
	file, problems, ok := position.Parse(l.source.Path, l.source.Content, hintForMapping)
	l.report(problems...)
	if !ok {
		return nil
	}

	// 2. Remove unknown keys and replace old names.
	l.report(l.schema.known(file, "")...)
	l.report(l.schema.renamed(file, l.source.Environ)...)

	// 3. Lay the variables over the file.
	keys, alone := l.variables()
	l.report(l.schema.unknownVariables(l.source.Environ)...)
	l.overlaid(file, keys)
	merged := keys.Over(file)

	// 4. Check constraints.
	l.judge(merged)
	if (reader{merged}).bool("strict") {
		l.refuseUnknown()
	}
	alone = l.judgeAlone(alone)

	// 5. Fill in defaults, decode.
	plain := map[string]any{}
	if err := l.schema.defaults.Decode(&plain); err != nil {
		l.report(position.Problem{Rule: position.RuleInternal, Message: "the defaults do not decode"})
		return nil
	}
	defaults := position.FromPlain(plain)
	config := processOf(merged.Over(defaults), alone)
	config.Path = l.source.Path
	l.process, l.pools = merged.Over(defaults), l.scopes(merged, defaults)

	// 6. Check the rules across keys.
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
