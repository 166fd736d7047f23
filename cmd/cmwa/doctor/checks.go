package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Parts is what the program passes in.
type Parts struct {
	// Find finds the configuration as cmwa run does.
	Find func() (schema.Source, error)
	// Environ looks up a variable.
	Environ func(string) (string, bool)
	// Agent returns further checks of the agent as a whole, and whether all its
	// instances are found by the agent's Pod, so that it needs no id.
	Agent func(*schema.Config) (checks []runtime.SelfCheck, owned bool)
	// Pool returns the checks of a pool: of its service and of its executor.
	Pool func(runtime.PoolSpec) []runtime.SelfCheck
}

// Checks loads the configuration, and returns the checks that it demands. The first
// one is that of the configuration itself; without a valid one there are no others.
func Checks(ctx context.Context, parts Parts) []Check {
	c, result := load(ctx, parts.Find)
	first := func(context.Context) runtime.CheckResult { return result }
	checks := []Check{{SelfCheck: runtime.SelfCheck{Name: "configuration", Run: first}}}
	if c == nil {
		return checks
	}

	// The agent as a whole.
	more, owned := parts.Agent(c)
	agent := func(name string, run func(context.Context) runtime.CheckResult) {
		checks = append(checks, Check{SelfCheck: runtime.SelfCheck{Name: name, Run: run}})
	}
	agent("configuration-mounts", func(context.Context) runtime.CheckResult { return checkMounts(c, watch.Frozen) })
	agent("state-folder", func(context.Context) runtime.CheckResult { return checkState(c, parts.Environ, owned) })
	agent("free-disk", func(context.Context) runtime.CheckResult {
		return checkDisks(folders(c, parts.Environ), spaceOf)
	})
	agent("http-server", func(ctx context.Context) runtime.CheckResult { return checkServer(ctx, c) })
	if c.Syslog {
		agent("syslog", checkSyslog)
	}
	for _, check := range more {
		checks = append(checks, Check{SelfCheck: check})
	}

	// Its pools.
	pools := slices.Collect(maps.Values(reconcile.Want(c, 1).Pools))
	slices.SortFunc(pools, func(a, b runtime.PoolSpec) int { return cmp.Compare(a.Name, b.Name) })
	for _, spec := range pools {
		for _, check := range parts.Pool(spec) {
			checks = append(checks, Check{Pool: spec.Name, SelfCheck: check})
		}
	}
	return checks
}

// load finds and loads the configuration. It is nil if there is none to use.
func load(ctx context.Context, find func() (schema.Source, error)) (*schema.Config, runtime.CheckResult) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	type loaded struct {
		config   *schema.Config
		problems []string
		warnings int
		path     string
	}
	l, err := cli.Await(ctx, func() (l loaded, err error) {
		source, err := find()
		if err != nil {
			return l, err
		}
		config, problems := schema.Load(source)
		l.config, l.path, l.warnings = config, source.Path, len(problems.Warnings())
		for _, p := range problems.Errors() {
			l.problems = append(l.problems, p.String())
		}
		return l, nil
	})
	name := "the environment, without a file,"
	vet := "cmwa vet"
	if l.path != "" {
		name, vet = report.QuoteName(l.path), "cmwa vet "+cli.Quote(l.path)
	}
	switch {
	case err != nil:
		return nil, runtime.CheckFailed("%v", err)
	case l.config == nil:
		text := fmt.Sprintf("%s cannot be used: %s", name, l.problems[0])
		if more := len(l.problems) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		return nil, runtime.CheckFailed("%s", text).WithCure("%s lists all", vet)
	case l.warnings > 0:
		return l.config, runtime.CheckWarned("%s is valid, with warnings: %d", name, l.warnings).
			WithCure("%s lists them", vet)
	}
	return l.config, runtime.CheckPassed("%s is valid", name)
}
