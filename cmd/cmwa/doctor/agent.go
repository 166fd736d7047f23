package doctor

import (
	"cmp"
	"context"
	"errors"
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// checkMounts checks that the agent can detect the replacement of its configuration files.
func checkMounts(c *schema.Config, frozen func(string) bool) selfcheck.Result {
	var names, directories []string
	for _, path := range c.Paths() {
		if frozen(path) {
			names = append(names, printable.QuoteName(path))
			directories = append(directories, printable.QuoteName(filepath.Dir(path)))
		}
	}
	if len(names) == 0 {
		return selfcheck.Passed("the agent can detect changes of the configuration and of its files")
	}
	const why = "mounted as a single file or with subPath: the agent cannot detect that the file is replaced"
	return selfcheck.Warned("%s: %s", why, strings.Join(names, ", ")).
		WithHint("mount the directory without subPath: %s", strings.Join(slices.Compact(directories), ", "))
}

// checkState checks that the agent can store its id, without storing one. If owned is true,
// the agent needs no id.
func checkState(c *schema.Config, environ func(string) (string, bool), owned bool) selfcheck.Result {
	directory, err := agentid.Directory(c.StateDirectory, environ, os.Getuid())
	checked := directory
	if err == nil {
		checked, err = agentid.Check(directory)
	}
	switch {
	case err != nil && owned:
		return selfcheck.Passed("the state directory cannot be used, but is not needed: " +
			"the agent's Pod identifies its jobs")
	case err != nil:
		return selfcheck.Warned("cannot use the state directory: a restarted agent does not adopt its jobs: %v",
			err).
			WithHint("set state_directory to a directory that the agent's user can write to; " +
				"in a container, mount a volume there")
	case !strings.HasPrefix(checked+"/", directory+"/"):
		return selfcheck.Passed("the state directory %s can be created in %s", directory, checked)
	}
	return selfcheck.Passed("the state directory %s is writable and supports locks", directory)
}

// checkServer checks that the port of the HTTP server is free, or in use by the agent with
// this configuration.
func checkServer(ctx context.Context, c *schema.Config) selfcheck.Result {
	if c.HTTPServerPort == 0 {
		return selfcheck.Passed("the HTTP server is off (http_server_port is 0)")
	}
	address := net.JoinHostPort(c.HTTPServerAddress, strconv.Itoa(c.HTTPServerPort))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = listener.Close()
		return selfcheck.Passed("port %d is free", c.HTTPServerPort)
	case !errors.Is(err, syscall.EADDRINUSE):
		return selfcheck.Failed("cannot open the port of the HTTP server: %v", err).
			WithHint("correct http_server_address and http_server_port")
	}

	// The port is in use: find out by which agent.
	host := cmp.Or(c.HTTPServerAddress, "127.0.0.1")
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	url := "http://" + net.JoinHostPort(host, strconv.Itoa(c.HTTPServerPort)) + "/status"
	d, err := status.Fetch(ctx, url, true)
	if err != nil {
		return selfcheck.Failed("port %d is in use: %v", c.HTTPServerPort, err).
			WithHint("set http_server_port to a free port, or to 0 to turn the HTTP server off")
	}
	ownPath := ""
	if c.Path != "" {
		ownPath = c.Paths()[0]
	}
	if d.Config.Path != ownPath {
		return selfcheck.Failed("port %d is in use by an agent with another configuration: %s",
			c.HTTPServerPort, cmp.Or(d.Config.Path, "its environment")).
			WithHint("set http_server_port to a free port, or to 0 to turn the HTTP server off")
	}
	return selfcheck.Passed("port %d is in use by the agent with this configuration, version %s",
		c.HTTPServerPort, d.Agent.Version)
}

func checkSyslog(context.Context) selfcheck.Result {
	writer, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "cmwa")
	if err != nil {
		return selfcheck.Failed("cannot reach syslog: %v", err).
			WithHint("start a syslog daemon, or set syslog to false")
	}
	_ = writer.Close()
	return selfcheck.Passed("a syslog daemon accepts messages")
}
