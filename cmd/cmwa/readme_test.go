package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readmes are the documents for users.
var readmes = []string{
	"../../README.md", "../../.github/SECURITY.md", "README.md", "../cmwa-cloud/README.md", jobsDocument,
	"../../examples/kubernetes/README.md", "../../examples/chart/README.md", "../../examples/gitops/README.md",
}

// jobsDocument describes how jobs run in a cluster.
const jobsDocument = "../../examples/kubernetes/jobs.md"

// markdownLink matches a link to a file of this repository, or to a heading.
var markdownLink = regexp.MustCompile(`\]\(([^):]+)\)`)

// TestReadmeLinks checks that the files and headings exist to which the documents link.
func TestReadmeLinks(t *testing.T) {
	count := 0
	for _, document := range readmes {
		for _, link := range markdownLink.FindAllStringSubmatch(readText(t, document), -1) {
			count++
			file, heading, _ := strings.Cut(link[1], "#")
			target := document
			if file != "" {
				target = filepath.Join(filepath.Dir(document), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", document, link[1], err)
				continue
			}
			if heading != "" && !headings(readText(t, target))[heading] {
				t.Errorf("%s links to %s: there is no such heading", document, link[1])
			}
		}
	}
	if count < 15 {
		t.Errorf("only %d links found", count)
	}
}

// headings returns the anchors of a document, as GitHub makes them.
func headings(text string) map[string]bool {
	all := map[string]bool{}
	other := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			title = other.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			all[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return all
}

// TestReadmePodTemplate runs the command that jobsDocument shows, with the configuration
// that is above the command, and compares the output.
func TestReadmePodTemplate(t *testing.T) {
	text := readText(t, jobsDocument)
	_, text, found := strings.Cut(text, "## The Pod of a job\n")
	if !found {
		t.Fatal("the document has no section about the Pod of a job")
	}
	block := func(begin string) string {
		t.Helper()
		_, remaining, found := strings.Cut(text, begin)
		content, _, closed := strings.Cut(remaining, "```\n")
		if !found || !closed {
			t.Fatalf("the document has no block that begins with %q", begin)
		}
		return content
	}
	t.Chdir(t.TempDir())
	noError(t, os.WriteFile("agent.yaml", []byte(block("```yaml\n")), 0o600))
	want := output{0, block("$ cmwa vet --pod agent.yaml\n"), ""}
	if got := cmwa(nil, "vet", "--pod", "agent.yaml"); got != want {
		t.Errorf("exit code %d, stderr %q, document -, cmwa +:\n%s", got.code, got.stderr,
			cmp.Diff(want.stdout, got.stdout))
	}
}

// readText returns the content of a file.
func readText(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	noError(t, err)
	return string(content)
}
