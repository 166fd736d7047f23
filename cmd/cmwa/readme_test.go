package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema"
)

// readmes are the documents for users.
var readmes = []string{
	"../../README.md", "../../.github/SECURITY.md", "README.md", "troubleshooting.md", "migration.md", "events.md",
	"../cmwa-cloud/README.md",
	jobsDocument,
	"../../examples/kubernetes/README.md", "../../examples/chart/README.md", "../../examples/gitops/README.md",
}

// TestReadmeKubernetes checks that the documents name the versions of Kubernetes that the toolchain builds.
func TestReadmeKubernetes(t *testing.T) {
	minor := func(modules string) string {
		text := readText(t, "../../testdata/toolchain/kube/"+modules)
		return regexp.MustCompile(`k8s\.io/kubernetes v(1\.\d+)`).FindStringSubmatch(text)[1]
	}
	want := "Kubernetes " + minor("oldest.mod") + " to " + minor("newest.mod")
	for _, document := range []string{"../../README.md", chartDirectory + "/README.md"} {
		if !strings.Contains(readText(t, document), want) {
			t.Errorf("%s does not name %s", document, want)
		}
	}
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
	step := transcriptOf(t, jobsDocument, "cmwa vet --pod agent.yaml")[0]
	t.Chdir(directoryOf(t, map[string]string{"agent.yaml": yamlAbove(t, jobsDocument, "$ "+step.command)}))
	want := output{0, step.output, ""}
	if got := cmwa(nil, strings.Fields(step.command)[1:]...); got != want {
		t.Errorf("exit code %d, stderr %q, document -, cmwa +:\n%s", got.code, got.stderr,
			cmp.Diff(want.stdout, got.stdout))
	}
}

// TestReadmeVet runs the command cmwa vet of the README, and compares the output.
func TestReadmeVet(t *testing.T) {
	const config = "token_file: pool.token\nlog_level: info\npoling_interval: 30s\nhttp_server_port: 80800\n"
	step := transcriptOf(t, "../../README.md", "cmwa vet")[0]
	t.Chdir(directoryOf(t, map[string]string{schema.FileName: config}))
	if got := cmwa(nil, strings.Fields(step.command)[1:]...); got.stderr != step.output && got.stdout != step.output {
		t.Errorf("exit code %d, document -, cmwa +:\n%s", got.code, cmp.Diff(step.output, got.stdout+got.stderr))
	}
}

// TestReadmeLiveEdit runs the commands with which the README starts, and waits for the lines that it
// shows below each of them, in their order.
func TestReadmeLiveEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	directory := directoryOf(t, map[string]string{schema.FileName: strings.Join([]string{
		"token: " + w.pool, "service_url: " + w.url, "deploy_target: process", "max_concurrent_workflows: 2",
		"polling_interval: 1s", "http_server_port: 0", "working_directory: " + w.bin, "",
	}, "\n")})
	var agent *program
	left := regexp.MustCompile(`(?m)^\S+Z | component=\S+`)
	log := func() string {
		text := strings.ReplaceAll(left.ReplaceAllString(agent.output(), ""), directory, "/etc/cmwa")
		return regexp.MustCompile(`version=\S+`).ReplaceAllString(text, "version=v1.0.0")
	}
	read := 0 // bytes of the log
	for i, step := range transcriptOf(t, "../../README.md", "cmwa run &") {
		if p := w.shell(directory, step.command); i == 0 {
			agent = p
		} else {
			p.exit(cli.ExitOK)
		}
		for line := range strings.Lines(strings.ReplaceAll(step.output, "\n    ", " ")) {
			line = strings.TrimSpace(line)
			w.eventually("the agent logs "+line, func() bool {
				text := log()[read:]
				at := strings.Index(text, line)
				read += max(0, at)
				return at >= 0
			})
		}
	}
}

// TestReadmeControl runs an agent as the document about git shows it, and controls it with the commands
// of README.md.
func TestReadmeControl(t *testing.T) {
	t.Parallel()
	const gitops = "../../examples/gitops/README.md"
	w := newWorld(t, "process")
	directory := directoryOf(t, map[string]string{schema.FileName: w.settings([]string{
		"pools: [{name: blue, token: " + w.pool + "}]", "working_directory: " + w.bin, "http_server_port: 0",
	})})
	agent := w.shell(directory, commandsIn(t, gitops, "cmwa run ")[0])
	agent.waitFor("converged")
	watch := w.shell(directory, commandsIn(t, gitops, "cmwa status --watch")[0])
	watch.waitForMatch(regexp.MustCompile(`blue +polling`))

	commands := commandsIn(t, "README.md", "cmwa ")
	logged := []string{"pool paused by cmwa pause", "pool resumed by cmwa resume", `agent stopped reason="cmwa drain"`}
	if len(commands) != len(logged) {
		t.Fatalf("the document has the commands %q", commands)
	}
	for i, command := range commands {
		w.shell(directory, command).exit(cli.ExitOK)
		agent.waitFor(logged[i])
		if i == 0 {
			watch.waitForMatch(regexp.MustCompile(`blue +paused`)) // before the next command resumes the pool
		}
	}
	agent.exit(cli.ExitOK)
}

