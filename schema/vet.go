package schema

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Vet checks one file: a configuration, a Pod template, or Kubernetes manifests with
// configurations, templates or containers that have variables of the agent. The content
// determines the kind of the file. If it does not, the name of the file determines the kind.
// The problems are sorted and have the severity that [Strict] defines.
//
// A configuration that is a whole file is checked as [Load] would load it here, with the
// variables of the source. A missing Pod template file is a warning. Other missing files are
// not problems, except for [VetLocal]. A configuration in a manifest is for another machine:
// the variables and files of this machine do not apply to it.
//
// Vet never panics, and is safe for concurrent use.
func Vet(source Source) position.Problems {
	source.vetted = true
	return vetWith(source, Strict)
}

// VetAsAgent is [Vet] with the severities of an agent on another machine: an unknown key
// that resembles no known key is a warning, and a value that the release does not support
// is an error.
func VetAsAgent(source Source) position.Problems { return vetWith(source, elsewhere) }

func vetWith(source Source, weigh func(position.Problems) position.Problems) (problems position.Problems) {
	defer func() {
		if recover() != nil { // a bug of the parser or of CUE, as in runRecovering
			problems = position.Problems{{Rule: position.RuleInternal, File: source.Path,
				Message: "the file cannot be checked because of a bug in this program", Hint: "report the bug"}}
		}
	}()
	problems = weigh(vet(source))
	problems.Sort()
	return slices.Compact(problems)
}

// Strict returns the problems with the severity that they have when a file is only checked:
// an unknown key is an error even if no known key resembles it; an unknown variable in a
// manifest is an error if a known variable resembles it; a value that this release does not
// support is a warning, because another release may run the agent. A missing token at the top
// level and a missing Pod template file are warnings. Problems of other missing files are
// dropped, because these files may exist only on the agent's machine.
func Strict(problems position.Problems) position.Problems { return withoutRelease(elsewhere(problems)) }

// withoutRelease returns the problems with the severities that [Strict] defines for unknown
// keys and for values that this release does not support.
func withoutRelease(problems position.Problems) position.Problems {
	strict := slices.Clone(problems)
	for i := range strict {
		switch strict[i].Rule {
		case position.RuleUnknownKey:
			strict[i].Severity = position.Error
		case position.RuleRelease:
			strict[i].Severity = position.Warning
		}
	}
	return strict
}

// elsewhere returns the problems with the severities that [Strict] defines for missing tokens
// and files, because this is not the agent's machine.
func elsewhere(problems position.Problems) position.Problems {
	var kept position.Problems
	for _, problem := range withoutEnvironment(problems) {
		if problem.Rule == position.RuleMissingFile {
			if !strings.HasSuffix(problem.Path, "pod_template_file") {
				continue
			}
			problem.Severity = position.Warning
		}
		kept = append(kept, problem)
	}
	return kept
}

// withoutEnvironment returns the problems with the severity that they have if the
// environment of the agent is unknown: a missing token at the top level is a warning, and an
// unknown variable in a manifest is an error if a known variable resembles it.
func withoutEnvironment(problems position.Problems) position.Problems {
	var all position.Problems
	for _, problem := range problems {
		switch {
		case problem.Rule == position.RuleMissingToken && !strings.HasPrefix(problem.Path, "pools."):
			problem.Severity = position.Warning
		case problem.Rule == position.RuleUnknownVariable && problem.File != "" && problem.Hint != "":
			problem.Severity = position.Error // in a manifest, where it can be corrected
		}
		all = append(all, problem)
	}
	return all
}

// podNames are the file names of Pod templates in a directory, and their keys in a manifest.
var podNames = []string{"worker-pod.json", "worker-pod.yaml"}

func vet(source Source) position.Problems {
	if content, broken := position.CheckText(source.Path, source.Content); broken == nil {
		if problems, ok := vetManifests(source, content); ok {
			return problems
		}
		if _, ok := templateOf(source); ok {
			return podtemplate.CheckFile(source.Path, source.Content)
		}
	}
	_, problems := Load(source)
	return problems
}

// templateOf returns the Pod template of a file without manifests, and reports whether the
// file is one.
func templateOf(source Source) (template position.Mapping, ok bool) {
	v, _, _ := podtemplate.Parse(source.Path, source.Content)
	template, _ = v.Data.(position.Mapping)
	return template, podtemplate.Is(template) || slices.Contains(podNames, filepath.Base(source.Path))
}

// Templates returns the Pod templates of a file: the file itself if it is a template, or the
// templates in its manifests, in the order of the file. The list is empty for a configuration.
// [Vet] must have found no error in the file. Templates never panics, and is safe for
// concurrent use.
func Templates(source Source) (templates []map[string]any) {
	defer func() {
		if recover() != nil { // a bug of the parser or of CUE, as in runRecovering
			templates = nil
		}
	}()
	if all, ok := manifestFiles(source); ok {
		for _, one := range all {
			if v, _, ok := podtemplate.Parse(one.name, one.source.Content); ok && one.template {
				t, _ := v.Data.(position.Mapping)
				templates = append(templates, t.Plain())
			}
		}
		return templates
	}
	if t, ok := templateOf(source); ok {
		return []map[string]any{t.Plain()}
	}
	return nil
}

