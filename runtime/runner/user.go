package runner

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Variables from which programs get their user and their home directory.
const (
	homeVariable       = "HOME"
	userVariable       = "USER"
	pulumiHomeVariable = "PULUMI_HOME"
)

// defaultUser is the name of a user without an entry in the password database: pulumi and
// other programs do not start without a name.
const defaultUser = "pulumi"

// prepareUser provides what programs expect of their user: a writable root, a writable home
// directory, and a name. A user who is not root lacks them if the image was not built for this
// user. The new directories are in the directory of the job. Variables that the job sets stay
// unchanged. It returns messages for the log.
func (j *job) prepareUser() (messages []string, err error) {
	if !writable(j.root) {
		root, err := j.makeDirectory("root")
		if err != nil {
			return nil, err
		}
		messages = append(messages, fmt.Sprintf(
			"User %d cannot write to %s; steps run in %s", os.Getuid(), j.root, root))
		j.root, j.env[rootVariable] = root, root
	}
	if home := j.env[homeVariable]; !writable(home) && !j.sets(homeVariable) {
		directory, err := j.makeDirectory("home")
		if err != nil {
			return nil, err
		}
		messages = append(messages, fmt.Sprintf(
			"User %d cannot write to the home directory %q; HOME is %s", os.Getuid(), home, directory))
		j.env[homeVariable] = directory
	}
	account, unknown := user.LookupId(strconv.Itoa(os.Getuid()))
	if unknown != nil && j.env[userVariable] == "" {
		j.env[userVariable] = defaultUser
	}
	// A statically linked pulumi reads its home directory from the password database, not from HOME.
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
func (j *job) sets(name string) bool {
	_, defined := j.definition.Env[name]
	_, forwarded := j.handoff.Forward[name]
	return defined || forwarded
}

func (j *job) makeDirectory(name string) (string, error) {
	directory := filepath.Join(j.private, name)
	if err := os.Mkdir(directory, 0o700); err != nil {
		return "", fmt.Errorf("create a directory for the job: %w", err)
	}
	return directory, nil
}

// writable reports whether this user may create files in a directory.
func writable(directory string) bool {
	info, err := os.Stat(directory)
	return err == nil && info.IsDir() && unix.Access(directory, unix.W_OK|unix.X_OK) == nil
}