// TestReadmeService runs the walkthrough of cmwa-cloud, from its start to a deployment by an agent. The test
// replaces the port and the repository.
func TestReadmeService(t *testing.T) {
	t.Parallel()
	const document = "../cmwa-cloud/README.md"
	w := newWorld(t, "process")
	repository := directoryOf(t, map[string]string{
		"Pulumi.yaml": "name: project\nruntime: yaml\noutputs: {greeting: hello}\n",
	})
	w.shell(repository, "git init --quiet --initial-branch main && git add . && "+
		"git -c user.name=test -c user.email=test@example.com commit --quiet --message program").exit(cli.ExitOK)
	port := strconv.Itoa(freePort(t))
	replace := strings.NewReplacer("8585", port, "--data data &", "--data data --listen 127.0.0.1:"+port+" &",
		"--repo URL", "--repo file://"+repository).Replace
	directory := directoryOf(t, map[string]string{
		schema.FileName: replace(yamlAbove(t, document, "bin/cmwa run &")) + "http_server_port: 0\n" +
			"working_directory: " + w.bin + "\nstate_directory: " + t.TempDir() + "\n",
	})
	w.must(os.Symlink(w.bin, filepath.Join(directory, "bin")))

	exported := "export PULUMI_HOME=" + t.TempDir() + "\n" // for the credentials of pulumi login
	ready := []string{"listening on", "converged"}
	for _, command := range commandsIn(t, document, "bin/", "export ", "pulumi ") {
		if strings.HasPrefix(command, "export ") {
			exported += replace(command) + "\n"
			continue
		}
		p := w.shell(directory, exported+replace(command))
		if strings.HasSuffix(command, " &") {
			p.waitFor(ready[0])
			ready = ready[1:]
			continue
		}
		p.exit(cli.ExitOK)
		if strings.Contains(command, " deploy ") {
			p.wantPrinted(1, "the deployment succeeded")
			return
		}
	}
	t.Error("the document has no deployment")
}

// TestReadmeInstall runs the commands of the documents that install the agent in a cluster. In place of
// those that need a cluster, it runs commands that print the same objects.
func TestReadmeInstall(t *testing.T) {
	t.Parallel()
	const chart = "../../examples/chart/README.md"
	w := newWorld(t, "process")
	offline := strings.NewReplacer("helm install", "helm template", "kubectl apply -k", "kubectl kustomize",
		"helm upgrade", "helm template", "--reuse-values", "--values values.yaml", // those of the release
		"helm test agent", "helm template agent examples/chart --values values.yaml",
		"kubectl create namespace", "kubectl create --dry-run=client namespace")
	for _, document := range []string{"../../README.md", chart, kustomizeDirectory + "/README.md"} {
		directory := directoryOf(t, map[string]string{
			"token": "pul-1\n", "examples/kubernetes/overlays/jobs-namespace/token": "pul-1\n",
			"values.yaml": "agent: {token: pul-1}\n" + yamlAbove(t, chart, "helm template"),
		})
		w.must(os.CopyFS(filepath.Join(directory, "examples"), os.DirFS("../../examples")))
		for _, command := range commandsIn(t, document,
			"cp token ", "cat >", "helm ", "kubectl create ", "kubectl apply ") {
			p := w.shell(directory, offline.Replace(command), helmVariable, kubectlVariable)
			p.exit(cli.ExitOK)
			if prints := !strings.Contains(command, "| cmwa vet") &&
				(strings.HasPrefix(command, "helm ") || strings.Contains(command, "apply")); prints {
				p.wantPrinted(1, "kind: Deployment\n")
			}
		}
	}
}

// transcriptStep is a command, and the lines that a document shows below it.
type transcriptStep struct{ command, output string }