// Excerpts returns the part of the line of each problem that may be shown.
//
// A line may contain a secret: a token in the wrong place, a password in a URL, the
// variables of a container. Users do not expect vet to print such a line on a shared screen or
// in a log. So an excerpt shows only harmless parts:
//
//   - the indentation and the key, if the path of the problem, which the message shows too,
//     ends in that key;
//   - the value, if the schema allows only choices, numbers or durations for the key and the
//     value resembles one of these. Otherwise a mark replaces the value, because it may be a
//     secret on the wrong line.
//
// Other lines have no excerpt: entries of lists, continued text, mappings in brackets,
// invalid YAML, very long lines, and lines that contain the prefix of a token.
func Excerpts(content []byte, problems position.Problems) []position.Excerpt {
	excerpts := make([]position.Excerpt, len(problems))
	if len(problems) == 0 {
		return excerpts
	}
	d, err := define()
	if err != nil {
		return excerpts
	}
	lines := bytes.Split(bytes.TrimPrefix(content, []byte("\uFEFF")), []byte("\n"))
	for i, p := range problems {
		if p.Line > 0 && p.Line <= len(lines) && p.Column > 0 && len(lines[p.Line-1]) <= longestShown {
			excerpts[i] = d.excerpt(string(lines[p.Line-1]), p)
		}
	}
	return excerpts
}

var (
	keyLine  = regexp.MustCompile(`^([ \t]*(?:- +)*)(["']?)([A-Za-z0-9_.$/-]+)(["']?)([ \t]*:)(?:([ \t]+)(.*))?$`)
	poolPath = regexp.MustCompile(`^pools\.[0-9]+\.`)

	// Invalid values that may be shown. A number with more digits may be a PIN or password.
	number = regexp.MustCompile(`^[+-]?([0-9]{1,8}(\.[0-9]{1,4})?|\.[0-9]{1,4}) ?` +
		`(?i:[num]?s|m|h|d|w|secs?|mins?|seconds?|minutes?|hours?|days?|weeks?|` +
		`[kmgtpe]|[kmgt]?i?b|[kmgtpe]i|%)?$`)
	booleanText = regexp.MustCompile(`^(?i:true|false|yes|no|on|off|null)$`)
	letters     = regexp.MustCompile(`^[A-Za-z_-]+$`)
)

const (
	hidden       = "…" // replaces a value
	longestShown = 200 // bytes of a line
)

func (d *definition) excerpt(line string, p position.Problem) position.Excerpt {
	line = strings.TrimRight(line, "\r")
	m := keyLine.FindStringSubmatch(line)
	if m == nil || secret.ContainsToken(line) {
		return position.Excerpt{}
	}
	beforeValue, key, space, value := m[1]+m[2]+m[3]+m[4]+m[5], m[3], m[6], m[7]
	if position.SafeName(key) != key || p.Path != key && !strings.HasSuffix(p.Path, "."+key) {
		return position.Excerpt{}
	}

	text := beforeValue
	if value, _, _ = strings.Cut(value, " #"); value != "" {
		value = strings.TrimRight(value, " \t")
		if !harmlessFor(d.byKey[poolPath.ReplaceAllString(p.Path, "")], value) {
			value = hidden
		}
		text += space + value
	}

	// Put the caret below the position of the problem.
	caret := min(p.Column-1, len(beforeValue+space))
	if caret > 0 && caret < p.Column-1 && p.Column-1 < len(text) && value != hidden {
		caret = p.Column - 1
	}
	return position.Excerpt{Text: text, Caret: strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, text[:min(caret, len(text))])}
}

// harmlessFor reports whether an invalid value of a field may be shown. It must be a number
// with or without a unit, a form of true, false or null, or a misspelt choice of the field.
func harmlessFor(f *Field, text string) bool {
	if f == nil || f.Secret {
		return false
	}
	switch {
	case f.Kind == KindBool, f.Kind == KindInt, f.Kind == KindDuration, f.Kind == KindQuantity:
	case f.Kind == KindText && len(f.Choices) > 0:
	default:
		return false
	}
	if last := len(text) - 1; last > 0 && strings.ContainsRune(`"'`, rune(text[0])) && text[0] == text[last] {
		text = text[1:last]
	}
	if number.MatchString(text) || booleanText.MatchString(text) {
		return true
	}
	// A text that begins with a choice may continue with a password.
	const longer = len("warning") - len("warn")
	best := position.Closest(text, slices.Clone(f.Choices))
	return best != "" && letters.MatchString(text) && len(text) <= len(best)+longer
}
