package main

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

// vet runs the real cmwa vet in a directory. Its environment has only HOME and environ. The test
// fails if the output shows the token canary.
func vet(t testing.TB, directory, stdin string, environ []string, args ...string) output {
	t.Helper()
	cmd := exec.Command(staticCmwa(t), append([]string{"vet"}, args...)...)
	cmd.Dir, cmd.Stdin = directory, strings.NewReader(stdin)
	cmd.Env = append([]string{"HOME=" + t.TempDir()}, environ...)
	got := outputOf(t, cmd)
	if all := got.stdout + got.stderr; strings.Contains(all, canary[4:12]) {
		t.Errorf("the output shows the token:\n%s", all)
	}
	return got
}

// staticCmwa returns the path of a real cmwa, see [staticPrograms].
func staticCmwa(t testing.TB) string {
	t.Helper()
	bin, err := staticPrograms()
	noError(t, err)
	return filepath.Join(bin, "cmwa")
}

func TestVetFormats(t *testing.T) {
	for _, format := range vetFormats() {
		t.Run(format, func(t *testing.T) {
			got := vet(t, "testdata/vet", "token_file: /token\nlog_level: 5\n",
				[]string{"PULUMI_AGENT_LOG_LVL=" + canary}, "agent.yaml", "missing.yaml", "worker-pod.json", "-",
				"configmap.yaml", "directory", "all.yaml", "clean.yaml", "--format", format)
			if got.code != 2 || got.stderr != "" {
				t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
			}
			wantGolden(t, filepath.Join("testdata/vet/golden", format), got.stdout)
		})
	}
}

// wantGolden compares a text with a golden file. With -update it writes the file.
func wantGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		filetest.Put(t, file, got, 0o644)
	}
	if diff := cmp.Diff(filetest.Content(t, file), got); diff != "" {
		t.Errorf("%s differs; if that is right, run the test with -update:\n%s", file, diff)
	}
}

// TestVetPipes starts cmwa vet, which waits for input from a pipe, and ends it with an INT.
func TestVetPipes(t *testing.T) {
	cmd := exec.Command(staticCmwa(t), "vet", "-", "/dev/fd/3")
	var stdout bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout = []string{"HOME=/nowhere"}, strings.NewReader("log_level: loud\n"), &stdout
	from, to, err := os.Pipe()
	noError(t, err)
	defer to.Close() // this pipe stays open, so vet waits until it is closed
	cmd.ExtraFiles = []*os.File{from}
	noError(t, cmd.Start())
	from.Close()
	limit := time.AfterFunc(storyLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	_, err = to.Write(bytes.Repeat([]byte("#\n"), 200_000)) // more than the pipe holds, so vet must read it
	noError(t, err)
	noError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait() // the exit code is checked below
	if code := cmd.ProcessState.ExitCode(); code != 2 || stdout.Len() > 0 {
		t.Errorf("exit code %d: %s", code, &stdout)
	}
}

// TestVetOddNames checks that names reach the report unchanged, although their characters have a meaning
// in a line, an annotation or a URI. Package report tests each format with such names.
func TestVetOddNames(t *testing.T) {
	t.Parallel()
	odd := []string{"a:b.yaml", "new\nline.yaml", "es\x1b[31mcape.yaml", "100%.yaml", "a,b.yaml", "blank .yaml",
		"é.yaml", "#x.yaml", "?x.yaml", "q\"uote.yaml", "raw\xff.yaml", "::error::x.yaml", "\r.yaml"}
	const text = "token: pul-x\nlog_level: loud"
	content := map[string]string{}
	var want bytes.Buffer
	for _, name := range odd {
		content[name] = text
		problems := schema.Vet(schema.Source{Path: name, Content: []byte(text), Mode: 0o600})
		noError(t, report.GitHub(&want, report.Findings(name, problems, map[position.Problem]bool{})))
	}
	got := vet(t, directoryOf(t, content), "", nil, append(odd, "--format", "github")...)
	if diff := cmp.Diff(want.String(), got.stdout); diff != "" {
		t.Error(diff)
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
	var log struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			ColumnKind  string
			Invocations []map[string]any
			Tool        struct {
				Driver struct {
					Name, Version string
					Rules         []struct {
						ID               string
						ShortDescription struct{ Text string }
					}
				}
			}
			Results []struct {
				RuleID, Level       string
				RuleIndex           int
				Message             struct{ Text string }
				PartialFingerprints map[string]string
				Locations           []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           map[string]any
					}
				}
			}
		}
	}
	decode(t, []byte(got.stdout), &log)
	if log.Version != "2.1.0" || !strings.HasSuffix(log.Schema, "sarif-2.1.0.json") || len(log.Runs) != 1 {
		t.Fatalf("version %s, schema %s, %d runs", log.Version, log.Schema, len(log.Runs))
	}
	run := log.Runs[0]
	if run.ColumnKind != "unicodeCodePoints" || run.Invocations[0]["executionSuccessful"] != false {
		t.Errorf("columns in %v, invocations %v", run.ColumnKind, run.Invocations)
	}
	driver := run.Tool.Driver
	if driver.Name != "cmwa" || driver.Version == "" || len(driver.Rules) < 15 {
		t.Errorf("driver %s %s with %d rules", driver.Name, driver.Version, len(driver.Rules))
	}
	for _, rule := range driver.Rules {
		if text := rule.ShortDescription.Text; rule.ID == "" || text == "" || len(text) > 1024 {
			t.Errorf("rule %+v", rule)
		}
	}
	var places []string
	prints := map[string]bool{}
	for _, result := range run.Results {
		if driver.Rules[result.RuleIndex].ID != result.RuleID {
			t.Errorf("%s is not at %d", result.RuleID, result.RuleIndex)
		}
		if result.Level != "error" && result.Level != "warning" {
			t.Errorf("level %s", result.Level)
		}
		fingerprint := result.PartialFingerprints["primaryLocationLineHash"]
		if result.Message.Text == "" || fingerprint == "" || prints[fingerprint] {
			t.Errorf("text %q, fingerprint %q, duplicate: %t", result.Message.Text, fingerprint, prints[fingerprint])
		}
		prints[fingerprint] = true
		if len(result.Locations) != 1 {
			t.Fatalf("%d locations", len(result.Locations))
		}
		place := result.Locations[0].PhysicalLocation
		uri := place.ArtifactLocation.URI
		if u, err := url.Parse(uri); err != nil || u.Scheme != "" && u.Scheme != "file" || u.Scheme == "" &&
			strings.HasPrefix(uri, "/") {
			t.Errorf("URI %q, %v", uri, err)
		}
		places = append(places, fmt.Sprintf("%s %s %v:%v", result.RuleID, filepath.Base(uri),
			place.Region["startLine"], place.Region["startColumn"]))
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