// transcriptOf returns the commands of a block with $ from the one that begins with first to the end.
func transcriptOf(t *testing.T, document, first string) (steps []transcriptStep) {
	t.Helper()
	_, text, found := strings.Cut(readText(t, document), "\n$ "+first)
	text, _, closed := strings.Cut(first+text, "```\n")
	if !found || !closed {
		t.Fatalf("%s does not show %s", document, first)
	}
	for part := range strings.SplitSeq(text, "\n$ ") {
		command, output, _ := strings.Cut(part, "\n")
		steps = append(steps, transcriptStep{commandComment.ReplaceAllString(command, ""), output})
	}
	return steps
}

// yamlAbove returns the last block of YAML above a text of a document.
func yamlAbove(t *testing.T, document, text string) string {
	t.Helper()
	above, _, _ := strings.Cut(readText(t, document), text)
	blocks := strings.Split(above, "```yaml\n")
	block, _, found := strings.Cut(blocks[len(blocks)-1], "```\n")
	if !found {
		t.Fatalf("%s has no YAML above %s", document, text)
	}
	return block
}

// commandsIn returns the commands of a document that begin with one of these texts: at least one.
func commandsIn(t *testing.T, document string, begins ...string) (commands []string) {
	t.Helper()
	for _, command := range commandsOf(readText(t, document)) {
		if slices.ContainsFunc(begins, func(begin string) bool { return strings.HasPrefix(command, begin) }) {
			commands = append(commands, command)
		}
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no command that begins with one of %q", document, begins)
	}
	return commands
}

// shell starts a command of a document with bash in a directory. Its programs are those of the world and
// the tools of these variables. A command that ends in & also runs in the foreground of its bash.
func (w *world) shell(directory, command string, tools ...string) *program {
	w.t.Helper()
	path := w.bin
	for _, variable := range tools {
		path += ":" + filepath.Dir(tool(w.t, variable))
	}
	env := []string{"PATH=" + path + ":" + os.Getenv("PATH"), "KUBECONFIG=" + os.Getenv("CMWA_TEST_KUBECONFIG")}
	return w.startIn(directory, "shell", env, "/bin/bash", "-euo", "pipefail", "-c", strings.TrimSuffix(command, " &"))
}

// runBy are the commands of the documents that a test extracts and runs, by their beginning, and the test.
var runBy = map[string]string{
	"cmwa run &": "TestReadmeLiveEdit", "sed ": "TestReadmeLiveEdit",
	"cmwa run --config ": "TestReadmeControl", "cmwa status --watch": "TestReadmeControl",
	"cmwa pause ": "TestReadmeControl", "cmwa resume ": "TestReadmeControl", "cmwa drain ": "TestReadmeControl",
	"cmwa vet --pod ": "TestReadmePodTemplate", "cmwa vet pulumi": "TestReadmeVet",
	"cp token ": "TestReadmeInstall", "cat >": "TestReadmeInstall", "helm ": "TestReadmeInstall",
	"helm test ":    "TestInstallHelm",
	"cmwa migrate ": "TestMigrateDocument", "cmwa vet new.yaml": "TestMigrateDocument",
	"(echo config:; ":             "TestMigrateDocument",
	"kubectl --namespace pulumi ": "TestInstallOriginalDeployment",
	"kubectl create ":             "TestReadmeInstall", "kubectl apply ": "TestReadmeInstall",
	"kubectl -n cmwa ": "TestKustomizeOnCluster", "kubectl get ": "TestKustomizeOnCluster",
	"sudo dpkg ": "TestPackages", "sudo usermod ": "TestPackages", "sudo -u cmwa ": "TestPackages",
	"sudo systemctl ": "TestPackages", "sudo cmwa ": "TestPackages",
	"docker load ": "TestImage", "docker run ": "TestImage", "sudo chown -R 65532 ": "TestImage",
	"bin/cmwa-cloud pool ": "TestReadmeQuickStart", "bin/cmwa-cloud deploy ": "TestReadmeQuickStart",
	"bin/cmwa-cloud config ": "TestReadmeQuickStart", "bin/cmwa-cloud activity ": "TestReadmeQuickStart",
	"bin/cmwa-cloud backup ": "TestReadmeQuickStart", "bin/cmwa-cloud restore ": "TestReadmeQuickStart",
	"bin/cmwa-cloud serve --data data &": "TestReadmeService", "bin/cmwa run &": "TestReadmeService",
	"export ": "TestReadmeService", "pulumi login ": "TestReadmeService",
}

