package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// maxInstances limits the agents of one user that serve one pool on one host.
const maxInstances = 1000

// instances names this agent among those of its host: the host's name for the
// first that serves a pool, the name with a number for further ones. What an
// agent makes bears that name, so no agent takes over, or stops, the job of a
// neighbour that lives, and an agent that is started again finds its own.
//
// A name is held by a lock on an empty file, which the kernel lets go of when the
// process ends, however it ends. The file goes when the pool does.
type instances struct {
	host, folder string

	mu    sync.Mutex
	names map[string]string   // by pool key
	locks map[string]*os.File // held until release, or the end of the process
}

func newInstances(host string) *instances {
	return &instances{host: host, folder: os.TempDir(), names: map[string]string{}, locks: map[string]*os.File{}}
}

// name returns this agent's name for a pool, the same until it is released.
func (i *instances) name(key string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if name := i.names[key]; name != "" {
		return name, nil
	}
	var last error
	for n := 1; n <= maxInstances; n++ {
		path := filepath.Join(i.folder, fmt.Sprintf("cmwa-%d-%s-%d.lock", os.Getuid(), key, n))
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			last = err
			continue
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			last = err
			_ = file.Close()
			continue
		}
		if !lies(file, path) { // another agent has released it meanwhile
			_ = file.Close()
			n--
			continue
		}
		name := i.host
		if n > 1 {
			name = fmt.Sprintf("%s-%d", i.host, n)
		}
		i.names[key], i.locks[key] = name, file
		return name, nil
	}
	return "", fmt.Errorf("take a name for this agent among those of this host: %w: make %s writable, or set TMPDIR", last, i.folder)
}

// release lets go of the name for a pool that has ended.
func (i *instances) release(key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	file := i.locks[key]
	if file == nil {
		return
	}
	delete(i.names, key)
	delete(i.locks, key)
	_ = os.Remove(file.Name()) // before the lock is let go of
	_ = file.Close()
}

// lies reports whether an open file is the one that lies at a path.
func lies(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(open, there)
}
