package runner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Variables that the runner adds. PULUMI_WORKFLOW_ROOT is specific to this agent: it is the
// root of the job, in which the scripts of cmwa-cloud create their directories. Pulumi documents
// the other variables.
const (
	envFileVariable = "PULUMI_ENV_FILE"
	rootVariable    = "PULUMI_WORKFLOW_ROOT"
	serviceVariable = "PULUMI_SERVICE_URL" // the value ends with /api
	oidcVariable    = "PULUMI_OIDC_TOKEN"
)

// defaultPath is the PATH of steps if the instance has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type environ map[string]string

// newEnviron returns the environment of the first step. Later sources override earlier
// ones: defaults for PATH and HOME, the environment of the process (from the image), the
// OIDC token, TRACEPARENT, the variables of the job, those that the agent forwards, and
// PULUMI_WORKFLOW_ROOT. PULUMI_SERVICE_URL is added if the environment of the process does
// not contain it. Errors contain the names of variables, never values.
func newEnviron(process []string, h *runtime.Handoff, definition *cloud.Definition) (environ, error) {
	env := environ{"PATH": defaultPath, homeVariable: h.Root}
	for _, entry := range process {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			env[name] = value
		}
	}
	delete(env, "PWD") // the directories of the runner are not those of a step
	delete(env, "OLDPWD")
	if _, ok := env[serviceVariable]; !ok {
		env[serviceVariable] = h.Service + "/api"
	}
	if h.OIDC != "" {
		env[oidcVariable] = h.OIDC
	}
	if h.TraceParent != "" {
		env["TRACEPARENT"] = h.TraceParent
	}

	for _, name := range slices.Sorted(maps.Keys(definition.Env)) {
		value := definition.Env[name]
		if value.Ciphertext != "" {
			return nil, fmt.Errorf(
				"the service sent the variable %q encrypted, and only the service can decrypt it", name)
		}
		env[name] = value.Value.Reveal()
	}
	maps.Copy(env, h.Forward)
	env[rootVariable] = h.Root
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if reason := variableProblem(name, env[name]); reason != "" {
			return nil, fmt.Errorf("the variable %q cannot be set: %s", name, reason)
		}
	}
	return env, nil
}

// maxVariable is the longest NAME=VALUE in bytes that Linux passes to a program
// (execve(2), MAX_ARG_STRLEN), without the terminating zero byte.
const maxVariable = 128<<10 - 1

// variableProblem returns why a variable cannot be passed to a program; empty if it can.
func variableProblem(name, value string) string {
	switch {
	case name == "":
		return "it has no name"
	case strings.ContainsAny(name, "=\x00"), strings.Contains(value, "\x00"):
		return "it contains a character that no variable may have"
	case len(name)+1+len(value) > maxVariable:
		return fmt.Sprintf("it is longer than %d bytes, the limit of the system", maxVariable)
	}
	return ""
}

// list returns the environment as NAME=VALUE, sorted, for a step that starts in a
// directory.
func (e environ) list(directory string) []string {
	all := make([]string, 0, len(e)+1)
	for name, value := range e {
		all = append(all, name+"="+value)
	}
	if _, ok := e["PWD"]; !ok {
		all = append(all, "PWD="+directory)
	}
	slices.Sort(all)
	return all
}
