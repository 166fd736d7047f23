//go:build linux || darwin

package process

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Prefixes of what lies in the parent folder. Only what has the job prefix is an
// environment; the other two are on the way there, or on the way out.
const (
	jobPrefix = "job-"
	newPrefix = "new-"
	oldPrefix = "old-"
)

// Files and directories of a job's folder.
const (
	labelsFile   = "job.json"
	leaderFile   = "leader.json"
	progressFile = "progress"
	messagesFile = "messages"
	exitFile     = "exit"
	rootFolder   = "root"
	homeFolder   = "home"
	tempFolder   = "tmp"
)

// labels say whose an environment is.
type labels struct {
	Agent      string           `json:"agent"`
	Pool       string           `json:"pool"`
	PoolName   string           `json:"poolName"`
	Identity   runtime.Identity `json:"poolIdentity"`
	Job        string           `json:"job"`
	Subject    string           `json:"subject"`
	Generation uint64           `json:"generation"`
	Started    time.Time        `json:"started"`
}

// parent makes the folder that jobs' folders lie in, and checks that no other user can
// put something there.
func parent(folder string) (string, error) {
	folder, err := parentPath(folder)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("make the folder for jobs: %w", err)
	}
	if err := checkParent(folder); err != nil {
		return "", err
	}
	return folder, nil
}

// parentPath returns the absolute path of the folder that jobs' folders lie in.
func parentPath(folder string) (string, error) {
	if folder == "" {
		folder = filepath.Join(os.TempDir(), fmt.Sprintf("cmwa-process-%d", os.Getuid()))
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", fmt.Errorf("find the folder for jobs: %w", err)
	}
	return folder, nil
}

// checkParent checks that the folder that jobs' folders lie in belongs to this user
// and no other user can write to it.
func checkParent(folder string) error {
	info, err := os.Lstat(folder)
	if err != nil {
		return fmt.Errorf("look at the folder for jobs: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("the folder for jobs %s must be a directory that belongs to this user and that nobody else can write to: "+
			"remove it, or name another", folder)
	}
	return nil
}

// name is the id of a job's environment.
func name(job *runtime.Job) string {
	sum := sha256.Sum256([]byte(job.Agent + "\x00" + job.Pool + "\x00" + job.ID))
	return jobPrefix + hex.EncodeToString(sum[:10])
}

// makeFolder makes a job's folder with its labels. It appears under its name
// whole or not at all, and fails if it is there already.
func makeFolder(parent string, job *runtime.Job) (id string, err error) {
	part, err := os.MkdirTemp(parent, newPrefix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	for _, sub := range []string{rootFolder, homeFolder, tempFolder} {
		if err := os.Mkdir(filepath.Join(part, sub), 0o700); err != nil {
			return "", err
		}
	}
	err = writeJSON(part, labelsFile, labels{
		Agent:      job.Agent,
		Pool:       job.Pool,
		PoolName:   job.PoolName,
		Identity:   job.Identity,
		Job:        job.ID,
		Subject:    job.Subject,
		Generation: job.Generation,
		Started:    time.Now(),
	})
	if err != nil {
		return "", err
	}
	id = name(job)
	return id, os.Rename(part, filepath.Join(parent, id)) // not over a folder that has something in it
}

// clearAway removes a folder whose processes have ended. Jobs leave directories
// without the right to write (Go's module cache is one): these get it back.
func clearAway(folder string) error {
	if os.RemoveAll(folder) == nil {
		return nil
	}
	_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove the folder of a job: %w", err)
	}
	return nil
}

// sweep clears folders that were left half made or half removed before a time.
// One that cannot be cleared is left to the next sweep.
func sweep(parent string, before time.Time) (removed []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("look into the folder for jobs: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), newPrefix) && !strings.HasPrefix(entry.Name(), oldPrefix) {
			continue
		}
		if info, err := entry.Info(); err == nil && info.ModTime().Before(before) {
			folder := filepath.Join(parent, entry.Name())
			if clearAway(folder) == nil {
				removed = append(removed, "folder "+folder)
			}
		}
	}
	return removed, nil
}

func readLabels(folder string) (labels, error) {
	var l labels
	err := readJSON(folder, labelsFile, &l)
	return l, err
}

func readJSON(folder, file string, value any) error {
	text, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

// mangled reports whether an error says that a file is not what was written.
func mangled(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &kind)
}

// writeJSON writes a file that is there whole or not at all.
func writeJSON(folder, file string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	part := filepath.Join(folder, file+".part")
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(folder, file))
}
