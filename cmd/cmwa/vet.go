package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/peterbourgon/ff/v3/ffcli"
	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/schema"
)

// exitUnread is vet's code for a file that it cannot read.
const exitUnread = 2

func vetCommand(s streams) *ffcli.Command {
	flags := s.flags("cmwa vet")
	format := flags.String("format", "text", "how to tell what is wrong: "+strings.Join(vetFormats(), ", "))
	return &ffcli.Command{
		Name: "vet", ShortUsage: "cmwa vet [--format " + strings.Join(vetFormats(), "|") + "] [FILE...]",
		ShortHelp: "tell everything that is wrong with configurations, Pod templates and manifests that hold them",
		LongHelp: "A FILE is a configuration, a Pod template in YAML or JSON, or Kubernetes manifests: of these the keys\n" +
			"pulumi-workflow-agent.yaml and worker-pod.json of each ConfigMap and Secret are checked. What a FILE is, its content\n" +
			"says. The FILE - is standard input. Without any FILE, the configuration is checked that cmwa run would take.\n" +
			"\n" +
			"Nothing is printed if nothing is wrong. The exit code is 0 if there is no error, though there may be warnings; 1 if\n" +
			"there is one; and 2 if a FILE cannot be read or the command line is wrong. No format shows what a key is set to,\n" +
			"but for harmless words and numbers that text shows on a terminal.\n" +
			"\n" +
			"Columns count characters.",
		FlagSet: flags,
		Exec: func(ctx context.Context, args []string) error {
			files, err := interspersed(flags, args)
			if err != nil {
				return err
			}
			write, ok := s.vetFormat(*format)
			if !ok {
				return usageError{fmt.Errorf("--format must be one of %s", strings.Join(vetFormats(), ", "))}
			}
			return s.vet(ctx, files, write)
		},
	}
}

// interspersed reads flags that stand between and behind files.
func interspersed(flags *flag.FlagSet, args []string) (files []string, err error) {
	var rest []string
	if end := slices.Index(args, "--"); end >= 0 {
		args, rest = args[:end], args[end+1:]
	}
	for len(args) > 0 {
		if args[0] == "-" || !strings.HasPrefix(args[0], "-") {
			files, args = append(files, args[0]), args[1:]
			continue
		}
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usageError{err}
		}
		args = flags.Args()
	}
	return append(files, rest...), nil
}

// finding is a problem as it is shown.
type finding struct {
	schema.Problem
	vetted  string // the file that was vetted when it came up; a variable has no other
	excerpt schema.Excerpt
}

