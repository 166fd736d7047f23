package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// readmes are the documents for users.
var readmes = []string{
	"../../README.md", "../../.github/SECURITY.md", "README.md", "troubleshooting.md", "../cmwa-cloud/README.md",
	jobsDocument,
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

// TestReadmeVet runs the command cmwa vet of the README, and compares the output.
func TestReadmeVet(t *testing.T) {
	_, want, found := strings.Cut(readText(t, "../../README.md"), "\n$ cmwa vet pulumi-workflow-agent.yaml\n")
	want, _, closed := strings.Cut(want, "```\n")
	if !found || !closed {
		t.Fatal("the README does not show cmwa vet")
	}
	t.Chdir(t.TempDir())
	const config = "token_file: pool.token\nlog_level: info\npoling_interval: 30s\nhttp_server_port: 80800\n"
	noError(t, os.WriteFile("pulumi-workflow-agent.yaml", []byte(config), 0o600))
	if got := cmwa(nil, "vet", "pulumi-workflow-agent.yaml"); got.stderr != want && got.stdout != want {
		t.Errorf("exit code %d, document -, cmwa +:\n%s", got.code, cmp.Diff(want, got.stdout+got.stderr))
	}
}

// notRun are the commands of the documents that no test runs as they are, by their beginning, and the
// reason. TestReadmeCommands checks the name and the flags of those of cmwa.
var notRun = map[string]string{
	"sudo ":           "changes this machine",
	"(cd /etc/cmwa":   "changes this machine",
	"make ":           "builds for minutes: TestMake, TestMakeInstall, TestImage, TestDemo; the target must exist",
	"docker ":         "needs an engine: TestImageEngine",
	"crane ":          "needs a registry",
	"curl ":           "needs the network",
	"kubectl ":        "needs a cluster: TestKustomize",
	"helm ":           "needs helm and a cluster: TestChart, TestInstallHelm",
	"cat >":           "needs a token",
	"cp token ":       "needs a token",
	"sed ":            "needs an agent: TestReload",
	"rmdir ":          "removes what agents of this machine use",
	"mkdir ":          "is of no interest alone",
	"export ":         "is of no interest alone",
	"bin/cmwa-cloud ": "is of another program: TestReadmeQuickStart",
	"bin/cmwa ":       "needs an agent or a terminal",
	"cmwa ":           "needs an agent, or is run by TestReadmeVet and TestReadmePodTemplate",
}

// TestReadmeCommands checks the commands in the documents: each is one of notRun, cmwa has the command
// and its flags, the Makefile has the target, and the repository has the files below examples.
func TestReadmeCommands(t *testing.T) {
	program := newProgram(t.Context(), stdio{})
	checkCmwa := func(line string) {
		fields := strings.Fields(line)
		i := slices.IndexFunc(program.Commands, func(c command.Command) bool { return c.Name == fields[1] })
		if i < 0 {
			if !slices.Contains([]string{"completion", "help", "version"}, fields[1]) {
				t.Errorf("%s: cmwa has no command %s", line, fields[1])
			}
			return
		}
		for _, field := range fields[2:] {
			name, isFlag := strings.CutPrefix(field, "--")
			name, _, _ = strings.Cut(name, "=")
			if isFlag && !slices.ContainsFunc(program.Commands[i].Options(),
				func(o command.Option) bool { return o.Name == name }) {
				t.Errorf("%s: cmwa %s has no flag --%s", line, fields[1], name)
			}
		}
	}
	inline := regexp.MustCompile("`(cmwa [a-z][^`]*)`")
	invocation := regexp.MustCompile(`(?:^|bin/|\| |-- |sudo |STATE_DIRECTORY=\S+ )(cmwa [a-z].*)`)
	target := regexp.MustCompile(`\bmake ([a-z]+)`)
	example := regexp.MustCompile(`\bexamples/[a-z/.-]+`)
	makefile := readText(t, "../../Makefile")
	commands := 0
	for _, document := range readmes {
		text := readText(t, document)
		for _, found := range inline.FindAllStringSubmatch(strings.ReplaceAll(text, "\n", " "), -1) {
			line, _, _ := strings.Cut(found[1], `\|`) // a pipe, in a table
			checkCmwa(line)
		}
		for _, line := range commandsOf(text) {
			commands++
			if !slices.ContainsFunc(slices.Collect(maps.Keys(notRun)),
				func(begin string) bool { return strings.HasPrefix(line, begin) }) {
				t.Errorf("%s: %s: run this command in a test, or add it to notRun with the reason", document, line)
			}
			if found := invocation.FindStringSubmatch(line); found != nil && !strings.Contains(line, "/cmwa:") {
				checkCmwa(strings.TrimRight(found[1], ")"))
			}
			for _, found := range target.FindAllStringSubmatch(line, -1) {
				if !strings.Contains(makefile, "\n"+found[1]+":") {
					t.Errorf("%s: %s: the Makefile has no target %s", document, line, found[1])
				}
			}
			for _, path := range example.FindAllString(line, -1) {
				if _, err := os.Stat(filepath.Join("../..", path)); err != nil && !strings.HasSuffix(path, "/token") {
					t.Errorf("%s: %s: %v", document, line, err)
				}
			}
		}
	}
	if commands < 40 {
		t.Errorf("only %d commands found", commands)
	}
}

// commandsOf returns the commands in the blocks of a document that contain commands, each in one line
// and without its comment. In a block with $, only the lines with $ are commands.
func commandsOf(text string) (commands []string) {
	blocks := regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```").FindAllStringSubmatch(text, -1)
	comment := regexp.MustCompile(`\s+#.*`)
	for _, block := range blocks {
		language, content := block[1], strings.ReplaceAll(block[2], "\\\n", "")
		if language != "" && language != "console" || strings.Contains(content, "rate(") ||
			strings.HasPrefix(content, "made for the job") {
			continue
		}
		transcript := strings.HasPrefix(content, "$ ")
		for line := range strings.Lines(content) {
			line, prompt := strings.CutPrefix(comment.ReplaceAllString(strings.TrimSpace(line), ""), "$ ")
			if line != "" && prompt == transcript {
				commands = append(commands, line)
			}
		}
	}
	return commands
}

// readText returns the content of a file.
func readText(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	noError(t, err)
	return string(content)
}
