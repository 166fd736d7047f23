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

// Variables that tell programs who they are and where they may write.
const (
	homeVariable       = "HOME"
	userVariable       = "USER"
	pulumiHomeVariable = "PULUMI_HOME"
)

// nobody is the name of a user that the environment has no name for: pulumi and
// others do not start without one.
const nobody = "pulumi"

// settle gives a user who is not root, and for whom the image was not made, what
// programs take for granted: a home folder and a root that can be written to,
// and a name. All folders are in the job's own, and end with it. What the job
// sets itself is left alone. It returns what is to be said about it.
func (j *job) settle() (says []string, err error) {
	if !writable(j.root) {
		root, err := j.makeFolder("root")
		if err != nil {
			return nil, err
		}
		says = append(says, fmt.Sprintf("User %d cannot write to %s; steps run in %s", os.Getuid(), j.root, root))
		j.root, j.env[rootVariable] = root, root
	}
	if home := j.env[homeVariable]; !writable(home) && !j.sets(homeVariable) {
		folder, err := j.makeFolder("home")
		if err != nil {
			return nil, err
		}
		says = append(says, fmt.Sprintf("User %d cannot write to the home folder %q; HOME is %s", os.Getuid(), home, folder))
		j.env[homeVariable] = folder
	}
	account, unknown := user.LookupId(strconv.Itoa(os.Getuid()))
	if unknown != nil && j.env[userVariable] == "" {
		j.env[userVariable] = nobody
	}
	// A static pulumi asks the list of users for its home folder, and not HOME.
	home := filepath.Join(j.env[homeVariable], ".pulumi")
	switch set := j.env[pulumiHomeVariable]; {
	case j.sets(pulumiHomeVariable):
	case set != "" && !writable(set) && !writable(filepath.Dir(set)),
		set == "" && unknown == nil && account.HomeDir != j.env[homeVariable] && !writable(account.HomeDir):
		j.env[pulumiHomeVariable] = home
	}
	return says, nil
}

// sets reports whether the job's own environment has a variable, be it the
// definition's or what the agent forwards.
func (j *job) sets(name string) bool { return sets(j.handover, j.definition, name) }

func sets(h *runtime.Handover, definition *cloud.Definition, name string) bool {
	_, defined := definition.Env[name]
	_, forwarded := h.Forward[name]
	return defined || forwarded
}

// makeFolder makes a folder in the job's own.
func (j *job) makeFolder(name string) (string, error) {
	folder := filepath.Join(j.private, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for the job: %w", err)
	}
	return folder, nil
}

// writable reports whether this user may make files in a folder.
func writable(folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && info.IsDir() && unix.Access(folder, unix.W_OK|unix.X_OK) == nil
}
