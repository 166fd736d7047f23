package main

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// where is a set of places in which a word is retired.
type where int

const (
	identifiers where = 1 << iota // parts of declared names
	text                          // comments, string literals and documents
	typeNames                     // whole names of types
	both        = identifiers | text
)

// retired is a word that the repository no longer uses. A space in the pattern
// also matches a line break in a comment, and a change of case in an identifier.
type retired struct {
	pattern string // a regular expression for the whole word, in lower case
	use     string
	where   where
	except  string // a regular expression for phrases with another meaning, with their case
}

var retiredWords = []retired{
	{`mend(s|ed|ing|er)?`, "fix, repair", both, ""},
	{`anew`, "again", both, ""},
	{`farewell`, "shutdown message, unregister", both, ""},
	{`strangers?`, "unknown, foreign", both, ""},
	{`hush(es|ed)?`, "silence, suppress", both, ""},
	{`heed(s|ed|ing)?`, "obey, apply", both, ""},
	{`hears?|heard|hearing`, "receive, be notified", both, ""},
	{`say|says|said|saying|told`, "report, state, print", both, ""},
	{`words?`, "message, text, reason", both, `words? of (sh|bash|fish|zsh|a shell)|shell's words|COMP-C?WORDS?`},
	{`questions?`, "request, poll, prompt", both, `question marks?`},
	{`signs? of life`, "heartbeat, progress", both, ""},
	{`repetitions?`, "retry", both, ""},
	{`wish(es|ed|ing)?`, "request, desired value", both, ""},
	{`ways?`, "path", identifiers, ""},
	{`doors?`, "loader, lock", both, ""},
	{`brooms?`, "cleaner, collector", both, ""},
	{`patien(ce|t)`, "timeout, grace", both, ""},
	{`rest`, "remaining, tail", identifiers, `REST`},
	{`lays?|laid|laying`, "write, place, create", both, ""},
	{`paces?`, "rate, interval", identifiers, ""},
	{`life|lives`, "lifetime, run, process", both, `(?i)life cycles?`},
	{`fates?`, "outcome, result", both, ""},
	{`but for`, "except", both, ""},
	{`whoever`, "name the subject", both, ""},
	{`whatever`, "any, regardless of", both, ""},
	{`nobody`, "no client, no process", both, `nobody:`},
	{`at hand`, "available", both, ""},
	{`(is|are) none`, "no, without", text, `[Tt]here (is|are) none|is None`},
	{`on purpose`, "deliberately, or the purpose itself", both, ""},
	{`last words`, "final message", both, ""},
	{`epitaphs?`, "final message", both, ""},
	{`lend(s|ing)?|lent`, "give, share", both, ""},
	{`knock(s|ed|ing)?`, "check, poll", both, ""},
	{`standstill`, "stall", both, ""},
	{`mid[ -]air`, "incomplete", both, ""},
	{`turnstiles?`, "limiter, semaphore", both, ""},
	{`hurry|hurries|hurried`, "expedite, shorten", both, ""},
	{`handovers?`, "handoff", both, ""},
	{`verdicts?`, "result", both, ""},
	{`found`, "name what was found", typeNames, ""},
	{`folders?`, "directory", both, ""},
	{`cures?`, "hint", both, ""},
	{`begun`, "started", both, ""},
}

// exception allows a word in files. It has a reason that readers can check.
type exception struct {
	path   string // a path, a directory, or a pattern of path.Match
	word   string // as the file contains it, in lower case; * is every word
	reason string
}

var exceptions = []exception{
	{"testdata/toolchain/wordlint", "*", "the table and its test contain the retired words"},
	{"testdata/toolchain/pulumi/build", "folder", "a change of the script builds its programs again"},
	{"schema/podtemplate/testdata/volumes.txtar", "folder", "an invalid type of a hostPath"},
	{"testdata/toolchain/README.md", "words", "it names the rule and the file of this program"},
	{"testdata/toolchain/base-image", "nobody", "the user of Unix"},
	{"runtime/docker/settings_test.go", "nobody", "the user of Unix"},
	{"cmd/cli/command/completion*.go", "word", "the scripts work on the words of a shell's command line"},
	{"cmd/cli/command/completion*.go", "words", "the scripts work on the words of a shell's command line"},
}

// matcher is a retired word with its patterns.
type matcher struct {
	retired
	start  string // every match begins with it
	word   *regexp.Regexp
	except *regexp.Regexp // nil if there is none
}

// matchers has one matcher for each retired word.
var matchers = func() (list []matcher) {
	space := strings.NewReplacer(" ", `\s+(?:`+commentMark+`\s*)?`)
	for _, w := range retiredWords {
		pattern := space.Replace(w.pattern)
		m := matcher{retired: w, word: regexp.MustCompile(`\b(?:` + pattern + `)\b`)}
		m.start, _ = regexp.MustCompile(pattern).LiteralPrefix()
		if w.except != "" {
			m.except = regexp.MustCompile(`\b(?:` + space.Replace(w.except) + `)`)
		}
		list = append(list, m)
	}
	return list
}()

