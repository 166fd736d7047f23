package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// vetted is what one real cmwa vet has done.
type vetted struct {
	code           int
	stdout, stderr string
}

// vet runs the real cmwa vet in a folder. Of variables it has these alone.
func vet(t testing.TB, folder, stdin string, environ []string, args ...string) vetted {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "cmwa"), append([]string{"vet"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = folder, strings.NewReader(stdin), &stdout, &stderr
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

// folderOf puts files into a new folder.
func folderOf(t testing.TB, content map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestVetTellsEverythingOfAllFilesInEachFormat(t *testing.T) {
	for _, format := range vetFormats() {
		t.Run(format, func(t *testing.T) {
			got := vet(t, "testdata/vet", "token_file: /token\nlog_level: 5\n", []string{"PULUMI_AGENT_LOG_LVL=" + canary},
				"agent.yaml", "missing.yaml", "worker-pod.json", "-", "configmap.yaml", "folder", "all.yaml", "clean.yaml", "--format", format)
			if got.code != 2 || got.stderr != "" {
				t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
			}
			golden := filepath.Join("testdata/vet/golden", format)
			if *update {
				put(t, golden, got.stdout, 0o644)
			}
			if diff := cmp.Diff(content(t, golden), got.stdout); diff != "" {
				t.Errorf("run with -update if this is right:\n%s", diff)
			}
		})
	}
}

func TestVetOfWhatIsCleanIsSilent(t *testing.T) {
	folder := folderOf(t, map[string]string{"a.yaml": "token: " + canary, "pod.json": `{"spec": {}}`})
	for format, holds := range map[string]string{"text": "", "github": "", "json": `"problems": []`, "sarif": `"results": []`} {
		got := vet(t, folder, "", nil, "--format", format, "a.yaml", "pod.json")
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, holds) || holds == "" && got.stdout != "" {
			t.Errorf("%s: %+v", format, got)
		}
	}
	got := vet(t, "../../examples", "", nil, "docker.yaml", "pools.yaml", "process.yaml", "oidc.yaml", "reference.yaml")
	if (got != vetted{}) {
		t.Errorf("the examples: %+v", got)
	}
	got = vet(t, "../../examples", "", nil, "kubernetes.yaml", "manifests/configmap.yaml", "gitops/agent.yaml")
	if (got != vetted{}) {
		t.Errorf("the examples for Kubernetes: %+v", got)
	}
}

func TestVetsExitCodeSaysHowBadItIs(t *testing.T) {
	folder := folderOf(t, map[string]string{
		"good.yaml": "token: pul-x", "warned.yaml": "token: pul-x\nworkflow_runners_embeddable: x", "bad.yaml": "token: pul-x\nlog_level: loud", "also.yaml": "log_level: loud",
	})
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{args: []string{"good.yaml"}},
		{args: []string{"warned.yaml"}, stdout: "warned.yaml:2:1: warning: workflow_runners_embeddable: has no effect\n"},
		{args: []string{"bad.yaml", "warned.yaml"}, code: 1, stdout: "bad.yaml:2:12: log_level: must be one of"},
		{args: []string{"none.yaml", "bad.yaml"}, code: 2, stdout: "none.yaml: there is no such file\nbad.yaml:2:12: log_level: must be one of"},
		{args: []string{"bad.yaml", "."}, code: 2, stdout: ".: this is a directory\n  hint: name the files in it, such as *.yaml\n"},
		{args: []string{"good.yaml/x"}, code: 2, stdout: "good.yaml/x: the file cannot be read: not a directory\n"},
		{args: []string{"/dev/zero"}, code: 1, stdout: "/dev/zero: the file is larger than 1024 KiB\n"},
		{args: []string{"bad.yaml", "--format", "xml"}, code: 2, stderr: "--format must be one of text, json, sarif, github"},
		{args: []string{"bad.yaml", "--colour"}, code: 2, stderr: "flag provided but not defined"},
		{args: []string{"-", "bad.yaml", "-"}, code: 2, stderr: "name - once"},
		{args: []string{"--", "--format", "bad.yaml"}, code: 2, stdout: "--format: there is no such file\nbad.yaml:2:12: "},
		{args: []string{"--format=github", "bad.yaml", "--format", "json", "--", "-x.yaml"}, code: 2, stdout: `"file": "-x.yaml"`},
		{args: []string{"bad.yaml", "--help"}, stderr: "Nothing is printed if nothing is wrong"},
	} {
		// one that ends the flags is the whole command line's, so it stands behind a file
		if c.args[0] == "--" {
			c.args = append([]string{"good.yaml"}, c.args...)
		}
		got := vet(t, folder, "", nil, c.args...)
		if got.code != c.code || !strings.Contains(got.stdout, c.stdout) || !strings.Contains(got.stderr, c.stderr) || c.stdout == "" && got.stdout != "" || c.stderr == "" && got.stderr != "" {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
	if message, hint := unreadable("x", &fs.PathError{Op: "open", Path: canary, Err: syscall.EACCES}); !strings.Contains(message, "may not read") || hint == "" {
		t.Errorf("no permission: %s, %s", message, hint)
	}
	if message, _ := unreadable("x", errors.New(canary)); strings.Contains(message, canary) {
		t.Errorf("another's words: %s", message)
	}
}

func TestVetWithoutAFileTakesTheOneThatRunWould(t *testing.T) {
	folder := folderOf(t, map[string]string{schema.FileName: "log_level: loud", "other.yaml": "log_level: quiet\nsyslog: 5"})
	bad := schema.FileName + ":1:12: log_level: must be one of"
	if got := vet(t, folder, "", nil); got.code != 1 || !strings.Contains(got.stdout, bad) {
		t.Errorf("in the folder: %+v", got)
	}
	if got := vet(t, folder, "", []string{"PULUMI_AGENT_CONFIG=other.yaml"}); got.code != 1 || !strings.Contains(got.stdout, "other.yaml:2:9: syslog: must be true or false") {
		t.Errorf("that a variable names: %+v", got)
	}
	if got := vet(t, folder, "", []string{"PULUMI_AGENT_CONFIG=none.yaml"}); got.code != 2 || !strings.Contains(got.stderr, "PULUMI_AGENT_CONFIG names") {
		t.Errorf("that is not there: %+v", got)
	}
	empty := folderOf(t, nil)
	if got := vet(t, empty, "", nil); got.code != 2 || !strings.Contains(got.stderr, "there is no pulumi-workflow-agent.yaml in .") {
		t.Errorf("no file at all: %+v", got)
	}
	if got := vet(t, empty, "", []string{"PULUMI_AGENT_TOKEN=" + canary, "PULUMI_AGENT_LOG_LEVEL=loud"}); got.code != 1 || got.stdout != "PULUMI_AGENT_LOG_LEVEL: must be one of debug, info, warn, error\n" {
		t.Errorf("variables alone: %+v", got)
	}
}

func TestVetSaysWhatIsWrongWithAVariableOnce(t *testing.T) {
	folder := folderOf(t, map[string]string{"a.yaml": "token: pul-x", "b.yaml": "token: pul-y"})
	got := vet(t, folder, "", []string{"PULUMI_AGENT_LOG_LEVEL=loud"}, "a.yaml", "b.yaml", "a.yaml")
	if strings.Count(got.stdout, "PULUMI_AGENT_LOG_LEVEL") != 1 {
		t.Errorf("%+v", got)
	}
}

func TestVetReadsPipesAndEndsWithASignal(t *testing.T) {
	bin, err := programs()
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
	stdin.Close() // the other pipe stays open, and is waited for
	limit := time.AfterFunc(storyLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	// A pipe that is full shows that the program reads: more than fits is written.
	if _, err := to.Write(bytes.Repeat([]byte("#\n"), 200_000)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	_ = cmd.Wait() // the code tells
	if code := cmd.ProcessState.ExitCode(); code != 2 || err != nil || len(text) > 0 {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
}

// odd are names that a line, an annotation or a URI takes for something else.
var odd = []string{"a:b.yaml", "new\nline.yaml", "es\x1b[31mcape.yaml", "100%.yaml", "a,b.yaml", "blank .yaml", "é.yaml", "#x.yaml", "?x.yaml", "q\"uote.yaml", "raw\xff.yaml", "::error::x.yaml", "\r.yaml"}

func TestOddNamesStayNamesInEachFormat(t *testing.T) {
	content := map[string]string{}
	for _, name := range odd {
		content[name] = "token: pul-x\nlog_level: loud"
	}
	folder := folderOf(t, content)

	text := vet(t, folder, "", nil, odd...)
	lines := strings.Split(strings.TrimSuffix(text.stdout, "\n"), "\n")
	for i, line := range lines {
		if !regexp.MustCompile(`^("([^"\\]|\\.)*"|[^":]+):2:12: log_level: must be`).MatchString(line) || strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("line %d: %q", i+1, line)
		}
	}
	if len(lines) != len(odd) {
		t.Errorf("%d lines for %d files", len(lines), len(odd))
	}

	var document struct{ Problems []struct{ File string } }
	if err := json.Unmarshal([]byte(vet(t, folder, "", nil, append(odd, "--format", "json")...).stdout), &document); err != nil {
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
	if err := json.Unmarshal([]byte(vet(t, folder, "", nil, append(odd, "--format", "sarif")...).stdout), &log); err != nil {
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
	got := vet(t, folder, "", nil, append(odd, "--format", "github")...)
	if diff := cmp.Diff(commands.String(), got.stdout); diff != "" {
		t.Errorf("github:\n%s", diff)
	}
}

// TestTheReportForCodeScanningIsOneThatGitHubTakes checks what the standard, and
// GitHub beyond it, ask of a file
// (https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning).
func TestTheReportForCodeScanningIsOneThatGitHubTakes(t *testing.T) {
	folder := folderOf(t, map[string]string{
		"a.yaml": "token: pul-x\ndocker: {network: [x]}\nlog_level: loud\n", "b.yaml": "token: 'pul-x\n", "c.yaml": "{}", "d.yaml": "token: pul-x",
	})
	outside := fileOf(t, "outside.yaml", "log_level: loud")
	got := vet(t, folder, "log_level: loud", []string{"PULUMI_AGENT_SYSLOG=x"}, "--format", "sarif",
		"./a.yaml", filepath.Join(folder, "b.yaml"), "c.yaml", "d.yaml", "none.yaml", outside, "-")
	type object = map[string]any
	var log object
	if err := json.Unmarshal([]byte(got.stdout), &log); err != nil {
		t.Fatal(err)
	}
	runs, _ := log["runs"].([]any)
	if log["version"] != "2.1.0" || !strings.HasSuffix(fmt.Sprint(log["$schema"]), "sarif-2.1.0.json") || len(runs) != 1 {
		t.Fatalf("version %v, schema %v, %d runs", log["version"], log["$schema"], len(runs))
	}
	run := runs[0].(object)
	if run["columnKind"] != "unicodeCodePoints" || run["invocations"].([]any)[0].(object)["executionSuccessful"] != false {
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
		print, _ := result["partialFingerprints"].(object)["primaryLocationLineHash"].(string)
		if text == "" || print == "" || prints[print] {
			t.Errorf("text %q, fingerprint %q, again: %t", text, print, prints[print])
		}
		prints[print] = true
		locations := result["locations"].([]any)
		if len(locations) != 1 {
			t.Fatalf("%d locations", len(locations))
		}
		physical := locations[0].(object)["physicalLocation"].(object)
		uri, _ := physical["artifactLocation"].(object)["uri"].(string)
		if u, err := url.Parse(uri); err != nil || u.Scheme != "" && u.Scheme != "file" || u.Scheme == "" && strings.HasPrefix(uri, "/") {
			t.Errorf("URI %q, %v", uri, err)
		}
		region := physical["region"].(object)
		column, hasColumn := region["startColumn"].(float64)
		if line, _ := region["startLine"].(float64); line < 1 || hasColumn && column < 1 {
			t.Errorf("region %v", region)
		}
		places = append(places, fmt.Sprintf("%v %s %v:%v", result["ruleId"], filepath.Base(uri), region["startLine"], region["startColumn"]))
	}
	want := []string{
		"value a.yaml 2:19", "value a.yaml 3:12", "value a.yaml 1:<nil>", // the variable's problem comes last in the file's
		"syntax b.yaml 1:1", "missing-token c.yaml 1:<nil>",
		"unreadable none.yaml 1:<nil>", "missing-token outside.yaml 1:<nil>", "value outside.yaml 1:12", "missing-token %3Cstdin%3E 1:<nil>", "value %3Cstdin%3E 1:12",
	}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Errorf("places:\n%s", diff)
	}
}

func TestTheJSONReportHoldsTheSameFieldsForEveryProblem(t *testing.T) {
	folder := folderOf(t, map[string]string{"a.yaml": "log_level: loud\nx: y\n"})
	var report struct {
		Version  int              `json:"version"`
		Problems []map[string]any `json:"problems"`
	}
	decoder := json.NewDecoder(strings.NewReader(vet(t, folder, "", []string{"PULUMI_AGENT_SYSLOG=x"}, "a.yaml", "none.yaml", "--format", "json").stdout))
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
		for _, field := range []string{"line", "column"} {
			if _, ok := p[field].(float64); !ok {
				t.Errorf("%s of %v", field, p)
			}
		}
		if len(p) != 8 {
			t.Errorf("%d fields: %v", len(p), p)
		}
	}
}
