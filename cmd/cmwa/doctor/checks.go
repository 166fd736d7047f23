package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Parts are the functions that the program passes to this package.
type Parts struct {
	// Find finds the configuration, like cmwa run.
	Find func() (schema.Source, error)
	// Environ looks up an environment variable.
	Environ func(string) (string, bool)
	// OwnPod returns the check of the agent's own Pod. It returns false if the agent does
	// not run in a Pod, or if it runs in another cluster than its jobs. Shutdown is the
	// shutdown timeout; files are the files of the configuration that exist. OwnPod is called only if
	// a pool has deploy_target kubernetes without kubernetes.context.
	OwnPod func(shutdown time.Duration, files []string) (selfcheck.Check, bool)
	// Pool returns the checks of the service and the executor of a pool.
	Pool func(runtime.PoolSpec) []selfcheck.Check
}

// Checks loads the configuration, and returns the checks for it. The first check is about
// the configuration itself. If the configuration is not valid, this is the only check.
func Checks(ctx context.Context, parts Parts) []Check {
	started := time.Now()
	c, result := load(ctx, parts.Find)
	first := selfcheck.Check{
		Name: "configuration", Run: func(context.Context) selfcheck.Result { return result },
	}
	checks := []Check{{Check: first, duration: time.Since(started)}}
	if c == nil {
		return checks
	}

	own, owned := ownPod(c, parts)
	agent := func(name string, run func(context.Context) selfcheck.Result) {
		checks = append(checks, Check{Check: selfcheck.Check{Name: name, Run: run}})
	}
	agent("configuration-mounts", func(context.Context) selfcheck.Result { return checkMounts(c, watch.Frozen) })
	agent("state-directory", func(context.Context) selfcheck.Result { return checkState(c, parts.Environ, owned) })
	agent("free-disk", func(context.Context) selfcheck.Result {
		return checkDisks(directories(c, parts.Environ), spaceOf)
	})
	agent("http-server", func(ctx context.Context) selfcheck.Result { return checkServer(ctx, c) })
	if c.Syslog {
		agent("syslog", checkSyslog)
	}
	if own.Run != nil {
		agent(own.Name, own.Run)
	}

	byName := func(a, b runtime.PoolSpec) int { return cmp.Compare(a.Name, b.Name) }
	for _, spec := range slices.SortedFunc(maps.Values(reconcile.Want(c, 1).Pools), byName) {
		for _, check := range parts.Pool(spec) {
			checks = append(checks, Check{Pool: spec.Name, Check: check})
		}
	}
	return checks
}

// ownPod returns the check of the agent's own Pod, if there is one. Owned reports whether
// the agent finds all of its instances by this Pod, so that it needs no id.
func ownPod(c *schema.Config, parts Parts) (check selfcheck.Check, owned bool) {
	elsewhere := 0
	for i := range c.Pools {
		if c.Pools[i].DeployTarget != "kubernetes" || c.Pools[i].Kubernetes.Context != "" {
			elsewhere++
		}
	}
	if elsewhere == len(c.Pools) {
		return check, false
	}
	files := slices.DeleteFunc(c.Paths(), func(path string) bool { // such as the template in /mnt, if there is none
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	check, inside := parts.OwnPod(c.ShutdownTimeout, files)
	return check, inside && elsewhere == 0
}

// load finds and loads the configuration. It returns nil if the configuration is not valid.
func load(ctx context.Context, find func() (schema.Source, error)) (*schema.Config, selfcheck.Result) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	type loaded struct {
		config   *schema.Config
		problems position.Problems
		path     string
	}
	l, err := cli.Await(ctx, func() (loaded, error) {
		source, err := find()
		if err != nil {
			return loaded{}, err
		}
		config, problems := schema.Load(source)
		return loaded{config, problems, source.Path}, nil
	})
	errs, warnings := l.problems.Errors(), len(l.problems.Warnings())

	name := "the configuration from environment variables"
	vet := "cmwa vet"
	if l.path != "" {
		name, vet = printable.QuoteName(l.path), "cmwa vet "+printable.QuoteShell(l.path)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, selfcheck.Failed("cannot read the configuration within %s", checkLimit).
			WithHint("check the file systems of its files")
	case err != nil:
		return nil, selfcheck.Failed("%v", err)
	case l.config == nil:
		text := fmt.Sprintf("%s is not valid: %s", name, errs[0].String())
		if more := len(errs) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		return nil, selfcheck.Failed("%s", text).WithHint("run %s for all problems", vet)
	case warnings > 0:
		return l.config, selfcheck.Warned("%s is valid, with warnings: %d", name, warnings).
			WithHint("run %s for the warnings", vet)
	}
	return l.config, selfcheck.Passed("%s is valid", name)
}
