package runner

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Variables from which programs get their user and their home folder.
const (
	homeVariable       = "HOME"
	userVariable       = "USER"
	pulumiHomeVariable = "PULUMI_HOME"
)

// defaultUser is the name of a user without an entry in the password database: pulumi and
// other programs do not start without a name.
const defaultUser = "pulumi"

// prepareUser provides what programs expect of their user: a writable root, a writable home
// folder, and a name. A user who is not root lacks them if the image was not built for this
// user. The new folders are in the folder of the job. Variables that the job sets stay
// unchanged. It returns messages for the log.
func (j *job) prepareUser() (messages []string, err error) {
	// Provide a root, a home folder and a name.
	if !writable(j.root) {
		root, err := j.makeFolder("root")
		if err != nil {
			return nil, err
		}
		messages = append(messages, fmt.Sprintf(
			"User %d cannot write to %s; steps run in %s", os.Getuid(), j.root, root))
		j.root, j.env[rootVariable] = root, root
	}
	if home := j.env[homeVariable]; !writable(home) && !j.sets(homeVariable) {
		folder, err := j.makeFolder("home")
		if err != nil {
			return nil, err
		}
		messages = append(messages, fmt.Sprintf(
			"User %d cannot write to the home folder %q; HOME is %s", os.Getuid(), home, folder))
		j.env[homeVariable] = folder
	}
	account, unknown := user.LookupId(strconv.Itoa(os.Getuid()))
	if unknown != nil && j.env[userVariable] == "" {
		j.env[userVariable] = defaultUser
	}
	// A statically linked pulumi reads its home folder from the password database, not from HOME.
	home := filepath.Join(j.env[homeVariable], ".pulumi")
	switch set := j.env[pulumiHomeVariable]; {
	case j.sets(pulumiHomeVariable):
	case set != "" && !writable(set) && !writable(filepath.Dir(set)),
		set == "" && unknown == nil && account.HomeDir != j.env[homeVariable] && !writable(account.HomeDir):
		j.env[pulumiHomeVariable] = home
	}
	return messages, nil
}

// sets reports whether the definition or the agent sets a variable for the job.
func (j *job) sets(name string) bool { return sets(j.handoff, j.definition, name) }

func sets(h *runtime.Handoff, definition *cloud.Definition, name string) bool {
	_, defined := definition.Env[name]
	_, forwarded := h.Forward[name]
	return defined || forwarded
}

// makeFolder creates a folder in the folder of the job.
func (j *job) makeFolder(name string) (string, error) {
	folder := filepath.Join(j.private, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", fmt.Errorf("create a folder for the job: %w", err)
	}
	return folder, nil
}

// writable reports whether this user may create files in a folder.
func writable(folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && info.IsDir() && unix.Access(folder, unix.W_OK|unix.X_OK) == nil
}