// vet is cmwa vet: read, check, and write all at once, in the order of the
// command line.
func (s streams) vet(ctx context.Context, files []string, write func([]finding) error) error {
	sources, unread, err := s.sources(ctx, files)
	if err != nil {
		return err
	}
	var findings []finding
	said := map[schema.Problem]bool{} // of variables, which lie over every file
	for i, source := range sources {
		if err := ctx.Err(); err != nil {
			return exitError(exitUnread)
		}
		problems := unread[i]
		if problems == nil {
			problems = schema.Vet(source)
		}
		more := found(source, problems, said)
		if isTerminal(s.stdout) {
			excerpt(source, more)
		}
		findings = append(findings, more...)
	}
	if err := write(findings); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	errs := 0
	for _, f := range findings {
		if f.Severity == schema.Error {
			errs++
		}
	}
	if isTerminal(s.stderr) && len(findings) > 0 {
		fmt.Fprintf(s.stderr, "%s, %s in %s\n", several(errs, "error"), several(len(findings)-errs, "warning"), several(len(sources), "file"))
	}
	switch {
	case len(unread) > 0:
		return exitError(exitUnread)
	case errs > 0:
		return exitError(exitFailure)
	default:
		return nil
	}
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// found makes findings of the problems of one file.
func found(source schema.Source, problems schema.Problems, said map[schema.Problem]bool) []finding {
	var findings []finding
	for _, p := range problems {
		if p.File == "" && said[p] {
			continue
		}
		said[p] = true
		findings = append(findings, finding{Problem: p, vetted: source.Path})
	}
	return findings
}

// excerpt adds what may be shown of the lines of one file.
func excerpt(source schema.Source, findings []finding) {
	problems := make(schema.Problems, len(findings))
	for i, f := range findings {
		if f.File == source.Path { // and not a file that it names
			problems[i] = f.Problem
		}
	}
	for i, e := range schema.Excerpts(source.Content, problems) {
		findings[i].excerpt = e
	}
}

// sources reads the files, and says by index which cannot be. Without files it
// reads the one that cmwa run would.
func (s streams) sources(ctx context.Context, files []string) (sources []schema.Source, unread map[int]schema.Problems, err error) {
	environ := readEnvironment(s.environ)
	executable, _ := os.Executable()
	if len(files) == 0 {
		source, err := s.usual(environ, executable)
		if err != nil {
			return nil, nil, usageError{err}
		}
		return []schema.Source{source}, nil, nil
	}
	if first := slices.Index(files, "-"); first >= 0 && slices.Contains(files[first+1:], "-") {
		return nil, nil, usageError{errors.New("standard input can be read once only: name - once")}
	}
	unread = map[int]schema.Problems{}
	for i, name := range files {
		source := schema.Source{Path: name, Environ: environ, Executable: executable}
		if name == "-" {
			source.Path = "<stdin>"
		}
		if source.Content, source.Mode, err = s.read(ctx, name); err != nil {
			if ctx.Err() != nil {
				return nil, nil, exitError(exitUnread)
			}
			message, hint := unreadable(name, err)
			unread[i] = schema.Problems{{Rule: schema.RuleUnreadable, File: source.Path, Message: message, Hint: hint}}
		}
		sources = append(sources, source)
	}
	return sources, unread, nil
}

// usual is what cmwa run would read.
func (s streams) usual(environ environment, executable string) (schema.Source, error) {
	home, _ := os.UserHomeDir()
	source, err := schema.Find(schema.Places{Home: home, Executable: executable, Environ: environ})
	if err != nil {
		return source, err
	}
	isOurs := func(entry string) bool { return strings.HasPrefix(entry, "PULUMI_AGENT_") }
	if source.Path == "" && !slices.ContainsFunc(s.environ, isOurs) {
		return source, fmt.Errorf("there is no %s in %s: name a file", schema.FileName, strings.Join(source.Searched, ", "))
	}
	return source, nil
}

var errDirectory = errors.New("it is a directory")

// read reads one file, and no more of it than shows that it is too long. Pipes
// are taken too, for the shell's <(command). A pipe may never end, so a signal
// does not wait for it; the goroutine then ends with the process.
func (s streams) read(ctx context.Context, name string) ([]byte, fs.FileMode, error) {
	type result struct {
		content []byte
		mode    fs.FileMode
		err     error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() { done <- r }()
		in := s.stdin
		if name != "-" {
			info, err := os.Stat(name)
			if err != nil {
				r.err = err
				return
			}
			if info.IsDir() {
				r.err = errDirectory
				return
			}
			if info.Mode().IsRegular() {
				r.mode = info.Mode().Perm()
			}
			file, err := os.Open(name)
			if err != nil {
				r.err = err
				return
			}
			defer file.Close()
			in = file
		}
		r.content, r.err = io.ReadAll(io.LimitReader(in, schema.MaxFile+1))
	}()
	select {
	case r := <-done:
		return r.content, r.mode, r.err
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

// unreadable says why a file cannot be read. Of what the system says only the
// number's own words are taken.
func unreadable(name string, err error) (message, hint string) {
	var number syscall.Errno
	switch {
	case errors.Is(err, errDirectory):
		return "this is a directory", "name the files in it, such as " + quotedName(filepath.Join(name, "*.yaml"))
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file", ""
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read the file", "begin again as its owner, or let this user read it"
	case errors.As(err, &number):
		return "the file cannot be read: " + number.Error(), ""
	default:
		return "the file cannot be read", ""
	}
}

// isTerminal reports whether a person is at the other side of a stream.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// vetFormats are the values of --format.
func vetFormats() []string { return []string{"text", "json", "sarif", "github"} }

// vetFormat returns what writes findings in a format.
func (s streams) vetFormat(name string) (func([]finding) error, bool) {
	switch name {
	case "text":
		environ := readEnvironment(s.environ)
		terminal := isTerminal(s.stdout)
		return func(all []finding) error {
			return writeText(s.stdout, all, terminal, terminal && environ["NO_COLOR"] == "" && environ["TERM"] != "dumb")
		}, true
	case "json":
		return func(all []finding) error { return writeJSON(s.stdout, jsonOf(all)) }, true
	case "sarif":
		return func(all []finding) error { return writeJSON(s.stdout, sarifOf(all)) }, true
	case "github":
		return func(all []finding) error { return writeGitHub(s.stdout, all) }, true
	default:
		return nil, false
	}
}

// quotedName returns a name as it may stand in a line: whatever would end the
// line, steer the terminal or be taken for what follows a name is in quotes.
func quotedName(name string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ':' || r == '"' || r == utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, odd) || strings.TrimSpace(name) != name {
		return strconv.Quote(name)
	}
	return name
}

// writeText writes each problem as file:line:column: path: message. A person at a
// terminal also sees the line, as far as it is known to be harmless.
func writeText(w io.Writer, all []finding, excerpts, colours bool) error {
	paint := func(code, text string) string {
		if !colours || text == "" {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var b strings.Builder
	for _, f := range all {
		colour := "31" // red
		position := f.Problem
		position.Path, position.Message, position.Hint = "", "", ""
		if f.File != "" {
			position.File = quotedName(f.File)
			b.WriteString(paint("1", strings.TrimSuffix(position.String(), " ")) + " ")
		}
		if f.Severity == schema.Warning {
			colour = "33" // yellow
			b.WriteString(paint(colour, "warning:") + " ")
		}
		what := schema.Problem{Path: f.Path, Message: f.Message}
		b.WriteString(what.String() + "\n")
		if excerpts && f.excerpt.Text != "" {
			b.WriteString("    " + f.excerpt.Text + "\n    " + f.excerpt.Caret + paint(colour, "^") + "\n")
		}
		if f.Hint != "" {
			b.WriteString("  hint: " + f.Hint + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeJSON writes one document.
func writeJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// vetReport is the format json. A number that is not known is 0, a text that does
// not apply is empty; neither is left out. Version grows when a reader of an
// earlier one would go wrong.
type vetReport struct {
	Version  int          `json:"version"`
	Problems []vetProblem `json:"problems"`
}

type vetProblem struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Path     string `json:"path"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

func jsonOf(all []finding) vetReport {
	report := vetReport{Version: 1, Problems: []vetProblem{}}
	for _, f := range all {
		report.Problems = append(report.Problems, vetProblem{
			Severity: f.Severity.String(), Rule: string(f.Rule), File: f.File, Line: f.Line, Column: f.Column,
			Path: f.Path, Message: f.Message, Hint: f.Hint,
		})
	}
	return report
}

// The format sarif is version 2.1.0 of the Static Analysis Results Interchange
// Format (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html), of
// which GitHub's code scanning reads what stands here. Results are there also if
// there are none: that closes old alerts.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		ColumnKind  string            `json:"columnKind"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifInvocation struct {
		ExecutionSuccessful bool `json:"executionSuccessful"`
	}
	sarifResult struct {
		RuleID              string            `json:"ruleId"`
		RuleIndex           int               `json:"ruleIndex"`
		Level               string            `json:"level"`
		Message             sarifText         `json:"message"`
		Locations           []sarifLocation   `json:"locations"`
		PartialFingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		PhysicalLocation struct {
			ArtifactLocation sarifArtifact `json:"artifactLocation"`
			Region           sarifRegion   `json:"region"`
		} `json:"physicalLocation"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
)

func sarifOf(all []finding) sarifLog {
	rules := schema.Rules()
	run := sarifRun{
		Tool:       sarifTool{sarifDriver{Name: "cmwa", Version: release()}},
		ColumnKind: "unicodeCodePoints", Results: []sarifResult{},
	}
	for _, rule := range rules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{string(rule.Rule), sarifText{rule.Description}})
	}
	read := true
	alike := map[string]int{}
	for _, f := range all {
		read = read && f.Rule != schema.RuleUnreadable
		what := schema.Problem{Path: f.Path, Message: f.Message}.String()
		result := sarifResult{
			RuleID: string(f.Rule), Level: f.Severity.String(), Message: sarifText{what},
			RuleIndex: slices.IndexFunc(rules, func(rule schema.RuleInfo) bool { return rule.Rule == f.Rule }),
		}
		if f.Hint != "" {
			result.Message.Text += "\n" + f.Hint
		}
		var location sarifLocation
		location.PhysicalLocation.ArtifactLocation.URI = relativeURI(cmp.Or(f.File, f.vetted, schema.FileName))
		location.PhysicalLocation.Region = sarifRegion{max(f.Line, 1), f.Column}
		result.Locations = []sarifLocation{location}
		// An alert stays the same while its line moves.
		sum := sha256.Sum256([]byte(f.File + "\x00" + string(f.Rule) + "\x00" + what))
		print := hex.EncodeToString(sum[:8])
		alike[print]++
		result.PartialFingerprints = map[string]string{"primaryLocationLineHash": fmt.Sprintf("%s:%d", print, alike[print])}
		run.Results = append(run.Results, result)
	}
	run.Invocations = []sarifInvocation{{read}}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}

// relativeURI returns the URI of a file relative to the working directory, and an
// absolute one of a file outside of it.
func relativeURI(path string) string {
	path = inside(path)
	segments := strings.Split(filepath.ToSlash(path), "/")
	for i, segment := range segments {
		// A colon in the first segment would end a scheme.
		segments[i] = strings.ReplaceAll(url.PathEscape(segment), ":", "%3A")
	}
	uri := strings.Join(segments, "/")
	if strings.HasPrefix(uri, "/") {
		return "file://" + uri
	}
	return uri
}

// inside returns a path relative to the working directory, and an absolute one if
// the file is not below it.
func inside(path string) string {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return filepath.Clean(path)
	}
	working, err := filepath.Abs(".")
	if err != nil {
		return absolute
	}
	relative, err := filepath.Rel(working, absolute)
	if err != nil || relative == ".." || strings.HasPrefix(relative, ".."+string(filepath.Separator)) {
		return absolute
	}
	return relative
}

// writeGitHub writes workflow commands, which GitHub Actions shows beside the
// lines of a change
// (https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands).
func writeGitHub(w io.Writer, all []finding) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, f := range all {
		b.WriteString("::" + f.Severity.String() + " ")
		if f.File != "" {
			b.WriteString("file=" + property.Replace(uncontrolled(filepath.ToSlash(inside(f.File)))) + ",")
		}
		if f.Line > 0 {
			fmt.Fprintf(&b, "line=%d,", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, "col=%d,", f.Column)
			}
		}
		what := schema.Problem{Path: f.Path, Message: f.Message, Hint: f.Hint}.String()
		b.WriteString("title=" + property.Replace(string(f.Rule)) + "::" + data.Replace(what) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// uncontrolled writes out the control characters of a name that a workflow
// command has no escape for.
func uncontrolled(name string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(name, string(utf8.RuneError)) {
		if unicode.IsControl(r) && r != '\n' && r != '\r' {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