// commentMark matches the mark at the beginning of a comment line. A phrase that continues on
// the next line of a comment contains such a mark.
const commentMark = `(?://|#|\*)`

var continuation = regexp.MustCompile(`\n\s*` + commentMark)

// words reports retired words in a file and in its name.
func (l *linter) words(s *source) {
	base := path.Base(s.path)
	l.wordsIn(s, 1, base, strings.ReplaceAll(base, "_", " "), identifiers)
	if s.tree == nil {
		l.wordsIn(s, 1, "", string(s.text), text)
		return
	}

	// 1. Comments, as groups, since a phrase can continue on the next line.
	for _, group := range s.tree.Comments {
		start, end := s.files.Position(group.Pos()).Offset, s.files.Position(group.End()).Offset
		l.wordsIn(s, s.line(group.Pos()), "", string(s.text[start:end]), text)
	}

	// 2. String literals, but not import paths and struct tags.
	skip := map[*ast.BasicLit]bool{}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			skip[n.Path] = true
		case *ast.Field:
			skip[n.Tag] = true
		case *ast.BasicLit:
			if n.Kind == token.STRING && !skip[n] {
				value := escape.ReplaceAllString(n.Value, "  ")
				l.wordsIn(s, s.line(n.Pos()), "", value, text)
			}
		}
		return true
	})

	// 3. Declared names.
	for _, d := range declarations(s.tree) {
		name := d.name.Name
		l.wordsIn(s, s.line(d.name.Pos()), name, strings.Join(parts(name), " "), identifiers)
		if d.kind == typeName && strings.EqualFold(name, "found") {
			l.wordsIn(s, s.line(d.name.Pos()), name, name, typeNames)
		}
	}
}

// escape matches the escape sequences whose letter would join the next word.
var escape = regexp.MustCompile(`\\[abfnrtv]`)

// wordsIn reports the retired words in a text that begins at a line, or in the
// parts of a name.
func (l *linter) wordsIn(s *source, line int, name, content string, place where) {
	content = strings.ReplaceAll(content, "_", "-")
	lower := lowerASCII(content)
	for _, w := range matchers {
		if w.where&place == 0 || !strings.Contains(lower, w.start) {
			continue
		}

		// Hide the phrases that have another meaning, and keep the offsets.
		masked := lower
		if w.except != nil {
			for _, at := range w.except.FindAllStringIndex(content, -1) {
				masked = masked[:at[0]] + strings.Repeat("-", at[1]-at[0]) + masked[at[1]:]
			}
		}
		for _, at := range w.word.FindAllStringIndex(masked, -1) {
			match := continuation.ReplaceAllString(masked[at[0]:at[1]], " ")
			match = strings.Join(strings.Fields(match), " ")
			if l.excepted(s.path, match) {
				continue
			}
			found := line + strings.Count(masked[:at[0]], "\n")
			if place == text {
				l.report(s, found, "words", "%q is a retired word; use: %s", match, w.use)
			} else {
				l.report(s, found, "words", "%q in the name %s is a retired word; use: %s", match, name, w.use)
			}
		}
	}
}

// lowerASCII returns s with its ASCII letters in lower case. The offsets in the result are
// those in s, whereas strings.ToLower may change offsets.
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// excepted reports whether an exception allows the word in a file.
func (l *linter) excepted(file, word string) bool {
	allowed := false
	for _, e := range l.exceptions {
		matches, _ := path.Match(e.path, file)
		if (matches || within(file, e.path)) && (e.word == "*" || e.word == word) {
			l.used[e] = true
			allowed = true
		}
	}
	return allowed
}

// reportUnused reports the exceptions that allow nothing.
func (l *linter) reportUnused() {
	for _, e := range l.exceptions {
		if !l.used[e] {
			l.report(&source{path: "testdata/toolchain/wordlint/words.go"}, 1, "words",
				"the exception for %q in %s matches nothing; remove it", e.word, e.path)
		}
	}
}

// parts splits a name at underscores and changes of case: HTTPServer2 is HTTP
// and Server2.
func parts(name string) []string {
	var list []string
	for field := range strings.SplitSeq(name, "_") {
		runes := []rune(field)
		start := 0
		for i := 1; i < len(runes); i++ {
			lowerBefore := !unicode.IsUpper(runes[i-1])
			lowerAfter := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if unicode.IsUpper(runes[i]) && (lowerBefore || lowerAfter) {
				list = append(list, string(runes[start:i]))
				start = i
			}
		}
		if start < len(runes) {
			list = append(list, string(runes[start:]))
		}
	}
	return list
}
