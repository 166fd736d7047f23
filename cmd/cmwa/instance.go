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
// A name is held by a lock on a file, which the kernel lets go of when the
// process ends, however it ends. The files are empty and stay.
type instances struct {
	host, folder string

	mu    sync.Mutex
	names map[string]string   // by pool key
	locks map[string]*os.File // held until the process ends
}

func newInstances(host string) *instances {
	return &instances{host: host, folder: os.TempDir(), names: map[string]string{}, locks: map[string]*os.File{}}
}

// name returns this agent's name for a pool, the same for as long as the process
// lives.
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
		name := i.host
		if n > 1 {
			name = fmt.Sprintf("%s-%d", i.host, n)
		}
		i.names[key], i.locks[key] = name, file
		return name, nil
	}
	return "", fmt.Errorf("take a name for this agent among those of this host: %w: make %s writable, or set TMPDIR", last, i.folder)
}