// notRun are the commands of the documents that no test runs as they are, by their beginning, and the
// reason. TestReadmeCommands checks the name and the flags of those of cmwa.
var notRun = map[string]string{
	"sudo useradd ":         "changes this machine",
	"sudo chown -R cmwa ":   "changes this machine",
	"make build":            "also installs on this machine; TestMake and TestMakeInstall run the targets",
	"make image":            "TestImage runs it in a copy of the sources, with another version",
	"crane ":                "needs a registry",
	"curl ":                 "needs the network",
	"rmdir ":                "removes what agents of this machine use",
	"docker volume rm ":     "removes what agents of this machine use",
	"bin/cmwa configure":    "needs an account",
	"bin/cmwa doctor":       "needs an account",
	"bin/cmwa run":          "needs an account",
	"bin/cmwa-cloud serve ": "is like that of TestReadmeService, or needs the network for the keys of an issuer",
}

// TestReadmeCommands checks the commands in the documents: each is one of runBy or notRun, cmwa has the
// command and its flags, the Makefile has the target, and the repository has the files below examples.
// Each test of runBy exists, and each beginning is in a document.
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
		c := program.Commands[i]
		if len(c.Commands) > 0 {
			i = slices.IndexFunc(c.Commands, func(c command.Command) bool { return c.Name == fields[2] })
			if i < 0 {
				t.Errorf("%s: cmwa %s has no command %s", line, fields[1], fields[2])
				return
			}
			c = c.Commands[i]
		}
		for _, field := range fields[2:] {
			name, isFlag := strings.CutPrefix(field, "--")
			name, _, _ = strings.Cut(name, "=")
			if isFlag && !slices.ContainsFunc(c.Options(),
				func(o command.Option) bool { return o.Name == name }) {
				t.Errorf("%s: %s has no flag --%s", line, c.Name, name)
			}
		}
	}
	inline := regexp.MustCompile("`(cmwa [a-z][^`]*)`")
	invocation := regexp.MustCompile(`(?:^|bin/|\| |-- |sudo |STATE_DIRECTORY=\S+ )(cmwa [a-z].*)`)
	target := regexp.MustCompile(`\bmake ([a-z]+)`)
	example := regexp.MustCompile(`\bexamples/[a-z/.-]+`)
	makefile := readText(t, "../../Makefile")
	commands, unused := 0, maps.Clone(notRun)
	maps.Copy(unused, runBy)
	begins := slices.Collect(maps.Keys(unused))
	for _, document := range readmes {
		text := readText(t, document)
		for _, found := range inline.FindAllStringSubmatch(strings.ReplaceAll(text, "\n", " "), -1) {
			line, _, _ := strings.Cut(found[1], `\|`) // a pipe, in a table
			checkCmwa(line)
		}
		for _, line := range commandsOf(text) {
			commands++
			known := slices.DeleteFunc(slices.Clone(begins),
				func(begin string) bool { return !strings.HasPrefix(line, begin) })
			if len(known) == 0 {
				t.Errorf("%s: %s: run this command in a test, or add it to notRun with the reason", document, line)
			}
			for _, begin := range known {
				delete(unused, begin)
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
	for begin := range unused {
		t.Errorf("no document has a command that begins with %q: remove it from runBy or notRun", begin)
	}
	tests := ""
	for _, directory := range []string{".", "../cmwa-cloud", "../../testdata/toolchain/release"} {
		files, err := filepath.Glob(filepath.Join(directory, "*_test.go"))
		noError(t, err)
		for _, file := range files {
			tests += readText(t, file)
		}
	}
	for begin, name := range runBy {
		if !strings.Contains(tests, "\nfunc "+name+"(t *testing.T) {") {
			t.Errorf("there is no test %s, which runs %s", name, begin)
		}
	}
}

// commandComment matches the comment of a command.
var commandComment = regexp.MustCompile(`\s+#.*`)

// commandsOf returns the commands in the blocks of a document that contain commands, each in one line
// and without its comment. In a block with $, only the lines with $ are commands.
func commandsOf(text string) (commands []string) {
	blocks := regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```").FindAllStringSubmatch(text, -1)
	for _, block := range blocks {
		language, content := block[1], strings.ReplaceAll(block[2], "\\\n", "")
		if language != "" && language != "console" || strings.Contains(content, "rate(") ||
			strings.HasPrefix(content, "made for the job") {
			continue
		}
		transcript := strings.HasPrefix(content, "$ ")
		for line := range strings.Lines(content) {
			line, prompt := strings.CutPrefix(commandComment.ReplaceAllString(strings.TrimSpace(line), ""), "$ ")
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
