package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
)

const maxEngineText = 600 // bytes to which an error of an engine is cut

// connectionError is an error of the connection to the engine. It wraps
// [runtime.ErrConnectionLost], but its text does not contain the text of ErrConnectionLost.
// Start returns it only if the runner cannot have the whole handoff. In other calls it means
// only that the connection was lost.
type connectionError struct{ error }

func (e connectionError) Unwrap() []error { return []error{e.error, runtime.ErrConnectionLost} }

// isConnectionError reports whether the connection to the engine broke, or could not be
// opened, so that err is not a response of the engine.
func isConnectionError(err error) bool {
	return client.IsErrConnectionFailed(err) || errors.As(err, new(*net.OpError)) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// settingsFault removes [runtime.ErrJobFault] from an error that wraps it. Other errors are
// returned unchanged.
func settingsFault(err error) error {
	if own, ok := errors.AsType[runtime.JobFault](err); ok {
		return own.Cause
	}
	return err
}

// unreachable explains in one line why an engine does not respond.
func unreachable(host string, err error) error {
	text := oneLine(err)
	switch {
	case strings.Contains(text, "permission denied"):
		return fmt.Errorf("not allowed to use the Docker engine at %s: "+
			"run the agent as a user of the group docker", host)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the Docker engine at %s accepts connections but does not respond: "+
			"restart it, or set DOCKER_HOST or deploy_target", host)
	case strings.Contains(text, "Cannot connect"), strings.Contains(text, "no such file"),
		strings.Contains(text, "connection refused"):
		return fmt.Errorf("cannot reach the Docker engine at %s: is it running? "+
			"start it, or set DOCKER_HOST or deploy_target", host)
	default:
		return fmt.Errorf("cannot use the Docker engine at %s: check DOCKER_HOST "+
			"and the certificates in DOCKER_CERT_PATH, or set deploy_target: %s", host, text)
	}
}

// engineErrors explain the known errors of engines when a container is created or
// started, by a part of their text.
var engineErrors = []struct {
	part     string
	meaning  string
	jobFault bool // whether the job causes the error, and not the settings or the engine
}{
	{"exec format error", "the image is for another kind of machine than the engine's, which cannot emulate it: " +
		"use an image for the engine's machine, or install emulation there (binfmt_misc with qemu)", true},
	{"no space left on device", "the engine's disk is full: " +
		"free space there, for example with docker system prune", false},
	{"bind source path does not exist", "the engine cannot find the directory of the job: " +
		"shared_volume_directory must be the same directory, under the same path, " +
		"for the agent and for the engine's machine", false},
	{"mounts denied", "the engine does not share that path with containers: " +
		"allow it in the engine's settings for file sharing", false},
	{"invalid volume specification",
		"docker.volumes has an entry that is not in the form source:target[:options]", false},
	{"invalid mount config", "the engine rejects a mount: check docker.volumes", false},
	{"invalid mode:", "docker.volumes has an entry with options that the engine does not support", false},
	{"invalid volume", "the engine rejects a volume: check docker.volumes", false},
	{"duplicate mount point", "docker.volumes has an entry for a target that is already mounted", false},
	{"bad format for add-host", "docker.extra_hosts has an entry that is not in the form name:address", false},
	{"invalid IP address in add-host", "docker.extra_hosts has an entry without a valid address", false},
	{"minimum memory limit", "docker.memory is less than the engine allows", false},
	{"range of cpus is from", "docker.cpus is more than the engine's machine has, or almost zero", false},
	{"nanocpus can not be set", "the engine's machine cannot limit docker.cpus", false},
	{"storage-opt", "the engine cannot limit the size of containers: " + storageHint, false},
	{"has not enabled quotas", "the engine cannot limit the size of containers: " + storageHint, false},
	{"unable to find user", "the image does not have the user: change docker.user, or use a number", false},
	{"unable to find group", "the image does not have the group: change docker.user, or use a number", false},
	{"uids and gids must be in range", "docker.user has a number that is not a valid id", false},
	{"no matching entries in", "the image does not have the user or group: change docker.user, or use numbers", false},
	{"no such image", "the image was removed from the engine while the job was started", true},
	{"is not supported on the detected host platform",
		"the image is for another kind of machine than the engine's", true},
	{"cannot allocate memory", "the engine's machine has no free memory", false},
}

// engineError explains why an engine did not complete an operation for a job.
func engineError(operation, host string, err error) error {
	text := oneLine(err)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", operation, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: the Docker engine at %s did not respond in time: %w", operation, host, err)
	case isConnectionError(err):
		return connectionError{
			fmt.Errorf("%s: lost the connection to the Docker engine at %s: %s", operation, host, text),
		}
	}
	for _, known := range engineErrors {
		switch {
		case !strings.Contains(strings.ToLower(text), strings.ToLower(known.part)):
		case known.jobFault:
			return runtime.NewJobFault("%s: %s (%s)", operation, known.meaning, text)
		default:
			return fmt.Errorf("%s: %s (%s)", operation, known.meaning, text)
		}
	}
	if strings.Contains(text, "network") && strings.Contains(text, "not found") {
		return fmt.Errorf("%s: the engine does not have the network: "+
			"create it, or change docker.network (%s)", operation, text)
	}
	return fmt.Errorf("%s: %s", operation, text)
}

// oneLine returns the text of an error as one line of limited length.
func oneLine(err error) string {
	text := strings.TrimPrefix(printable.OneLine(err.Error()), "Error response from daemon: ")
	return printable.Shorten(text, maxEngineText)
}
