package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// The types of version 2.1.0 of the Static Analysis Results Interchange Format
// (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html), with the fields
// that GitHub's code scanning reads. An empty list of results is written, not omitted,
// because it closes old alerts.
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

// SARIF writes the findings as one SARIF document. version is the version of the program.
//
//   - A finding without a file gets the location of the checked file, and no location if
//     no file was checked.
//   - A finding without a line gets line 1, because code scanning requires a line.
//   - executionSuccessful is false if a file could not be read.
func SARIF(w io.Writer, findings []Finding, version string) error {
	rules := position.Rules()
	run := sarifRun{
		Tool:       sarifTool{sarifDriver{Name: "cmwa", Version: version}},
		ColumnKind: "unicodeCodePoints", Results: []sarifResult{},
	}
	for _, rule := range rules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules,
			sarifRule{string(rule.Rule), sarifText{rule.Description}})
	}

	readAll := true
	repeats := map[string]int{} // number of results with the same fingerprint
	for _, f := range findings {
		readAll = readAll && f.Rule != position.RuleUnreadable
		what := position.Problem{Path: f.Path, Message: f.Message}.String()
		result := sarifResult{
			RuleID: string(f.Rule), Level: f.Severity.String(), Message: sarifText{what},
			RuleIndex: slices.IndexFunc(rules, func(rule position.RuleInfo) bool { return rule.Rule == f.Rule }),
			Locations: []sarifLocation{},
		}
		if f.Hint != "" {
			result.Message.Text += "\n" + f.Hint
		}
		if file := cmp.Or(f.File, f.Checked); file != "" {
			var location sarifLocation
			location.PhysicalLocation.ArtifactLocation.URI = relativeURI(file)
			location.PhysicalLocation.Region = sarifRegion{max(f.Line, 1), f.Column}
			result.Locations = append(result.Locations, location)
		}

		// The fingerprint has no line, so that an alert stays the same when its line moves.
		sum := sha256.Sum256([]byte(f.File + "\x00" + string(f.Rule) + "\x00" + what))
		hash := hex.EncodeToString(sum[:8])
		repeats[hash]++
		result.PartialFingerprints = map[string]string{
			"primaryLocationLineHash": fmt.Sprintf("%s:%d", hash, repeats[hash]),
		}
		run.Results = append(run.Results, result)
	}
	run.Invocations = []sarifInvocation{{readAll}}
	return WriteJSON(w, sarifLog{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run},
	})
}

// relativeURI returns the URI of a file relative to the working directory, or an
// absolute URI if the file is outside of it.
func relativeURI(path string) string {
	path = inside(path)
	segments := strings.Split(filepath.ToSlash(path), "/")
	for i, segment := range segments {
		// Escape colons: text before a colon in the first segment would be a scheme.
		segments[i] = strings.ReplaceAll(url.PathEscape(segment), ":", "%3A")
	}
	uri := strings.Join(segments, "/")
	if strings.HasPrefix(uri, "/") {
		return "file://" + uri
	}
	return uri
}
