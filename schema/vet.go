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

// Vet checks one file as it lies on disk: a configuration, a Pod template, or
// Kubernetes manifests that hold either, or containers with variables of the agent.
// It knows by content which one it has, and only where the content says nothing, by
// name. Problems weigh as [Strict] says, and are sorted.
//
// A configuration in a file of its own is checked as [Load] would take it here
// and now, variables included. One in a manifest runs elsewhere: neither the
// variables nor the files of this machine count for it.
//
// Vet never panics, whatever the source holds, and is safe for concurrent use.
func Vet(source Source) position.Problems {
	source.vetted = true
	return vetted(source, Strict)
}

// VetAsAgent is [Vet] with problems that weigh as for an agent that runs
// elsewhere: it ignores keys that it does not know, unless they resemble one that
// it does, and refuses what its release cannot carry out.
func VetAsAgent(source Source) position.Problems { return vetted(source, elsewhere) }

func vetted(source Source, weigh func(position.Problems) position.Problems) (problems position.Problems) {
	defer func() {
		if recover() != nil { // for the reason that Load has
			problems = position.Problems{{Rule: position.RuleInternal, File: source.Path,
				Message: "the file cannot be checked, through a fault of the program", Hint: "report this"}}
		}
	}()
	problems = weigh(vet(source))
	problems.Sort()
	return slices.Compact(problems)
}

// Strict returns the problems with the severity that they have where a file is
// checked and nothing runs: an unknown key is an error, also if it resembles no
// known one; so is a variable in a manifest that resembles a known one; what this
// release does not support is a warning, as another release may run the agent.
// Problems of files that only the agent's machine has are as [Source.Elsewhere]
// defines.
func Strict(problems position.Problems) position.Problems {
	strict := elsewhere(problems)
	for i := range strict {
		switch strict[i].Rule {
		case position.RuleUnknownKey:
			strict[i].Severity = position.Error
		case position.RuleUnknownVariable:
			if strict[i].File != "" && strict[i].Hint != "" {
				strict[i].Severity = position.Error
			}
		case position.RuleRelease:
			strict[i].Severity = position.Warning
		}
	}
	return strict
}

// elsewhere returns the problems with the severity that they have on a machine
// that is not the agent's. A missing token at the top level is a warning, because
// the agent's environment may contain it; so is a missing Pod template file.
// Missing files of tokens and certificates are dropped: they exist on the agent's
// machine only.
func elsewhere(problems position.Problems) position.Problems {
	var rest position.Problems
	for _, problem := range problems {
		switch problem.Rule {
		case position.RuleMissingToken:
			if !strings.HasPrefix(problem.Path, "pools.") {
				problem.Severity = position.Warning
			}
		case position.RuleMissingFile:
			if !strings.HasSuffix(problem.Path, "pod_template_file") {
				continue
			}
			problem.Severity = position.Warning
		}
		rest = append(rest, problem)
	}
	return rest
}

// podNames are the names of Pod templates, in a folder and in a manifest.
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

// templateOf reports whether a file without manifests is a Pod template, and
// returns it.
func templateOf(source Source) (template position.Mapping, ok bool) {
	v, _, _ := podtemplate.Parse(source.Path, source.Content)
	template, _ = v.Data.(position.Mapping)
	return template, podtemplate.Is(template) || slices.Contains(podNames, filepath.Base(source.Path))
}

// Templates returns the Pod templates of a file in which [Vet] finds no error: the
// file itself if it is a template, or those that its manifests hold, in its order.
// It is empty for a configuration. It never panics, whatever the source holds, and
// is safe for concurrent use.
func Templates(source Source) (templates []map[string]any) {
	defer func() {
		if recover() != nil { // for the reason that Load has
			templates = nil
		}
	}()
	if all, ok := heldBy(source); ok {
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

// Excerpts returns what may be shown of the line of each problem.
//
// A line may hold a secret: a token at the wrong place, a password in a URL, the
// variables of a container. A person who vets a file in front of others, or into
// a log, does not think of that. So nothing is shown that is not known to be
// harmless. The indent and the key are, if the problem's own path, which a
// message shows too, ends in that key. The value is only if the schema says that
// it is one of a few words, a number, a duration or the like, so that no secret
// belongs there, and if what stands there is close to one, since people slip by a
// line. In place of any other value stands a mark. Lines of other shapes are not shown:
// entries of lists, continued text, mappings in brackets, broken YAML, and what no
// screen holds; and no line with the beginning of a token.
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

	// What a value may look like that is shown although it is refused. A number of
	// more digits may be one that opens something.
	number    = regexp.MustCompile(`^[+-]?([0-9]{1,8}(\.[0-9]{1,4})?|\.[0-9]{1,4}) ?(?i:[num]?s|m|h|d|w|secs?|mins?|seconds?|minutes?|hours?|days?|weeks?|[kmgtpe]|[kmgt]?i?b|[kmgtpe]i|%)?$`)
	plainWord = regexp.MustCompile(`^(?i:true|false|yes|no|on|off|null)$`)
	letters   = regexp.MustCompile(`^[A-Za-z_-]+$`)
)

const (
	hidden       = "…" // in place of a value
	longestShown = 200 // bytes of a line
)

func (d *definition) excerpt(line string, p position.Problem) position.Excerpt {
	line = strings.TrimRight(line, "\r")
	m := keyLine.FindStringSubmatch(line)
	if m == nil || secret.ContainsToken(line) {
		return position.Excerpt{}
	}
	before, key, blanks, rest := m[1]+m[2]+m[3]+m[4]+m[5], m[3], m[6], m[7]
	if position.SafeName(key) != key || p.Path != key && !strings.HasSuffix(p.Path, "."+key) {
		return position.Excerpt{}
	}
	text := before
	if rest, _, _ = strings.Cut(rest, " #"); rest != "" {
		rest = strings.TrimRight(rest, " \t")
		if !harmlessFor(d.byKey[poolPath.ReplaceAllString(p.Path, "")], rest) {
			rest = hidden
		}
		text += blanks + rest
	}
	caret := min(p.Column-1, len(before+blanks))
	if caret > 0 && caret < p.Column-1 && p.Column-1 < len(text) && rest != hidden {
		caret = p.Column - 1
	}
	return position.Excerpt{Text: text, Caret: strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, text[:min(caret, len(text))])}
}

// harmlessFor reports whether a value may be shown that stands where the field's
// belongs and is refused there. It must be a number, with a unit or without, a word
// for true, false or nothing, or a slip in one of the field's choices.
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
	if number.MatchString(text) || plainWord.MatchString(text) {
		return true
	}
	// A word that merely begins like a choice may end like a password.
	const longer = len("warning") - len("warn")
	best := position.Closest(text, slices.Clone(f.Choices))
	return best != "" && letters.MatchString(text) && len(text) <= len(best)+longer
}
