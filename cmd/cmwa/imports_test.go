package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cmwa-project/cmwa/"

// arrow is an import that must not be, with its reason.
type arrow struct{ from, to, why string }

// secrets is the one package that all others may import: its type stands in the
// vocabulary of what is written and in that of what runs.
const secrets = module + "schema/secret"

// never is the law of arrows between packages. From and to are packages of ours
// by their path below the module, or others by their whole path; a star at the
// end stands for everything below.
var never = []arrow{
	{"*", "cmd/cmwa", "nothing imports a command"},
	{"*", "cmd/cmwa-cloud", "nothing imports a command"},
	{"*", "cmd/workflow-runner", "nothing imports a command"},
	{"cmd/cli", module + "*", "it knows the process, and nothing that a program does"},
	{"cmd/cmwa/configure", module + "runtime*", "it writes what is desired and runs nothing"},
	{"cmd/cmwa/configure", module + "reconcile*", "it writes what is desired and applies nothing"},
	{"cmd/cmwa/command", module + "runtime*", "it describes commands and does not know what they do"},
	{"cmd/cmwa/command", module + "reconcile*", "it describes commands and does not know what they do"},
	{"cmd/cmwa/command", module + "cloud*", "it describes commands and does not know what they do"},
	{"cmd/cmwa/*", module + "cmd/cmwa/*", "the parts of cmd/cmwa do not know each other"},
	{"cmd/cmwa-cloud", module + "cmd/cmwa/*", "these packages are parts of cmd/cmwa"},
	{"cmd/workflow-runner", module + "cmd/cmwa/*", "these packages are parts of cmd/cmwa"},
	{"schema*", module + "cmd/*", "programs pass the version and their streams as arguments"},
	{"reconcile*", module + "cmd/*", "programs pass the version and their streams as arguments"},
	{"runtime*", module + "cmd/*", "programs pass the version and their streams as arguments"},
	{"cloud*", module + "cmd/*", "programs pass the version and their streams as arguments"},
	{"*", "runtime/runtimetest", "production code does not import its fakes"},
	{"schema/secret", module + "*", "all others may import it"},

	{"schema*", module + "runtime*", "what is written does not know what is run"},
	{"schema*", module + "reconcile*", "what is written does not know what is done with it"},
	{"schema*", module + "cloud*", "what is written does not know a service"},
	{"schema*", "net/http", "a configuration is read from values, not from the network"},
	{"schema*", "github.com/fsnotify/*", "only reconcile/watch watches"},
	{"schema*", "k8s.io/*", "Pods are checked from their types in CUE, without Kubernetes' own code"},
	{"schema*", "github.com/moby/*", "a configuration knows no engine"},
	{"schema/position", module + "*", "a position and a problem mean the same for every file"},
	{"schema", module + "schema/effective", "loading a configuration does not depend on how it is printed"},
	{"schema/effective", "cuelang.org/*", "it renders loaded settings"},
	{"schema/position", "cuelang.org/*", "YAML is read without the schema"},
	{"schema/report", module + "schema", "the formats of problems do not depend on what was checked"},
	{"schema/report", module + "schema/podtemplate", "the formats of problems do not depend on what was checked"},
	{"schema/report", module + "cmd*", "a format knows no command"},
	{"schema/report", "cuelang.org/*", "the formats of problems do not depend on what was checked"},
	{"schema/jsonschema", module + "*", "constraints are translated without knowing what they constrain"},
	{"schema/podtemplate", module + "schema", "a template is checked without the configuration that names it"},

	{"reconcile", module + "cloud*", "the loop is handed pools, and never meets a service"},
	{"reconcile", module + "runtime/*", "the loop is handed pools, and never meets an executor"},
	{"reconcile", "cuelang.org/*", "the loop reads typed configuration"},
	{"reconcile", "net/http", "the loop is handed pools, and never meets a service"},
	{"reconcile", "github.com/fsnotify/*", "only reconcile/watch watches"},
	{"reconcile", "github.com/moby/*", "the loop never meets an executor"},

	{"reconcile", module + "reconcile/status", "the loop returns its status and does not know how it is reported"},

	{"reconcile/watch", module + "*", "it compares bytes and does not interpret them"},

	{"reconcile/status", module + "cloud*", "a status is read from snapshots, which name a service and never call it"},
	{"reconcile/status", module + "runtime/*", "a status is read from snapshots, which name a target and never call it"},
	{"reconcile/status", "cuelang.org/*", "a status reads typed configuration"},
	{"reconcile/status", "github.com/fsnotify/*", "of reconcile/watch it uses the names of the modes only"},
	{"reconcile/status", "github.com/moby/*", "a status is read from snapshots, which name a target and never call it"},
	{"reconcile/status", "k8s.io/*", "a status is read from snapshots, which name a target and never call it"},
	{"reconcile/status", "github.com/peterbourgon/*", "flags and terminals belong to the command"},
	{"reconcile/status", "golang.org/x/term", "flags and terminals belong to the command"},

	{"runtime", module + "schema*", "what is run does not know what is written"},
	{"runtime", module + "reconcile*", "what is run does not know what is wanted"},
	{"runtime", module + "cloud*", "runtime says what it asks of a service; it does not know one"},
	{"runtime", module + "runtime/*", "runtime says what it asks of executors; it does not know one"},
	{"runtime", "net/http", "runtime does not know a service"},

	{"runtime/agentid", module + "*", "an id is known before anything that it labels"},

	{"runtime/docker", module + "cloud*", "an executor does not know the service"},
	{"runtime/docker", module + "schema*", "an executor does not know what is written"},
	{"runtime/docker", module + "reconcile*", "an executor does not know what is wanted"},
	{"runtime/docker", module + "runtime/*", "executors do not know each other"},
	{"runtime/process", module + "cloud*", "an executor does not know the service"},
	{"runtime/process", module + "schema*", "an executor does not know what is written"},
	{"runtime/process", module + "reconcile*", "an executor does not know what is wanted"},
	{"runtime/process", module + "runtime/*", "executors do not know each other"},
	{"runtime/runner", module + "runtime/docker", "the runner is inside, it makes no environment"},
	{"runtime/runner", module + "runtime/process", "the runner is inside, it makes no environment"},
	{"runtime/runner", module + "schema*", "the runner is told, it reads no configuration"},
	{"runtime/runner", module + "reconcile*", "the runner is told, it wants nothing"},

	{"cloud", module + "schema*", "the wire does not know what is written"},
	{"cloud", module + "reconcile*", "the wire does not know what is wanted"},
	{"cloud", module + "runtime/*", "the wire knows no executor"},
	{"cloud", module + "cloud/server", "a client does not know its server"},
	{"cloud/server", module + "schema*", "the service knows nothing of agents but the wire"},
	{"cloud/server", module + "reconcile*", "the service knows nothing of agents but the wire"},
	{"cloud/server", module + "runtime/*", "the service knows nothing of agents but the wire"},
	{"cmd/cmwa", module + "cloud/server", "the agent must not carry the local service with it"},
	{"cmd/cmwa-cloud", module + "schema*", "the local service reads no agent's configuration"},
	{"cmd/cmwa-cloud", module + "reconcile*", "the local service reconciles nothing"},
	{"cmd/cmwa-cloud", module + "runtime/*", "the local service runs no job"},

	{"*", "github.com/docker/docker*", "that module is frozen; its successor is github.com/moby/moby/client"},
	{"*", "gopkg.in/yaml.v3", "that module is archived; go.yaml.in/yaml/v3 goes on"},
}

