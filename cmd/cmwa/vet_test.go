package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cmwa/configure/filetest"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// vetted is the result of one run of the real cmwa vet.
type vetted struct {
	code           int
	stdout, stderr string
}

// vet runs the real cmwa vet in a directory. Its environment has only HOME and environ. The test
// fails if the output shows the token canary.
func vet(t testing.TB, directory, stdin string, environ []string, args ...string) vetted {
	t.Helper()
	bin, err := staticPrograms()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "cmwa"), append([]string{"vet"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = directory, strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append([]string{"HOME=" + t.TempDir()}, environ...)
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if all := stdout.String() + stderr.String(); strings.Contains(all, canary[4:12]) {
		t.Errorf("the output shows the token:\n%s", all)
	}
	return vetted{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// directoryOf puts files into a new directory.
func directoryOf(t testing.TB, content map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func TestVetFormats(t *testing.T) {
	for _, format := range vetFormats() {
		t.Run(format, func(t *testing.T) {
			got := vet(t, "testdata/vet", "token_file: /token\nlog_level: 5\n", []string{"PULUMI_AGENT_LOG_LVL=" +
				canary},
				"agent.yaml", "missing.yaml", "worker-pod.json", "-", "configmap.yaml", "directory", "all.yaml",
				"clean.yaml", "--format", format)
			if got.code != 2 || got.stderr != "" {
				t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
			}
			golden := filepath.Join("testdata/vet/golden", format)
			if *update {
				filetest.Put(t, golden, got.stdout, 0o644)
			}
			if diff := cmp.Diff(filetest.Content(t, golden), got.stdout); diff != "" {
				t.Errorf("run with -update if this is right:\n%s", diff)
			}
		})
	}
}

// TestVetPipes starts cmwa vet, which waits for input from a pipe, and ends it with an INT.
func TestVetPipes(t *testing.T) {
	bin, err := staticPrograms()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "cmwa"), "vet", "-", "/dev/fd/3")
	cmd.Env = []string{"HOME=/nowhere"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	cmd.ExtraFiles = []*os.File{from}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	from.Close()
	if _, err := io.WriteString(stdin, "log_level: loud\n"); err != nil {
		t.Fatal(err)
	}
	stdin.Close() // the other pipe stays open, so vet waits until that pipe is closed
	limit := time.AfterFunc(storyLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	// Write more than the pipe holds: the write succeeds only if vet reads.
	if _, err := to.Write(bytes.Repeat([]byte("#\n"), 200_000)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	_ = cmd.Wait() // the exit code is checked below
	if code := cmd.ProcessState.ExitCode(); code != 2 || err != nil || len(text) > 0 {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
}

// odd are file names with characters that have a meaning in a line, an annotation or a URI.
var odd = []string{"a:b.yaml", "new\nline.yaml", "es\x1b[31mcape.yaml", "100%.yaml", "a,b.yaml", "blank .yaml",
	"é.yaml", "#x.yaml", "?x.yaml", "q\"uote.yaml", "raw\xff.yaml", "::error::x.yaml", "\r.yaml"}

func TestVetOddNames(t *testing.T) {
	t.Parallel()
	content := map[string]string{}
	for _, name := range odd {
		content[name] = "token: pul-x\nlog_level: loud"
	}
	directory := directoryOf(t, content)

	text := vet(t, directory, "", nil, odd...)
	lines := strings.Split(strings.TrimSuffix(text.stdout, "\n"), "\n")
	for i, line := range lines {
		if !regexp.MustCompile(`^("([^"\\]|\\.)*"|[^":]+):2:12: log_level: must be`).MatchString(line) ||
			strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("line %d: %q", i+1, line)
		}
	}
	if len(lines) != len(odd) {
		t.Errorf("%d lines for %d files", len(lines), len(odd))
	}

	var document struct{ Problems []struct{ File string } }
	if err := json.Unmarshal([]byte(vet(t, directory, "", nil, append(odd, "--format", "json")...).stdout),
		&document); err != nil {
		t.Fatal(err)
	}
	for i, p := range document.Problems {
		if p.File != strings.ToValidUTF8(odd[i], "\uFFFD") {
			t.Errorf("json: %q for %q", p.File, odd[i])
		}
	}

	var log struct {
		Runs []struct {
			Results []struct {
				Locations []struct {
					PhysicalLocation struct{ ArtifactLocation struct{ URI string } }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(vet(t, directory, "", nil, append(odd, "--format", "sarif")...).stdout),
		&log); err != nil {
		t.Fatal(err)
	}
	for i, result := range log.Runs[0].Results {
		uri, err := url.Parse(result.Locations[0].PhysicalLocation.ArtifactLocation.URI)
		if err != nil || uri.Scheme != "" || uri.Path != odd[i] || uri.Fragment != "" || uri.RawQuery != "" {
			t.Errorf("sarif: %v, %v for %q", uri, err, odd[i])
		}
	}

	var commands bytes.Buffer
	for _, name := range odd {
		problems := schema.Vet(schema.Source{Path: name, Content: []byte(content[name]), Mode: 0o600})
		findings := report.Findings(name, problems, map[position.Problem]bool{})
		if err := report.GitHub(&commands, findings); err != nil {
			t.Fatal(err)
		}
	}
	got := vet(t, directory, "", nil, append(odd, "--format", "github")...)
	if diff := cmp.Diff(commands.String(), got.stdout); diff != "" {
		t.Errorf("github:\n%s", diff)
	}
}

// TestVetSARIF checks the rules of the standard, and the additional ones of GitHub. See
// https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning
func TestVetSARIF(t *testing.T) {
	directory := directoryOf(t, map[string]string{
		"a.yaml": "token: pul-x\ndocker: {network: [x]}\nlog_level: loud\n", "b.yaml": "token: 'pul-x\n",
		"c.yaml": "{}", "d.yaml": "token: pul-x",
	})
	outside := fileOf(t, "outside.yaml", "log_level: loud")
	got := vet(t, directory, "log_level: loud", []string{"PULUMI_AGENT_SYSLOG=x"}, "--format", "sarif",
		"./a.yaml", filepath.Join(directory, "b.yaml"), "c.yaml", "d.yaml", "none.yaml", outside, "-")
	type object = map[string]any
	var log object
	if err := json.Unmarshal([]byte(got.stdout), &log); err != nil {
		t.Fatal(err)
	}
	runs, _ := log["runs"].([]any)
	if log["version"] != "2.1.0" || !strings.HasSuffix(fmt.Sprint(log["$schema"]), "sarif-2.1.0.json") ||
		len(runs) != 1 {
		t.Fatalf("version %v, schema %v, %d runs", log["version"], log["$schema"], len(runs))
	}
	run := runs[0].(object)
	if run["columnKind"] != "unicodeCodePoints" ||
		run["invocations"].([]any)[0].(object)["executionSuccessful"] != false {
		t.Errorf("columns in %v, invocations %v", run["columnKind"], run["invocations"])
	}
	driver := run["tool"].(object)["driver"].(object)
	var rules []string
	for _, rule := range driver["rules"].([]any) {
		id, _ := rule.(object)["id"].(string)
		text, _ := rule.(object)["shortDescription"].(object)["text"].(string)
		if id == "" || text == "" || len(text) > 1024 {
			t.Errorf("rule %v", rule)
		}
		rules = append(rules, id)
	}
	if driver["name"] != "cmwa" || driver["version"] == "" || len(rules) < 15 {
		t.Errorf("driver %v %v with %d rules", driver["name"], driver["version"], len(rules))
	}
	var places []string
	prints := map[string]bool{}
	for _, one := range run["results"].([]any) {
		result := one.(object)
		index, _ := result["ruleIndex"].(float64)
		if rules[int(index)] != result["ruleId"] {
			t.Errorf("%v is not at %v", result["ruleId"], index)
		}
		if level := result["level"]; level != "error" && level != "warning" {
			t.Errorf("level %v", level)
		}
		text, _ := result["message"].(object)["text"].(string)
		fingerprint, _ := result["partialFingerprints"].(object)["primaryLocationLineHash"].(string)
		if text == "" || fingerprint == "" || prints[fingerprint] {
			t.Errorf("text %q, fingerprint %q, duplicate: %t", text, fingerprint, prints[fingerprint])
		}
		prints[fingerprint] = true
		locations := result["locations"].([]any)
		if len(locations) != 1 {
			t.Fatalf("%d locations", len(locations))
		}
		physical := locations[0].(object)["physicalLocation"].(object)
		uri, _ := physical["artifactLocation"].(object)["uri"].(string)
		if u, err := url.Parse(uri); err != nil || u.Scheme != "" && u.Scheme != "file" || u.Scheme == "" &&
			strings.HasPrefix(uri, "/") {
			t.Errorf("URI %q, %v", uri, err)
		}
		region := physical["region"].(object)
		column, hasColumn := region["startColumn"].(float64)
		if line, _ := region["startLine"].(float64); line < 1 || hasColumn && column < 1 {
			t.Errorf("region %v", region)
		}
		places = append(places, fmt.Sprintf("%v %s %v:%v", result["ruleId"], filepath.Base(uri),
			region["startLine"], region["startColumn"]))
	}
	want := []string{
		"value a.yaml 2:19", "value a.yaml 3:12", "value a.yaml 1:<nil>",
		// the third problem is that of the variable
		"syntax b.yaml 1:8", "missing-token c.yaml 1:<nil>",
		"unreadable none.yaml 1:<nil>", "missing-token outside.yaml 1:<nil>", "value outside.yaml 1:12",
		"missing-token %3Cstdin%3E 1:<nil>", "value %3Cstdin%3E 1:12",
	}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Errorf("places:\n%s", diff)
	}
}

func TestVetJSON(t *testing.T) {
	directory := directoryOf(t, map[string]string{"a.yaml": "log_level: loud\nx: y\n"})
	var report struct {
		Version  int              `json:"version"`
		Problems []map[string]any `json:"problems"`
	}
	decoder := json.NewDecoder(strings.NewReader(vet(t, directory, "", []string{"PULUMI_AGENT_SYSLOG=x"}, "a.yaml",
		"none.yaml", "--format", "json").stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil || report.Version != 1 || len(report.Problems) != 5 {
		t.Fatalf("%v: %+v", err, report)
	}
	for _, p := range report.Problems {
		for _, field := range []string{"severity", "rule", "file", "path", "message", "hint"} {
			if _, ok := p[field].(string); !ok {
				t.Errorf("%s of %v", field, p)
			}
		}
		fields := 6
		for _, field := range []string{"line", "column"} { // both are omitted if they are unknown
			if n, ok := p[field].(float64); ok && n > 0 {
				fields++
			}
		}
		if len(p) != fields || fields == 7 {
			t.Errorf("%d fields: %v", len(p), p)
		}
	}
}
