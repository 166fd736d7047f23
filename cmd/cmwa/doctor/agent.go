package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Files returns the absolute paths of a configuration and of the files that it names.
func Files(c *schema.Config) (paths []string) {
	for _, path := range append([]string{c.Path}, c.Files...) {
		if path == "" {
			continue
		}
		if full, err := filepath.Abs(path); err == nil {
			path = full
		}
		paths = append(paths, path)
	}
	return paths
}

// checkMounts finds files of the configuration whose replacement is never seen.
func checkMounts(c *schema.Config, frozen func(string) bool) runtime.CheckResult {
	var names, folders []string
	for _, path := range Files(c) {
		if frozen(path) {
			names, folders = append(names, report.QuoteName(path)), append(folders, report.QuoteName(filepath.Dir(path)))
		}
	}
	if len(names) == 0 {
		return runtime.CheckPassed("changes of the configuration, and of the files that it names, are seen")
	}
	return runtime.CheckResult{
		Level:   runtime.CheckWarning,
		Message: "mounted by itself or with subPath, so that a new file in its place is never seen: " + strings.Join(names, ", "),
		Cure:    "mount the folder without subPath: " + strings.Join(slices.Compact(folders), ", "),
	}
}

// checkState checks that the agent can keep its id, without taking one. Owned says that
// it needs none.
func checkState(c *schema.Config, environ func(string) (string, bool), owned bool) runtime.CheckResult {
	folder, err := agentid.Directory(c.StateDirectory, environ, os.Getuid())
	checked := folder
	if err == nil {
		checked, err = agentid.Check(folder, c.Path)
	}
	switch {
	case err != nil && owned:
		return runtime.CheckPassed("the state folder cannot be used, and is not needed: the agent's Pod identifies its jobs")
	case err != nil:
		return runtime.CheckResult{
			Level:   runtime.CheckWarning,
			Message: fmt.Sprintf("cannot use the state folder, so that after a restart the agent does not adopt its jobs: %v", err),
			Cure:    "set state_directory to a folder that the agent's user can write to; in a container, mount a volume there",
		}
	case !strings.HasPrefix(checked+"/", folder+"/"):
		return runtime.CheckPassed("the state folder %s can be made in %s", folder, checked)
	}
	return runtime.CheckPassed("the state folder %s can be written to, and has locks", folder)
}

// checkServer checks that the port of the HTTP server is free, or that an agent has it.
func checkServer(ctx context.Context, c *schema.Config) runtime.CheckResult {
	if c.HTTPServerPort == 0 {
		return runtime.CheckPassed("there is no HTTP server (http_server_port is 0)")
	}
	address := net.JoinHostPort(c.HTTPServerAddress, strconv.Itoa(c.HTTPServerPort))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	failed := runtime.CheckResult{Level: runtime.CheckFailed}
	switch {
	case err == nil:
		_ = listener.Close()
		return runtime.CheckPassed("port %d is free", c.HTTPServerPort)
	case errors.Is(err, syscall.EADDRINUSE):
		host := cmp.Or(c.HTTPServerAddress, "127.0.0.1")
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		url := "http://" + net.JoinHostPort(host, strconv.Itoa(c.HTTPServerPort)) + "/status"
		d, err := status.Fetch(ctx, url, true)
		if err == nil {
			return runtime.CheckPassed("an agent of version %s has port %d", d.Agent.Version, c.HTTPServerPort)
		}
		failed.Message = fmt.Sprintf("port %d is in use: %v", c.HTTPServerPort, err)
		failed.Cure = "set http_server_port to a free port, or to 0 for no HTTP server"
	default:
		failed.Message = fmt.Sprintf("cannot open the port of the HTTP server: %v", err)
		failed.Cure = "correct http_server_address and http_server_port"
	}
	return failed
}

// checkSyslog checks that the log can be written where the configuration wants it.
func checkSyslog(context.Context) runtime.CheckResult {
	writer, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "cmwa")
	if err != nil {
		return runtime.CheckResult{
			Level: runtime.CheckFailed, Message: fmt.Sprintf("cannot reach syslog: %v", err),
			Cure: "start a syslog daemon, or set syslog to false",
		}
	}
	_ = writer.Close()
	return runtime.CheckPassed("a syslog daemon takes the log")
}
