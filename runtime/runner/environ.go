package runner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Variables that the runner itself adds. PULUMI_WORKFLOW_ROOT is our own: where
// compiled scripts put their folders. The others are documented by Pulumi.
const (
	envFileVariable = "PULUMI_ENV_FILE"
	rootVariable    = "PULUMI_WORKFLOW_ROOT"
	serviceVariable = "PULUMI_SERVICE_URL" // with /api
	oidcVariable    = "PULUMI_OIDC_TOKEN"
)

// defaultPath is the PATH of an environment that has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ is the environment of steps.
type environ map[string]string

// newEnviron makes the environment of the first step. Later ones win: the
// process's own (the image's), what the runner adds, the job's, what the agent
// forwards. Its errors name variables and never values.
func newEnviron(process []string, h *runtime.Handover, definition *cloud.Definition) (environ, error) {
	env := environ{"PATH": defaultPath, homeVariable: h.Root}
	for _, entry := range process {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			env[name] = value
		}
	}
	delete(env, "PWD") // of the runner, not of the step
	delete(env, "OLDPWD")
	if _, ok := env[serviceVariable]; !ok {
		env[serviceVariable] = h.Service + "/api"
	}
	if h.OIDC != "" {
		env[oidcVariable] = h.OIDC
	}
	for _, name := range slices.Sorted(maps.Keys(definition.Env)) {
		value := definition.Env[name]
		if value.Ciphertext != "" {
			return nil, fmt.Errorf("the service sent the variable %q encrypted, and only the service can decrypt it", name)
		}
		env[name] = value.Value.Reveal()
	}
	maps.Copy(env, h.Forward)
	env[rootVariable] = h.Root
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if reason := unfit(name, env[name]); reason != "" {
			return nil, fmt.Errorf("the variable %q cannot be set: %s", name, reason)
		}
	}
	return env, nil
}

// maxVariable is the longest NAME=VALUE in bytes that Linux hands to a program
// (execve(2), MAX_ARG_STRLEN), the zero at its end left out.
const maxVariable = 128<<10 - 1

// unfit says why a variable cannot be handed to a program.
func unfit(name, value string) string {
	switch {
	case name == "":
		return "it has no name"
	case strings.ContainsAny(name, "=\x00"), strings.Contains(value, "\x00"):
		return "it holds a character that no variable may have"
	case len(name)+1+len(value) > maxVariable:
		return fmt.Sprintf("it is longer than %d bytes, the most that a program can be given", maxVariable)
	}
	return ""
}

// list is the environment as programs take it, sorted, for a step that starts
// in a directory.
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
