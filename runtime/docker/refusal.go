package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// maxRefusal limits what is shown of an engine's own words, in bytes.
const maxRefusal = 600

// jobError is a failure of the job's own. It is a [runtime.ErrJob] without saying
// so: its text is for people, and ends with what they can do.
type jobError struct{ error }

func (e jobError) Unwrap() []error { return []error{e.error, runtime.ErrJob} }

// jobFault makes an error that wraps [runtime.ErrJob].
func jobFault(format string, args ...any) error {
	return jobError{fmt.Errorf(format, args...)}
}

// settingsFault returns an error that wraps [runtime.ErrJob] as one that does
// not, and any other as it is.
func settingsFault(err error) error {
	var own jobError
	if errors.As(err, &own) {
		return own.error
	}
	return err
}

// unreachable explains, in one line, why an engine does not answer.
func unreachable(host string, err error) error {
	text := words(err)
	switch {
	case strings.Contains(text, "permission denied"):
		return fmt.Errorf("not allowed to use the Docker engine at %s: run the agent as a user of the group docker", host)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the Docker engine at %s takes connections but does not answer: restart it, or set DOCKER_HOST or deploy_target", host)
	case strings.Contains(text, "Cannot connect"), strings.Contains(text, "no such file"), strings.Contains(text, "connection refused"):
		return fmt.Errorf("cannot reach the Docker engine at %s: is it running? start it, or set DOCKER_HOST or deploy_target", host)
	default:
		return fmt.Errorf("cannot use the Docker engine at %s: check DOCKER_HOST and the certificates in DOCKER_CERT_PATH, or set deploy_target: %s", host, text)
	}
}

// refusals are what engines are known to answer to a container that is to be
// created or started, by a part of their text, with what it means for people.
var refusals = []struct {
	part  string
	means string
	own   bool // whether it is the job's own failure, and not one of settings or engine
}{
	{"exec format error", "the image is for another kind of machine than the engine's, which cannot emulate it: use an image for the engine's machine, or install emulation there (binfmt_misc with qemu)", true},
	{"no space left on device", "the engine's disk is full: make room there, for example with docker system prune", false},
	{"bind source path does not exist", "the engine does not see the job's folder: shared_volume_directory must be the same folder, under the same path, for the agent and for the engine's machine", false},
	{"mounts denied", "the engine does not share that path with containers: allow it in the engine's settings for file sharing", false},
	{"invalid volume specification", "docker.volumes has an entry that is not in the form source:target[:options]", false},
	{"invalid mount config", "the engine refuses a mount: check docker.volumes", false},
	{"invalid mode:", "docker.volumes has an entry with options that the engine does not know", false},
	{"invalid volume", "the engine refuses a volume: check docker.volumes", false},
	{"duplicate mount point", "docker.volumes has an entry for a place that is mounted already", false},
	{"bad format for add-host", "docker.extra_hosts has an entry that is not in the form name:address", false},
	{"invalid IP address in add-host", "docker.extra_hosts has an entry without a valid address", false},
	{"minimum memory limit", "docker.memory is less than the engine allows", false},
	{"range of cpus is from", "docker.cpus is more than the engine's machine has, or next to nothing", false},
	{"nanocpus can not be set", "the engine's machine cannot limit docker.cpus", false},
	{"unable to find user", "the image has no such user: change docker.user, or use a number", false},
	{"unable to find group", "the image has no such group: change docker.user, or use a number", false},
	{"uids and gids must be in range", "docker.user names a number that no user can have", false},
	{"no matching entries in", "the image has no such user or group: change docker.user, or use numbers", false},
	{"no such image", "the image was removed from the engine while the job was being started", true},
	{"is not supported on the detected host platform", "the image is for another kind of machine than the engine's", true},
	{"cannot allocate memory", "the engine's machine has no memory left", false},
}

// refused explains why an engine did not do what was asked of it on a job's
// behalf. The doing says what that was.
func refused(doing, host string, err error) error {
	text := words(err)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", doing, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: the Docker engine at %s did not answer in time: %w", doing, host, err)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%s: the Docker engine at %s is gone: %s", doing, host, text)
	}
	for _, known := range refusals {
		switch {
		case !strings.Contains(strings.ToLower(text), strings.ToLower(known.part)):
		case known.own:
			return jobFault("%s: %s (%s)", doing, known.means, text)
		default:
			return fmt.Errorf("%s: %s (%s)", doing, known.means, text)
		}
	}
	if strings.Contains(text, "network") && strings.Contains(text, "not found") {
		return fmt.Errorf("%s: the engine has no such network: create it, or change docker.network (%s)", doing, text)
	}
	return fmt.Errorf("%s: %s", doing, text)
}

// words is an error's text in one line of reasonable length.
func words(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.TrimPrefix(text, "Error response from daemon: ")
	if len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal], "") + " …"
	}
	return text
}
