package docker

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

const (
	hostsFile    = "/etc/hosts"           // file of this machine; each container has its own file
	desktopName  = "host.docker.internal" // name of the engine's machine in containers of Docker Desktop
	defaultImage = "pulumi/pulumi"        // used by the service unless a stack names another
	needsEngine  = "docker-engine"        // name of the check on which others depend
)

// SelfChecks returns the checks of the engine, of the runner, and of the settings that can be
// checked before a job. Service is the URL that containers must reach. The checks create, pull
// and start nothing.
func SelfChecks(options Options, tuning runtime.Tuning, service string) []selfcheck.Check {
	spec := tuning.Instance
	// withEngine returns a check that creates an executor and passes it to f.
	withEngine := func(name, needs string, f func(context.Context, *Executor) selfcheck.Result) selfcheck.Check {
		return selfcheck.Check{Name: name, Needs: needs, Run: func(ctx context.Context) selfcheck.Result {
			e, err := New(ctx, options)
			if err != nil {
				return selfcheck.Error(err, selfcheck.Result{})
			}
			defer e.Close()
			return f(ctx, e)
		}}
	}

	user := cmp.Or(spec.Docker.User, "the user of their image")
	network := cmp.Or(spec.Docker.Network, "that is the engine's default")
	return []selfcheck.Check{
		withEngine(needsEngine, "", describeEngine),
		withEngine("docker-runner", needsEngine, func(_ context.Context, e *Executor) selfcheck.Result {
			err := e.programs.findAny(spec.WorkingDirectory, e.architecture)
			return selfcheck.Error(err, selfcheck.Passed("the runner is in %s", spec.WorkingDirectory))
		}),
		withEngine("docker-shared-directory", needsEngine, func(ctx context.Context, e *Executor) selfcheck.Result {
			return e.checkShared(ctx, spec.SharedVolumeDirectory)
		}),
		{Name: "docker-user", Run: func(context.Context) selfcheck.Result {
			return selfcheck.Error(checkUser(spec.Docker.User), selfcheck.Passed("jobs run as %s", user))
		}},
		withEngine("docker-network", needsEngine, func(ctx context.Context, e *Executor) selfcheck.Result {
			err := e.checkNetwork(ctx, spec.Docker.Network)
			return selfcheck.Error(err, selfcheck.Passed("containers join the network %s", network))
		}),
		withEngine("docker-limits", needsEngine, func(ctx context.Context, e *Executor) selfcheck.Result {
			return e.selfCheckLimits(ctx, spec.Docker)
		}),
		withEngine("docker-image", needsEngine, func(ctx context.Context, e *Executor) selfcheck.Result {
			return e.selfCheckImage(ctx, spec)
		}),
		{Name: "docker-service", Run: func(context.Context) selfcheck.Result {
			hosts, err := os.Open(hostsFile)
			if err != nil {
				return checkService(service, spec.Docker, strings.NewReader(""))
			}
			defer hosts.Close()
			return checkService(service, spec.Docker, io.LimitReader(hosts, maxConfig))
		}},
	}
}

// describeEngine reports the version of the engine. [New] has checked that the engine can run
// jobs.
func describeEngine(ctx context.Context, e *Executor) selfcheck.Result {
	about, err := e.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return selfcheck.Error(unreachable(e.host, err), selfcheck.Result{})
	}
	return selfcheck.Passed("the engine at %s has version %s for %s/%s, and API %s",
		e.host, about.Version, about.Os, e.architecture, about.APIVersion)
}

// checkShared checks shared_volume_directory, which must be the same directory for the
// agent and for the engine's machine.
func (e *Executor) checkShared(ctx context.Context, parent string) selfcheck.Result {
	if parent == "" {
		return selfcheck.Passed("shared_volume_directory is not set: jobs have the runner in a volume of the engine")
	}
	if err := checkDirectory(parent); err != nil {
		return selfcheck.Error(err, selfcheck.Result{})
	}
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	own, err := e.inspectContainer(ctx, name)
	switch {
	case err == nil && !sharedBy(own.Mounts, parent):
		return selfcheck.Failed("the agent runs in the container %s, "+
			"into which %s is not mounted under the same path", name, parent).
			WithHint("mount it with --volume %s:%s, or remove shared_volume_directory", parent, parent)
	case err != nil && !strings.HasPrefix(e.host, "unix://"):
		return selfcheck.Warned("jobs have their directories in %s, and the engine at %s may be on another machine",
			parent, e.host).
			WithHint("make sure that %s is the same directory on the engine's machine, "+
				"or remove shared_volume_directory", parent)
	}
	return selfcheck.Passed("jobs have their directories in %s", parent)
}

// sharedBy reports whether a container has a directory of the engine's machine under the
// same path.
func sharedBy(mounts []container.MountPoint, directory string) bool {
	deepest, same := "", false
	for _, m := range mounts {
		within := directory == m.Destination || strings.HasPrefix(directory, strings.TrimSuffix(m.Destination, "/")+"/")
		if within && len(m.Destination) >= len(deepest) {
			deepest, same = m.Destination, m.Type == mount.TypeBind && m.Source == m.Destination
		}
	}
	return same
}

