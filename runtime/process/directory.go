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

// Prefixes of the directories in the parent directory. Only a directory with jobPrefix is an
// instance. Those with newPrefix are being created. Those with oldPrefix are being removed.
const (
	jobPrefix = "job-"
	newPrefix = "new-"
	oldPrefix = "old-"
)

// Files and directories of a job's directory.
const (
	labelsFile    = "job.json"
	leaderFile    = "leader.json"
	progressFile  = "progress"
	messagesFile  = "messages"
	exitFile      = "exit"
	rootDirectory = "root"
	homeDirectory = "home"
	tempDirectory = "tmp"
)

// labels identify the agent, the pool and the job of an instance.
type labels struct {
	Agent      string            `json:"agent"`
	Pool       string            `json:"pool"`
	PoolName   string            `json:"poolName"`
	Identity   runtime.Identity  `json:"poolIdentity"`
	Job        string            `json:"job"`
	Subject    string            `json:"subject"`
	Kind       runtime.Kind      `json:"kind,omitempty"` // of leased work; deployments have none
	Work       map[string]string `json:"work,omitempty"` // see runtime.Work.Labels
	Generation uint64            `json:"generation"`
	Started    time.Time         `json:"started"`
	Boot       string            `json:"boot,omitempty"` // identifies the boot of the system; may be unknown
}

// makeParent creates the parent directory of jobs' directories, and checks that no other user
// can create files in it.
func makeParent(directory string) (string, error) {
	directory, err := parentPath(directory)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return "", fmt.Errorf("create the directory for jobs: %w", err)
	}
	return directory, checkParent(directory)
}

func parentPath(directory string) (string, error) {
	if directory == "" {
		directory = filepath.Join(os.TempDir(), fmt.Sprintf("cmwa-process-%d", os.Getuid()))
	}
	directory, err := filepath.Abs(directory)
	if err != nil {
		return "", fmt.Errorf("find the directory for jobs: %w", err)
	}
	return directory, nil
}

// checkParent checks that the parent directory belongs to this user and that no other user
// can write to it.
func checkParent(directory string) error {
	info, err := os.Lstat(directory)
	if err != nil {
		return fmt.Errorf("check the directory for jobs: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("the directory for jobs %s must be a directory that belongs to this user "+
			"and is not writable for others: "+
			"remove it, or set TMPDIR to another directory", directory)
	}
	return nil
}

// jobDirectoryName returns the id of a job's instance, which is the name of its directory.
func jobDirectoryName(job *runtime.Job) string {
	sum := sha256.Sum256([]byte(job.Agent + "\x00" + job.Pool + "\x00" + job.ID))
	return jobPrefix + hex.EncodeToString(sum[:10])
}

// lockWait is how long lockParent waits. A creation or a sweep has the lock for milliseconds.
const lockWait = 5 * time.Second

// lockParent locks the directory for jobs with flock(2) until unlock is called or the process
// ends. Creations share the lock (LOCK_SH). A sweep takes it exclusively (LOCK_EX): while a
// sweep has the lock, no process is creating a directory. If the directory cannot be locked, as on
// some network file systems, lockParent returns false. Then only the age of a directory counts.
func lockParent(parent string, how int) (unlock func(), locked bool) {
	file, err := os.Open(parent)
	if err != nil {
		return func() {}, false
	}
	for limit := time.Now().Add(lockWait); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, true
		}
		if busy := err == syscall.EWOULDBLOCK || err == syscall.EINTR; !busy || time.Now().After(limit) {
			_ = file.Close()
			return func() {}, false
		}
	}
}

// makeDirectory creates the directory of a job with its labels. The directory gets its name when
// it is complete. If the directory already exists, makeDirectory returns an error.
func makeDirectory(parent string, job *runtime.Job) (id string, err error) {
	unlock, _ := lockParent(parent, syscall.LOCK_SH)
	defer unlock()
	part, err := os.MkdirTemp(parent, newPrefix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	for _, sub := range []string{rootDirectory, homeDirectory, tempDirectory} {
		if err := os.Mkdir(filepath.Join(part, sub), 0o700); err != nil {
			return "", err
		}
	}

	l := labels{
		Agent:      job.Agent,
		Pool:       job.Pool,
		PoolName:   job.PoolName,
		Identity:   job.Identity,
		Job:        job.ID,
		Subject:    job.WorkflowID,
		Work:       job.Definition.Work.Labels(),
		Generation: job.Generation,
		Started:    time.Now(),
		Boot:       bootStamp(),
	}
	if job.Kind.Leased() {
		l.Kind = job.Kind
	}
	if err := writeJSON(part, labelsFile, l); err != nil {
		return "", err
	}
	id = jobDirectoryName(job)
	return id, os.Rename(part, filepath.Join(parent, id)) // fails if the directory exists and is not empty
}

// bootStamp identifies the boot of the system by the process with the id 1. It is empty if
// that process is not visible.
func bootStamp() string {
	first, _, _ := inspectProcess(1) // zero if it is not visible
	return first.stamp
}

// removeAll removes a directory whose processes have ended. If that fails, it makes all
// directories writable and tries again: jobs create directories without write permission,
// such as Go's module cache.
func removeAll(directory string) error {
	if os.RemoveAll(directory) == nil {
		return nil
	}
	_ = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(directory); err != nil {
		return fmt.Errorf("remove the directory of a job: %w", err)
	}
	return nil
}

// sweepDirectories removes incomplete directories that no process is creating, and directories that were
// renamed for their removal and were last changed before removed. Without the lock, it
// removes incomplete directories that were last changed before created. A directory that cannot be
// removed is left to the next sweep.
func sweepDirectories(parent string, created, removed time.Time) (names []string, err error) {
	unlock, locked := lockParent(parent, syscall.LOCK_EX)
	if locked {
		created = time.Now().Add(time.Hour) // all of them, also if the clock was set back
	}
	names, err = sweepPrefix(parent, newPrefix, created)
	unlock()
	if err != nil {
		return nil, err
	}

	more, err := sweepPrefix(parent, oldPrefix, removed)
	return append(names, more...), err
}

// sweepPrefix removes the directories with a prefix whose last change was before a time.
func sweepPrefix(parent, prefix string, before time.Time) (names []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("list the directory for jobs: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		if info, err := entry.Info(); err == nil && info.ModTime().Before(before) {
			directory := filepath.Join(parent, entry.Name())
			if removeAll(directory) == nil {
				names = append(names, "directory "+directory)
			}
		}
	}
	return names, nil
}

func readLabels(directory string) (labels, error) {
	var l labels
	err := readJSON(directory, labelsFile, &l)
	return l, err
}

func readJSON(directory, file string, value any) error {
	text, err := os.ReadFile(filepath.Join(directory, file))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

// isCorrupt reports whether an error means that a file does not have its original
// content.
func isCorrupt(err error) bool {
	return errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError))
}

// writeJSON writes a file atomically.
func writeJSON(directory, file string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	part := filepath.Join(directory, file+".part")
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(directory, file))
}
