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

// Load returns the configuration of a source and its problems. The configuration is nil
// exactly if the problems contain an error.
//
// Load never panics. It reads only the files that the configuration names, and
// [DefaultPodTemplateFile]. It is safe for concurrent use.
func Load(source Source) (*Config, position.Problems) {
	result := Evaluate(source)
	return result.Config, result.Problems
}

// LoadResult is the result of [Evaluate].
type LoadResult struct {
	Config   *Config // nil exactly if the problems contain an error
	Problems position.Problems
	Digest   string   // digest of everything that was read, in hexadecimal, also for an invalid configuration
	Files    []string // files that the configuration names, sorted, including missing ones
}

// Evaluate is [Load] for a caller that loads again when files change. Its result also
// identifies the input and has the files to watch, even if the configuration is invalid.
func Evaluate(source Source) LoadResult {
	l := &load{source: source, invalid: map[string]bool{}, unknown: map[string]bool{}, digest: sha256.New()}
	l.digest.Write(source.Content)
	config := l.runRecovering()
	slices.Sort(l.files)
	result := LoadResult{Digest: hex.EncodeToString(l.digest.Sum(nil)), Files: slices.Compact(l.files)}
	l.problems.Sort()
	l.problems = slices.Compact(l.problems).Limit(source.Path) // a value that pools inherit is reported once
	if source.Elsewhere {
		l.problems = elsewhere(l.problems)
	}
	result.Problems = l.problems
	if config == nil || len(l.problems.Errors()) > 0 {
		return result
	}
	config.settings = l.settings(config)
	config.Files, config.Digest = result.Files, result.Digest
	result.Config = config
	return result
}

// hintForMapping is the hint for a file that is not a mapping.
const hintForMapping = "write lines such as: deploy_target: docker"

// load is the state of one call of [Load].
type load struct {
	schema   *definition
	source   Source
	problems position.Problems
	invalid  map[string]bool // paths of values that were reported as invalid; no rule reports them again
	unknown  map[string]bool // keys whose variable has an unknown value, which no rule can check
	files    []string        // that the configuration names
	digest   hash.Hash

	process position.Mapping // the top level with variables and defaults
	pools   []*scope
}

// runRecovering calls run and recovers from a panic. The parser and CUE are large and
// process untrusted input; a bug in them must not stop an agent with running jobs. The
// problem does not quote the text of the panic, which may contain a value.
func (l *load) runRecovering() (config *Config) {
	defer func() {
		if recover() != nil {
			config = nil
			l.report(position.NewError(position.RuleInternal, position.Origin{File: l.source.Path}, "",
				"the configuration cannot be checked because of a bug in this program",
				"undo the last change, and report the bug"))
		}
	}()
	return l.run()
}

func (l *load) report(problems ...position.Problem) { l.problems = append(l.problems, problems...) }

// run loads the configuration in the numbered steps of the package comment.
func (l *load) run() *Config {
	var err error
	if l.schema, err = define(); err != nil {
		l.report(position.Problem{Rule: position.RuleInternal, Message: err.Error()})
		return nil
	}
	if filepath.Base(l.source.Path) == OldFileName {
		l.report(position.NewWarning(position.RuleOldName, position.Origin{File: l.source.Path}, "",
			"the file has an old name", "rename it to "+FileName))
	}

	// 1. Read YAML.
	file, problems, ok := position.Parse(l.source.Path, l.source.Content, hintForMapping)
	l.report(problems...)
	if !ok {
		return nil
	}
	empty := len(file) == 0 && len(problems) == 0 && l.source.Path != ""

	// 2. Remove unknown keys and replace old names.
	l.report(l.schema.removeUnknown(file, "")...)
	l.report(l.schema.replaceOldNames(file, l.source.Environ)...)

	// 3. Apply the variables, which override the file.
	keys, variableOnly := l.variables()
	l.report(l.schema.unknownVariables(l.source.Environ)...)
	l.warnOverridden(file, keys)
	merged := keys.Over(file)

	// 4. Check constraints.
	l.checkConstraints(merged)
	strict := l.source.Strict || (reader{merged}).bool("strict")
	if empty && strict {
		l.report(position.NewWarning(position.RuleSyntax, position.Origin{File: l.source.Path}, "",
			"the file sets nothing: it is empty, or has only comments", hintForMapping))
	}
	if strict {
		l.refuseLoose()
	}
	l.checkVariables(variableOnly)

	// 5. Fill in defaults, decode.
	plain := map[string]any{}
	if err := l.schema.defaults.Decode(&plain); err != nil {
		l.report(position.Problem{Rule: position.RuleInternal, Message: "the defaults do not decode"})
		return nil
	}
	defaults := position.FromPlain(plain)
	l.process, l.pools = merged.Over(defaults), l.scopes(merged, defaults)
	config := processOf(l.process, variableOnly)
	config.Path = l.source.Path

	// 6. Check the rules across keys.
	for _, s := range l.pools {
		s.check()
		config.Pools = append(config.Pools, *s.pool)
	}
	l.check(config, merged)
	return config
}

// refuseLoose turns the warnings about unknown keys, about a file without settings, and about
// variables that resemble those of the agent into errors. This is the effect of the key strict.
func (l *load) refuseLoose() {
	for i := range l.problems {
		switch p := &l.problems[i]; p.Rule {
		case position.RuleUnknownKey, position.RuleSyntax:
			p.Severity = position.Error
		case position.RuleUnknownVariable:
			if p.Hint != "" {
				p.Severity = position.Error
			}
		}
	}
}

// variables returns the values of variables that override keys, and those of variables
// without a key. A variable that is empty or has only white space counts as unset.
func (l *load) variables() (keys, variableOnly position.Mapping) {
	keys, variableOnly = position.Mapping{}, position.Mapping{}
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		text := strings.TrimSpace(l.source.Environ[f.Variable])
		if f.Variable != "" && slices.Contains(l.source.Unknown, f.Variable) {
			l.unknown[f.Key] = true
		}
		if f.Variable == "" || text == "" {
			continue
		}
		fmt.Fprintf(l.digest, "\x00%s=%s", f.Variable, text)
		v, ok := f.fromVariable(text)
		if !ok || !utf8.ValidString(text) {
			l.refuse(f, v, f.Key, "must be "+f.sentence())
			l.invalid[f.Key] = true
			continue
		}
		if f.OnlyVariable {
			variableOnly[f.Key] = v
		} else {
			keys.Set(v, strings.Split(f.Key, ".")...)
		}
	}
	return keys, variableOnly
}
