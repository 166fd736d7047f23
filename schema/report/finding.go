package report

import (
	"path/filepath"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Finding is a problem as a report shows it.
type Finding struct {
	position.Problem
	Checked string           // the file that was checked; a problem of a variable has no File
	Excerpt position.Excerpt // of the line of the problem; may be empty
}

// Findings returns the problems of one checked file as findings. It omits a problem that is in
// reported, and adds the others to it: the same problem of a variable occurs for each checked
// file, and that of a ConfigMap for each container that refers to it.
func Findings(file string, problems position.Problems, reported map[position.Problem]bool) []Finding {
	var findings []Finding
	for _, p := range problems {
		if reported[p] {
			continue
		}
		reported[p] = true
		findings = append(findings, Finding{Problem: p, Checked: file})
	}
	return findings
}

// inside returns a path relative to the working directory, or an absolute path if the
// file is not below it.
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
	if err != nil || !filepath.IsLocal(relative) {
		return absolute
	}
	return relative
}
