package report

import (
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Finding is a problem as a report shows it.
type Finding struct {
	position.Problem
	Checked string           // the file in whose check the problem was found; a variable has no other
	Excerpt position.Excerpt // of the line of the problem; may be empty
}

// Findings returns the problems of one checked file as findings. Problems of variables
// that reported contains are left out, because a variable overlays every file;
// Findings adds to reported.
func Findings(file string, problems position.Problems, reported map[position.Problem]bool) []Finding {
	var findings []Finding
	for _, p := range problems {
		if p.File == "" && reported[p] {
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
	if err != nil || relative == ".." || strings.HasPrefix(relative, ".."+string(filepath.Separator)) {
		return absolute
	}
	return relative
}
