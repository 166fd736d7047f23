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

// rule forbids imports, and gives the reason. The fields from and to are lists of import paths, separated
// by spaces. The paths in from, and those in to that start with ./, are below the module. A star at the
// end of a path stands for any characters.
type rule struct{ from, to, why string }

// groundFloor lists the packages that every other package may import.
var groundFloor = []string{
	"./schema/secret",     // both configurations and jobs contain secrets
	"./schema/printable",  // every part of the module prints values from outside
	"./runtime/killpoint", // its functions do nothing in a usual build
	"./runtime/selfcheck", // every part of the module provides checks for cmwa doctor
}

// never lists the forbidden imports, at least one for each package.
var never = []rule{
	{"*", "./cmd/cmwa ./cmd/cmwa-cloud ./cmd/workflow-runner", "nothing imports a command"},
	{"*", "./runtime/runtimetest", "production code does not import its fakes"},
	{"*", "./runtime/kube/kubetest", "production code does not import the cluster of its tests"},
	{"*", "./runtime/browsertest", "production code does not import the browser of its tests"},
	{"*", "./cloud/server/servertest", "production code does not import what only tests use"},
	{"*", "github.com/docker/docker*", "that module is frozen; its successor is github.com/moby/moby/client"},
	{"*", "gopkg.in/yaml.v3", "that module is archived; its successor is go.yaml.in/yaml/v3"},
	{"schema* reconcile* runtime* cloud*", "./cmd/*", "programs pass the version and their stdio as arguments"},

	{"cmd/cmwa", "./cloud/server", "the agent does not contain the self-hosted service"},
	{"cmd/cmwa/*", "./cmd/cmwa/*", "the parts of cmd/cmwa do not import each other"},
	{"cmd/cmwa/configure", "./runtime*", "it writes a configuration and runs nothing"},
	{"cmd/cmwa/configure", "./reconcile*", "it writes a configuration and applies nothing"},
	{"cmd/cmwa/configure/filetest", "./runtime*", "it writes files and runs nothing"},
	{"cmd/cmwa/control", "./cloud*", "it passes requests to the loop and calls no service"},
	{"cmd/cmwa/control", "./runtime/*", "it passes requests to the loop and runs no job"},
	{"cmd/cmwa/control", "net/http", "the socket is limited to its owner, but HTTP pages are not"},
	{"cmd/cmwa/doctor", "./cloud*", "it receives the checks of a service as functions"},
	{
		"cmd/cmwa/doctor", "./runtime/docker ./runtime/kube ./runtime/process github.com/moby/* k8s.io/*",
		"it receives the checks of an executor as functions",
	},
	{"cmd/cli/command", "./runtime* ./reconcile* ./cloud*", "it describes commands and does not run them"},
	{"cmd/cli/command", "./schema", "callers pass the keys of the schema"},
	{"cmd/cli/command", "./cmd/cmwa*", "programs describe their commands to it"},
	{"cmd/cmwa/input", "./runtime*", "it reads files and runs nothing"},
	{"cmd/cmwa/input", "./reconcile*", "it reads files and applies nothing"},
	{"cmd/cmwa/logging", "./runtime* ./cloud*", "it writes lines and does not know what they are about"},
	{"cmd/cmwa/tracing", "./cloud* ./reconcile* ./schema* ./runtime/*", "it exports what pools have recorded"},
	{
		"schema* reconcile* runtime* cloud*", "go.opentelemetry.io/*",
		"pools record times and do not know who exports them",
	},
	{"cmd/cmwa/pods", "./cloud*", "the Pods of a configuration do not depend on a service"},
	{"cmd/cmwa/pods", "k8s.io/client-go*", "the Pods of a configuration are rendered without a cluster"},
	{"cmd/cmwa-cloud cmd/workflow-runner", "./cmd/cmwa/*", "these packages are parts of cmd/cmwa"},
	{"cmd/cmwa-cloud", "./schema*", "the service reads no configuration of an agent"},
	{"cmd/cmwa-cloud", "./reconcile*", "the service reconciles nothing"},
	{"cmd/cmwa-cloud", "./runtime/*", "the service runs no job"},
	{"cmd/cli", "./*", "it knows the process and nothing that a program does"},
	{"cmd/workflow-runner", "./cmd/cli/command", "the runner has no flags, and is copied into every job"},

	{"schema*", "./runtime*", "a configuration does not depend on how jobs run"},
	{"schema*", "./reconcile*", "a configuration does not depend on how it is applied"},
	{"schema*", "./cloud*", "a configuration is read without a service"},
	{"schema*", "net/http", "a configuration is not read from the network"},
	{"schema*", "github.com/fsnotify/*", "only reconcile/watch watches files"},
	{"schema*", "k8s.io/*", "Pods are checked with types in CUE, without the code of Kubernetes"},
	{"schema*", "github.com/moby/*", "a configuration is read without an engine"},
	{"schema", "./schema/effective", "loading a configuration does not depend on how it is printed"},
	{"schema", "./schema/report", "finding a problem does not depend on how it is printed"},
	{"schema/position", "./*", "positions and problems are the same for every kind of file"},
	{"schema/position", "cuelang.org/*", "YAML is read without the schema"},
	{"schema/podtemplate", "./schema", "a template is checked without the configuration that names it"},
	{"schema/podtemplate/podgen", "./*", "the generator reads the API of Kubernetes and nothing of this module"},
	{"schema/jsonschema", "./*", "an expression is translated without knowing which key has it"},
	{
		"schema/report", "./schema ./schema/podtemplate cuelang.org/*",
		"the formats of problems do not depend on what was checked",
	},
	{"schema/effective", "cuelang.org/*", "the settings that it renders are loaded already"},
	{"schema/printable schema/secret", "./*", "every other package may import it, so it imports none of them"},

	{"reconcile", "./cloud* net/http", "the loop receives pools from a function and knows no service"},
	{
		"reconcile", "./runtime/* github.com/moby/* k8s.io/*",
		"the loop receives pools from a function and knows no executor",
	},
	{"reconcile", "./reconcile/status", "the loop returns its status and does not know how it is reported"},
	{"reconcile", "cuelang.org/*", "the loop reads a typed configuration"},
	{"reconcile", "github.com/fsnotify/*", "only reconcile/watch watches files"},
	{"reconcile/watch", "./*", "it compares bytes and does not interpret them"},
	{"reconcile/status", "./cloud*", "a status is made from snapshots, without a call of a service"},
	{
		"reconcile/status", "./runtime/* github.com/moby/* k8s.io/*",
		"a status is made from snapshots, without a call of an executor",
	},
	{"reconcile/status", "cuelang.org/*", "a status reads a typed configuration"},
	{"reconcile/status", "github.com/fsnotify/*", "it uses only the names of modes from reconcile/watch"},
	{
		"reconcile/status", "github.com/peterbourgon/* golang.org/x/term",
		"flags and terminals belong to the command",
	},

	{"runtime runtime/killpoint", "./*", "every package that runs jobs imports it, so it imports none of them"},
	{"runtime", "net/http", "it declares the interface to a service and makes no call"},
	{"runtime/pool", "./schema*", "a pool runs without knowing the file that configures it"},
	{"runtime/pool", "./reconcile*", "a pool runs without knowing how it is reconciled"},
	{"runtime/pool", "./cloud* net/http", "a pool uses a service through the interface Cloud"},
	{"runtime/pool", "./runtime/*", "a pool uses an executor through the interface Executor"},
	{"runtime/selfcheck", "./*", "a check depends on nothing that it checks"},
	{"runtime/agentid", "./*", "an agent's id depends on nothing that it labels"},
	{"runtime/journal", "./schema*", "a record does not depend on the configuration"},
	{"runtime/journal", "./cloud*", "a journal keeps a job and knows no service"},
	{"runtime/journal", "./runtime/*", "a journal keeps a job and knows no executor"},
	{"runtime/docker runtime/kube runtime/process", "./cloud*", "an executor does not know the service"},
	{"runtime/docker runtime/kube runtime/process", "./schema*", "an executor does not know the configuration"},
	{
		"runtime/docker runtime/kube runtime/process", "./reconcile*",
		"an executor does not know how its pool is reconciled",
	},
	{"runtime/docker runtime/process", "./runtime/*", "executors do not import each other"},
	{"runtime/kube", "./runtime/docker ./runtime/process", "executors do not import each other"},
	{"runtime/kube", "./runtime/runner", "an executor starts the runner and does not contain it"},
	{
		"runtime/kube", "k8s.io/client-go/kubernetes*",
		"the clientset adds 15 MB to the program; a REST client for core/v1 is enough",
	},
	{"runtime/kube", "k8s.io/client-go/informers*", "it contains the clientset; a reflector is enough"},
	{"runtime/kube", "k8s.io/client-go/dynamic*", "only Pods are used, and their type is known"},
	{"runtime/kube", "k8s.io/client-go/discovery*", "only core/v1 is used, which every cluster has"},
	{"runtime/handoff", "./*", "both ends of a handoff import it, so it imports none of them"},
	{"runtime/handoff", "k8s.io/*", "the runner contains this package, and must stay small"},
	{"runtime/kube/records", "./runtime/kube k8s.io/*", "a store sends its requests through the interface Cluster"},
	{"runtime/kube/patch", "./*", "a patch is merged without knowing whose Pod it changes"},
	{"runtime/kube/patch", "k8s.io/client-go*", "a patch is merged without a cluster"},
	{"runtime/browsertest cloud/server/servertest", "./*", "what starts or shows a service does not depend on it"},
	{"runtime/kube/kubetest", "./*", "a cluster for tests does not depend on what is tested"},
	{
		"runtime/runner", "./runtime/docker ./runtime/process ./runtime/kube github.com/moby/* k8s.io/*",
		"the runner runs inside an instance and creates none",
	},
	{"runtime/runner", "./schema* ./reconcile*", "the runner reads the handoff and no configuration"},
	{"runtime/runtimetest", "./schema* ./reconcile*", "fakes and the suite work without a configuration"},
	{"runtime/runtimetest", "./runtime/*", "the suite is the same for every executor"},

	{"cloud", "./schema*", "the wire protocol does not depend on the configuration"},
	{"cloud", "./reconcile*", "the wire protocol does not depend on how pools are reconciled"},
	{"cloud", "./runtime/*", "the wire protocol does not depend on an executor"},
	{"cloud", "./cloud/server", "the client does not contain the self-hosted service"},
	{
		"cloud/server/store", "./cloud ./cloud/server/state ./schema* net/http",
		"the database knows neither HTTP nor what it stores",
	},
	{"cloud/server/objects", "./cloud* ./schema* net/http", "objects are bytes with keys"},
	{
		"cloud/server/keys", "./cloud* ./schema* net/http database/sql",
		"keys are wrapped without knowing what they encrypt",
	},
	{"cloud/server/state", "./* net/http database/sql os", "it computes with values, without a database or files"},
	{
		"cloud/server/page",
		"./cloud ./cloud/server ./cloud/server/store ./cloud/server/objects ./cloud/server/keys database/sql",
		"pages get values from the functions of a Source",
	},
	{"cloud/server/idtoken", "./cloud*", "tokens are verified without a service or a client"},
	{"cloud/server/idtoken", "net/http", "keys come from files and are never fetched"},
	{"cloud/server", "./schema* ./reconcile* ./runtime/*", "the service knows agents by the wire protocol only"},
}