// tooHeavy must not be anywhere in the tree of the workflow-runner, which is
// copied into every job.
var tooHeavy = []string{
	"cuelang.org/*", "k8s.io/*", "github.com/moby/*", "github.com/fsnotify/*", "modernc.org/*",
	"github.com/peterbourgon/*", "github.com/prometheus/*", module + "schema", module + "reconcile", module + "cloud/server",
}

func matches(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return pattern == path
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
}

func TestArrowsBetweenPackagesObeyTheHouse(t *testing.T) {
	packages := list(t, module+"...")
	if len(packages) < 10 {
		t.Fatalf("only %d packages found", len(packages))
	}
	for _, p := range packages {
		from := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasSuffix(from, "test") {
			continue
		}
		for _, imported := range p.Imports {
			for _, law := range never {
				to := law.to
				if law.from == "*" && !strings.Contains(strings.SplitN(to, "/", 2)[0], ".") {
					to = module + to
				}
				if matches(law.from, from) && matches(to, imported) && imported != p.ImportPath && imported != secrets {
					t.Errorf("%s imports %s: %s", from, strings.TrimPrefix(imported, module), law.why)
				}
			}
		}
	}
}

func TestTheRunnerStaysLight(t *testing.T) {
	for _, p := range list(t, module+"cmd/workflow-runner") {
		for _, dep := range p.Deps {
			if slices.ContainsFunc(tooHeavy, func(pattern string) bool { return matches(pattern, dep) }) {
				t.Errorf("the runner's tree holds %s", dep)
			}
		}
	}
}
