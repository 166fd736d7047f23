// Command wordlint reports names and texts that the style of this repository
// does not allow.
//
//	wordlint -root DIR [-rules RULE,…] [-count] [PATH…]
//
// It reads every file below the root and prints one line for each finding, with
// file and line. It exits with 1 if there are findings. Each PATH is a file or a
// directory below the root and restricts the findings. With -count it prints the
// number of findings of each rule and top directory instead. The rules are:
//
//	words  retired words in identifiers, comments, messages and documents
//	tests  test functions whose name does not begin with what they test
//
// The retired words and the exceptions are tables in words.go.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

var ruleNames = []string{"words", "tests"}

var errFindings = errors.New("there are findings")

func main() {
	if err := run(os.Stdout, os.Args[1:]); errors.Is(err, errFindings) || errors.Is(err, flag.ErrHelp) {
		os.Exit(1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "wordlint:", err)
		os.Exit(2)
	}
}

// finding is one place that breaks a rule.
type finding struct {
	file    string
	line    int
	rule    string
	message string
}

// source is a file below the root. Only Go files have a tree.
type source struct {
	path  string // relative to the root, with slashes
	text  []byte
	files *token.FileSet
	tree  *ast.File
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// directory returns the path of the package.
func (s *source) directory() string { return path.Dir(s.path) }

// line returns the number of the line at a position.
func (s *source) line(p token.Pos) int { return s.files.Position(p).Line }

// isFixture reports whether the file belongs to the test data of a package.
func (s *source) isFixture() bool {
	return strings.Contains("/"+s.path, "/testdata/") && !strings.HasPrefix(s.path, "testdata/toolchain/")
}

// linter collects the findings.
type linter struct {
	sources    []*source
	module     string // path of the module at the root
	exceptions []exception
	used       map[exception]bool
	findings   []finding
}

func (l *linter) report(s *source, line int, rule, format string, args ...any) {
	l.findings = append(l.findings, finding{s.path, line, rule, fmt.Sprintf(format, args...)})
}

// run reads the flags, checks the files and prints the findings.
func run(out io.Writer, args []string) error {
	flags := flag.NewFlagSet("wordlint", flag.ContinueOnError)
	root := flags.String("root", ".", "the directory to check")
	rules := flags.String("rules", strings.Join(ruleNames, ","), "the rules to apply, separated by commas")
	count := flags.Bool("count", false, "print only the number of findings of each rule and top directory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	selected := strings.Split(*rules, ",")
	for _, name := range selected {
		if !slices.Contains(ruleNames, name) {
			return fmt.Errorf("unknown rule %q: the rules are %s", name, strings.Join(ruleNames, ", "))
		}
	}

	// 1. Read all files: the rules for tests need the names of other packages.
	l := &linter{exceptions: exceptions}
	if err := l.read(os.DirFS(*root)); err != nil {
		return err
	}

	// 2. Apply the rules, and keep the findings below the paths.
	l.apply(selected)
	if flags.NArg() == 0 && slices.Contains(selected, "words") {
		l.reportUnused()
	}
	var paths []string
	for _, arg := range flags.Args() {
		p := path.Clean(filepath.ToSlash(arg))
		if _, err := os.Stat(filepath.Join(*root, p)); err != nil {
			return err
		}
		paths = append(paths, p)
	}
	l.findings = slices.DeleteFunc(l.findings, func(f finding) bool {
		return len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool { return within(f.file, p) })
	})

	// 3. Print them in order.
	slices.SortFunc(l.findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line),
			cmp.Compare(a.rule, b.rule), cmp.Compare(a.message, b.message))
	})
	if *count {
		return l.printCounts(out, selected)
	}
	for _, f := range l.findings {
		fmt.Fprintf(out, "%s:%d: %s: %s\n", f.file, f.line, f.rule, f.message)
	}
	if len(l.findings) > 0 {
		return errFindings
	}
	return nil
}

// within reports whether a file is the file or in the directory at a path.
func within(file, p string) bool {
	return p == "." || file == p || strings.HasPrefix(file, p+"/")
}

// read adds the files to which a rule applies. It skips generated files, because their text
// is that of the generator.
func (l *linter) read(root fs.FS) error {
	return fs.WalkDir(root, ".", func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "vendor"}, p) || strings.HasSuffix(p, "testdata/rapid") {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		if p == "go.mod" {
			_, after, _ := strings.Cut(string(text), "module ")
			l.module, _, _ = strings.Cut(after, "\n")
		}
		return l.add(p, text)
	})
}

// add parses a file and adds it to the sources if a rule applies to it.
func (l *linter) add(p string, text []byte) error {
	s := &source{path: p, text: text, files: token.NewFileSet()}
	start := text[:min(len(text), 1024)]
	switch {
	case bytes.Contains(start, []byte("// Code generated ")):
		return nil
	case path.Ext(p) == ".go":
		tree, err := parser.ParseFile(s.files, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		s.tree = tree
	case !isDocument(p, start):
		return nil
	}
	l.sources = append(l.sources, s)
	return nil
}

// isDocument reports whether people read the text of a file that is not Go.
func isDocument(p string, start []byte) bool {
	base, ext := path.Base(p), path.Ext(p)
	switch ext {
	case ".md", ".sh", ".cue", ".golden", ".txtar", ".txt":
		return true
	case ".yaml", ".yml", ".tpl", ".service":
		return within(p, "examples") || strings.Contains(base, ".golden.")
	}
	return base == "Makefile" || base == "Dockerfile" || path.Base(path.Dir(p)) == "golden" ||
		bytes.HasPrefix(start, []byte("#!")) && bytes.Contains(start[:min(len(start), 40)], []byte("bash"))
}

// apply runs the rules on all files.
func (l *linter) apply(rules []string) {
	l.used = map[exception]bool{}
	units := l.units()
	for _, s := range l.sources {
		for _, rule := range rules {
			switch rule {
			case "words":
				l.words(s)
			case "tests":
				l.tests(s, units)
			}
		}
	}
}

// printCounts prints a table: a row for each rule, a column for each top directory.
func (l *linter) printCounts(out io.Writer, rules []string) error {
	// 1. Count by rule, and by rule and directory.
	counts := map[string]int{}
	var directories []string
	for _, f := range l.findings {
		directory, _, found := strings.Cut(f.file, "/")
		if !found {
			directory = "."
		}
		if !slices.Contains(directories, directory) {
			directories = append(directories, directory)
		}
		counts[f.rule+" "+directory]++
		counts[f.rule]++
	}

	// 2. Print the rows, also those without findings.
	slices.Sort(directories)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "rule\tall\t%s\t\n", strings.Join(directories, "\t"))
	for _, rule := range rules {
		fmt.Fprintf(table, "%s\t%d\t", rule, counts[rule])
		for _, directory := range directories {
			fmt.Fprintf(table, "%d\t", counts[rule+" "+directory])
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil || len(l.findings) == 0 {
		return err
	}
	return errFindings
}
