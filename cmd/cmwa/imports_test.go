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

// arrow is a forbidden import, with its reason.
type arrow struct{ from, to, why string }

// groundFloor lists the packages that every other package may import.
var groundFloor = []string{
	module + "schema/secret",     // both configurations and jobs contain secrets
	module + "schema/printable",  // every part of the module prints values from outside
	module + "runtime/killpoint", // its functions do nothing in a usual build
	module + "runtime/selfcheck", // every part of the module provides checks for cmwa doctor
}

// never lists the forbidden imports, at least one for each package. The field from is the
// path of a package below the module. The field to is a complete import path. In rules with
// the from *, it may also be a path below the module. A star at the end of a path stands
// for any characters.
var never = []arrow{
	{"*", "cmd/cmwa", "nothing imports a command"},
	{"*", "cmd/cmwa-cloud", "nothing imports a command"},
	{"*", "cmd/workflow-runner", "nothing imports a command"},
	{"*", "runtime/runtimetest", "production code does not import its fakes"},
	{"*", "runtime/kube/kubetest", "production code does not import the cluster of its tests"},
	{"*", "github.com/docker/docker*", "that module is frozen; its successor is github.com/moby/moby/client"},
	{"*", "gopkg.in/yaml.v3", "that module is archived; its successor is go.yaml.in/yaml/v3"},

	{"cmd/cmwa", module + "cloud/server", "the agent does not contain the self-hosted service"},
	{"cmd/cmwa/*", module + "cmd/cmwa/*", "the parts of cmd/cmwa do not import each other"},
	{"cmd/cmwa/configure", module + "runtime*", "it writes a configuration and runs nothing"},
	{"cmd/cmwa/configure", module + "reconcile*", "it writes a configuration and applies nothing"},
	{"cmd/cmwa/configure/filetest", module + "runtime*", "it writes files and runs nothing"},
	{"cmd/cmwa/control", module + "cloud*", "it passes requests to the loop and calls no service"},
	{"cmd/cmwa/control", module + "runtime/*", "it passes requests to the loop and runs no job"},
	{"cmd/cmwa/control", "net/http", "the socket is limited to its owner, but HTTP pages are not"},
	{"cmd/cmwa/doctor", module + "cloud*", "it receives the checks of a service as functions"},
	{"cmd/cmwa/doctor", module + "runtime/docker", "it receives the checks of an executor as functions"},
	{"cmd/cmwa/doctor", module + "runtime/kube", "it receives the checks of an executor as functions"},
	{"cmd/cmwa/doctor", module + "runtime/process", "it receives the checks of an executor as functions"},
	{"cmd/cmwa/doctor", "github.com/moby/*", "it receives the checks of an executor as functions"},
	{"cmd/cmwa/doctor", "k8s.io/*", "it receives the checks of an executor as functions"},
	{"cmd/cli/command", module + "runtime*", "it describes commands and does not run them"},
	{"cmd/cli/command", module + "reconcile*", "it describes commands and does not run them"},
	{"cmd/cli/command", module + "cloud*", "it describes commands and does not run them"},
	{"cmd/cli/command", module + "schema", "callers pass the keys of the schema"},
	{"cmd/cli/command", module + "cmd/cmwa*", "programs describe their commands to it"},
	{"cmd/cmwa/input", module + "runtime*", "it reads files and runs nothing"},
	{"cmd/cmwa/input", module + "reconcile*", "it reads files and applies nothing"},
	{"cmd/cmwa/logging", module + "runtime*", "it writes lines and does not know what they are about"},
	{"cmd/cmwa/logging", module + "cloud*", "it writes lines and does not know what they are about"},
	{"cmd/cmwa/pods", module + "cloud*", "the Pods of a configuration do not depend on a service"},
	{"cmd/cmwa/pods", "k8s.io/client-go*", "the Pods of a configuration are rendered without a cluster"},
	{"cmd/cmwa-cloud", module + "cmd/cmwa/*", "these packages are parts of cmd/cmwa"},
	{"cmd/cmwa-cloud", module + "schema*", "the service reads no configuration of an agent"},
	{"cmd/cmwa-cloud", module + "reconcile*", "the service reconciles nothing"},
	{"cmd/cmwa-cloud", module + "runtime/*", "the service runs no job"},
	{"cmd/workflow-runner", module + "cmd/cmwa/*", "these packages are parts of cmd/cmwa"},
	{"cmd/cli", module + "*", "it knows the process and nothing that a program does"},
	{"cmd/workflow-runner", module + "cmd/cli/command", "the runner has no flags, and is copied into every job"},

	{"schema*", module + "cmd/*", "programs pass the version and their stdio as arguments"},
	{"schema*", module + "runtime*", "a configuration does not depend on how jobs run"},
	{"schema*", module + "reconcile*", "a configuration does not depend on how it is applied"},
	{"schema*", module + "cloud*", "a configuration is read without a service"},
	{"schema*", "net/http", "a configuration is not read from the network"},
	{"schema*", "github.com/fsnotify/*", "only reconcile/watch watches files"},
	{"schema*", "k8s.io/*", "Pods are checked with types in CUE, without the code of Kubernetes"},
	{"schema*", "github.com/moby/*", "a configuration is read without an engine"},
	{"schema", module + "schema/effective", "loading a configuration does not depend on how it is printed"},
	{"schema", module + "schema/report", "finding a problem does not depend on how it is printed"},
	{"schema/position", module + "*", "positions and problems are the same for every kind of file"},
	{"schema/position", "cuelang.org/*", "YAML is read without the schema"},
	{"schema/podtemplate", module + "schema", "a template is checked without the configuration that names it"},
	{
		"schema/podtemplate/podgen", module + "*",
		"the generator reads the API of Kubernetes and nothing of this module",
	},
	{"schema/jsonschema", module + "*", "an expression is translated without knowing which key has it"},
	{"schema/report", module + "schema", "the formats of problems do not depend on what was checked"},
	{"schema/report", module + "schema/podtemplate", "the formats of problems do not depend on what was checked"},
	{"schema/report", "cuelang.org/*", "the formats of problems do not depend on what was checked"},
	{"schema/effective", "cuelang.org/*", "the settings that it renders are loaded already"},
	{"schema/printable", module + "*", "every other package may import it, so it imports none of them"},
	{"schema/secret", module + "*", "every other package may import it, so it imports none of them"},

	{"reconcile*", module + "cmd/*", "programs pass the version and their stdio as arguments"},
	{"reconcile", module + "cloud*", "the loop receives pools from a function and knows no service"},
	{"reconcile", module + "runtime/*", "the loop receives pools from a function and knows no executor"},
	{"reconcile", module + "reconcile/status", "the loop returns its status and does not know how it is reported"},
	{"reconcile", "cuelang.org/*", "the loop reads a typed configuration"},
	{"reconcile", "net/http", "the loop receives pools from a function and knows no service"},
	{"reconcile", "github.com/fsnotify/*", "only reconcile/watch watches files"},
	{"reconcile", "github.com/moby/*", "the loop receives pools from a function and knows no executor"},
	{"reconcile", "k8s.io/*", "the loop receives pools from a function and knows no executor"},
	{"reconcile/watch", module + "*", "it compares bytes and does not interpret them"},
	{"reconcile/status", module + "cloud*", "a status is made from snapshots, without a call of a service"},
	{"reconcile/status", module + "runtime/*", "a status is made from snapshots, without a call of an executor"},
	{"reconcile/status", "cuelang.org/*", "a status reads a typed configuration"},
	{"reconcile/status", "github.com/fsnotify/*", "it uses only the names of modes from reconcile/watch"},
	{"reconcile/status", "github.com/moby/*", "a status is made from snapshots, without a call of an executor"},
	{"reconcile/status", "k8s.io/*", "a status is made from snapshots, without a call of an executor"},
	{"reconcile/status", "github.com/peterbourgon/*", "flags and terminals belong to the command"},
	{"reconcile/status", "golang.org/x/term", "flags and terminals belong to the command"},

	{"runtime*", module + "cmd/*", "programs pass the version and their stdio as arguments"},
	{"runtime", module + "*", "every package that runs jobs imports it, so it imports none of them"},
	{"runtime", "net/http", "it declares the interface to a service and makes no call"},
	{"runtime/pool", module + "schema*", "a pool runs without knowing the file that configures it"},
	{"runtime/pool", module + "reconcile*", "a pool runs without knowing how it is reconciled"},
	{"runtime/pool", module + "cloud*", "a pool uses a service through the interface Cloud"},
	{"runtime/pool", module + "runtime/*", "a pool uses an executor through the interface Executor"},
	{"runtime/pool", "net/http", "a pool uses a service through the interface Cloud"},
	{"runtime/selfcheck", module + "*", "a check depends on nothing that it checks"},
	{"runtime/agentid", module + "*", "an agent's id depends on nothing that it labels"},
	{"runtime/journal", module + "schema*", "a record does not depend on the configuration"},
	{"runtime/journal", module + "cloud*", "a journal keeps a job and knows no service"},
	{"runtime/journal", module + "runtime/*", "a journal keeps a job and knows no executor"},
	{"runtime/docker", module + "cloud*", "an executor does not know the service"},
	{"runtime/docker", module + "schema*", "an executor does not know the configuration"},
	{"runtime/docker", module + "reconcile*", "an executor does not know how its pool is reconciled"},
	{"runtime/docker", module + "runtime/*", "executors do not import each other"},
	{"runtime/kube", module + "cloud*", "an executor does not know the service"},
	{"runtime/kube", module + "schema*", "an executor does not know the configuration"},
	{"runtime/kube", module + "reconcile*", "an executor does not know how its pool is reconciled"},
	{"runtime/kube", module + "runtime/docker", "executors do not import each other"},
	{"runtime/kube", module + "runtime/process", "executors do not import each other"},
	{"runtime/kube", module + "runtime/runner", "an executor starts the runner and does not contain it"},
	{
		"runtime/kube", "k8s.io/client-go/kubernetes*",
		"the clientset adds 15 MB to the program; a REST client for core/v1 is enough",
	},
	{"runtime/kube", "k8s.io/client-go/informers*", "it contains the clientset; a reflector is enough"},
	{"runtime/kube", "k8s.io/client-go/dynamic*", "only Pods are used, and their type is known"},
	{"runtime/kube", "k8s.io/client-go/discovery*", "only core/v1 is used, which every cluster has"},
	{"runtime/killpoint", module + "*", "every package that runs jobs imports it, so it imports none of them"},
	{"runtime/handoff", module + "*", "both ends of a handoff import it, so it imports none of them"},
	{"runtime/handoff", "k8s.io/*", "the runner contains this package, and must stay small"},
	{"runtime/kube/records", module + "runtime/kube", "a store sends its requests through the interface Cluster"},
	{"runtime/kube/records", "k8s.io/*", "a store sends its requests through the interface Cluster"},
	{"runtime/kube/patch", module + "*", "a patch is merged without knowing whose Pod it changes"},
	{"runtime/kube/patch", "k8s.io/client-go*", "a patch is merged without a cluster"},
	{"runtime/kube/kubetest", module + "*", "a cluster for tests does not depend on what is tested"},
	{"runtime/process", module + "cloud*", "an executor does not know the service"},
	{"runtime/process", module + "schema*", "an executor does not know the configuration"},
	{"runtime/process", module + "reconcile*", "an executor does not know how its pool is reconciled"},
	{"runtime/process", module + "runtime/*", "executors do not import each other"},
	{"runtime/runner", module + "runtime/docker", "the runner runs inside an instance and creates none"},
	{"runtime/runner", module + "runtime/process", "the runner runs inside an instance and creates none"},
	{"runtime/runner", module + "runtime/kube", "the runner runs inside an instance and creates none"},
	{"runtime/runner", "github.com/moby/*", "the runner runs inside an instance and creates none"},
	{"runtime/runner", "k8s.io/*", "the runner runs inside an instance and creates none"},
	{"runtime/runner", module + "schema*", "the runner reads the handoff and no configuration"},
	{"runtime/runner", module + "reconcile*", "the runner reads the handoff and no configuration"},
	{"runtime/runtimetest", module + "schema*", "fakes and the suite work without a configuration"},
	{"runtime/runtimetest", module + "reconcile*", "fakes and the suite work without a configuration"},
	{"runtime/runtimetest", module + "runtime/*", "the suite is the same for every executor"},

	{"cloud*", module + "cmd/*", "programs pass the version and their stdio as arguments"},
	{"cloud", module + "schema*", "the wire protocol does not depend on the configuration"},
	{"cloud", module + "reconcile*", "the wire protocol does not depend on how pools are reconciled"},
	{"cloud", module + "runtime/*", "the wire protocol does not depend on an executor"},
	{"cloud", module + "cloud/server", "the client does not contain the self-hosted service"},
	{"cloud/server/idtoken", module + "cloud*", "tokens are verified without a service or a client"},
	{"cloud/server/idtoken", "net/http", "keys come from files and are never fetched"},
	{"cloud/server", module + "schema*", "the service knows agents by the wire protocol only"},
	{"cloud/server", module + "reconcile*", "the service knows agents by the wire protocol only"},
	{"cloud/server", module + "runtime/*", "the service knows agents by the wire protocol only"},
}