// selfCheckImage checks that the engine has an image for jobs, as far as the images of jobs are
// known before a job.
func (e *Executor) selfCheckImage(ctx context.Context, spec runtime.InstanceSpec) selfcheck.Result {
	switch {
	case spec.PullImage:
		return selfcheck.Passed("the image is pulled for each job (pull_image)")
	case spec.OverrideImage != "":
		err := e.checkOverride(ctx, spec)
		return selfcheck.Error(err,
			selfcheck.Passed("the engine has the image %s of every job", spec.OverrideImage))
	}
	found, err := e.engine.ImageList(ctx, client.ImageListOptions{
		Filters: client.Filters{}.Add("reference", defaultImage+"*"),
	})
	switch {
	case err != nil:
		return selfcheck.Error(engineError("list the images", e.host, err), selfcheck.Result{})
	case len(found.Items) == 0:
		return selfcheck.Warned("pull_image is false, and the engine has no image %s, "+
			"which jobs use unless their stack names another", defaultImage).
			WithHint("load the images of your stacks there, or set pull_image to true")
	}
	return selfcheck.Passed("pull_image is false, and the engine has the image %s", defaultImage)
}

// selfCheckLimits checks that the engine applies the limits of containers, and that it can start
// programs without new privileges.
func (e *Executor) selfCheckLimits(ctx context.Context, spec runtime.Docker) selfcheck.Result {
	about, err := e.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return selfcheck.Error(engineError("read the properties of the engine", e.host, err), selfcheck.Result{})
	}
	info := about.Info
	if spec.StorageLimit > 0 {
		if err := e.storageProblem(info); err != nil {
			return selfcheck.Error(err, selfcheck.Result{})
		}
	}
	const noGroup = "%s has no effect: the engine's machine does not have the control group %s"
	switch {
	case spec.PidsLimit > 0 && !info.PidsLimit:
		return selfcheck.Warned(noGroup, "docker.pids_limit", "pids").WithHint("enable it in the kernel")
	case spec.Memory > 0 && !info.MemoryLimit:
		return selfcheck.Warned(noGroup, "docker.memory", "memory").WithHint("enable it in the kernel")
	case !spec.AllowNewPrivileges && strings.HasPrefix(info.DockerRootDir, "/var/snap/"):
		// AppArmor denies the start of the runner (bugs.launchpad.net/snapd/+bug/1908448).
		return selfcheck.Warned("the engine is a snap, which may be unable to start programs without new privileges").
			WithHint("set docker.allow_new_privileges to true, or install the engine from packages")
	}
	return selfcheck.Passed("the engine applies the limits of containers")
}

// checkService checks whether containers can reach the service at the address that the
// agent uses. Hosts is the content of /etc/hosts of this machine.
func checkService(service string, spec runtime.Docker, hosts io.Reader) selfcheck.Result {
	u, err := url.Parse(service)
	if err != nil {
		return selfcheck.Skipped("service_url is not a URL")
	}
	name := u.Hostname()
	given := slices.IndexFunc(spec.ExtraHosts, func(entry string) bool { // every container has an entry for localhost
		host, _, _ := strings.Cut(entry, ":")
		return strings.EqualFold(host, name) && !strings.EqualFold(host, "localhost")
	})
	reached := service
	if given >= 0 {
		_, address, _ := strings.Cut(spec.ExtraHosts[given], ":")
		reached = "http://" + net.JoinHostPort(strings.Trim(address, "[]"), "80")
	}
	switch {
	case spec.Network == "none":
		return selfcheck.Failed("docker.network is \"none\": jobs cannot reach the service").
			WithHint("change docker.network")
	case spec.Network == "host":
		return selfcheck.Passed("containers use the network of the engine's machine (docker.network)")
	case strings.HasPrefix(spec.Network, "container:"):
		return selfcheck.Passed("containers reach the service as %s does (docker.network)", spec.Network)
	case selfcheck.OnLoopback(reached):
		return selfcheck.Failed("in a container, %s is the container itself, and not this machine", name).
			WithHint("set service_url to an address that both this machine and containers reach, " +
				"or docker.network to host; docker.extra_hosts can give a name the address host-gateway")
	case given >= 0:
		return selfcheck.Passed("containers find %s by docker.extra_hosts: %s", name, spec.ExtraHosts[given])
	case inHosts(hosts, name):
		return selfcheck.Warned("%s is in %s of this machine, which containers do not have", name, hostsFile).
			WithHint("add it to docker.extra_hosts, unless the name servers of containers resolve it")
	case name == desktopName:
		return selfcheck.Warned("%s is known only in containers of Docker Desktop", name).
			WithHint("with another engine, set docker.extra_hosts to [\"%s:host-gateway\"]", name)
	}
	return selfcheck.Passed("containers reach the service at the same address, %s", u.Host)
}

// inHosts reports whether a table in the format of hosts(5) has a name.
func inHosts(table io.Reader, name string) bool {
	if _, err := netip.ParseAddr(name); err == nil {
		return false
	}
	for lines := bufio.NewScanner(table); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		same := func(field string) bool { return strings.EqualFold(field, name) }
		if len(fields) > 1 && slices.ContainsFunc(fields[1:], same) {
			return true
		}
	}
	return false
}