// tooHeavy lists the packages that cmd/workflow-runner must not depend on, directly or
// indirectly, because the program is copied into every job.
const tooHeavy = "cuelang.org/* k8s.io/* github.com/moby/* github.com/fsnotify/* modernc.org/* " +
	"github.com/peterbourgon/* github.com/prometheus/* ./schema ./reconcile ./cloud/server"

// matches reports whether a path is in a list of a rule.
func matches(list, path string) bool {
	for pattern := range strings.FieldsSeq(list) {
		prefix, open := strings.CutSuffix(pattern, "*")
		if path == pattern || open && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// listed is a package. In its paths, ./ stands for the path of the module.
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
	text := strings.ReplaceAll(string(out), `"`+module, `"./`)
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
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
	for _, rule := range never {
		for from := range strings.FieldsSeq(rule.from) {
			named[from] = true
		}
	}
	for _, p := range packages {
		from := strings.TrimPrefix(p.ImportPath, "./")
		if !named[from] {
			t.Errorf("no rule names %s: add what it must never import, with the reason", from)
		}
		delete(named, from)
		for _, imported := range p.Imports {
			for _, rule := range never {
				if matches(rule.from, from) && matches(rule.to, imported) && imported != p.ImportPath &&
					!slices.Contains(groundFloor, imported) {
					t.Errorf("%s imports %s: %s", from, imported, rule.why)
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
			if matches(tooHeavy, dep) {
				t.Errorf("the runner depends on %s", dep)
			}
		}
	}
}