// tooHeavy lists the packages that cmd/workflow-runner must not depend on, directly or
// indirectly, because the program is copied into every job.
var tooHeavy = []string{
	"cuelang.org/*", "k8s.io/*", "github.com/moby/*", "github.com/fsnotify/*", "modernc.org/*",
	"github.com/peterbourgon/*", "github.com/prometheus/*",
	module + "schema", module + "reconcile", module + "cloud/server",
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

func TestImports(t *testing.T) {
	packages := list(t, module+"...")
	if len(packages) < 10 {
		t.Fatalf("only %d packages found", len(packages))
	}
	named := map[string]bool{}
	for _, law := range never {
		named[law.from] = true
	}
	for _, p := range packages {
		from := strings.TrimPrefix(p.ImportPath, module)
		if !named[from] {
			t.Errorf("no rule names %s: add what it must never import, with the reason", from)
		}
		delete(named, from)
		for _, imported := range p.Imports {
			for _, law := range never {
				to := law.to
				if law.from == "*" && !strings.Contains(strings.SplitN(to, "/", 2)[0], ".") {
					to = module + to
				}
				if matches(law.from, from) && matches(to, imported) && imported != p.ImportPath &&
					!slices.Contains(groundFloor, imported) {
					t.Errorf("%s imports %s: %s", from, strings.TrimPrefix(imported, module), law.why)
				}
			}
		}
	}
	for from := range named {
		if !strings.HasSuffix(from, "*") {
			t.Errorf("a rule names %s, which is not a package", from)
		}
	}
}

func TestImportsOfRunner(t *testing.T) {
	for _, p := range list(t, module+"cmd/workflow-runner") {
		for _, dep := range p.Deps {
			if slices.ContainsFunc(tooHeavy, func(pattern string) bool { return matches(pattern, dep) }) {
				t.Errorf("the runner depends on %s", dep)
			}
		}
	}
}
