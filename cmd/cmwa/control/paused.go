package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	pausedName = "paused"
	maxPaused  = 1 << 20 // bytes
)

// Restore pauses the pools that were paused when the agent with this directory ended. If it cannot
// find out which, it pauses all pools of the configuration: a pool that was paused for maintenance
// must not claim jobs.
func Restore(agent Agent, pools []string, log *slog.Logger) {
	names, err := ReadPaused(agent.Directory)
	if err != nil {
		log.Error("cannot read which pools are paused, so all are: use cmwa resume for each pool", "error", err)
		names = pools
	}
	for _, name := range names {
		agent.Loop.Pause(name)
	}
}

// ReadPaused returns the names of the pools that were paused when the agent with this
// directory ended. It returns no names if directory is empty.
func ReadPaused(directory string) ([]string, error) {
	if directory == "" {
		return nil, nil
	}
	path := filepath.Join(directory, pausedName)
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxPaused))
	if err != nil {
		return nil, err
	}
	names, err := DecodePaused(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return names, nil
}

// DecodePaused decodes the stored names.
func DecodePaused(text []byte) (names []string, err error) {
	if json.Unmarshal(text, &names) != nil {
		return nil, errors.New("the file is not a list of pools")
	}
	return names, nil
}

// writePaused stores the names of the paused pools. After a crash the file has either the
// old or the new list. If no pool is paused, there is no file.
func writePaused(directory string, names []string) error {
	if directory == "" {
		return errNoDirectory
	}
	path := filepath.Join(directory, pausedName)
	if len(names) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return secret.SyncDirectory(directory)
	}
	text, err := json.Marshal(slices.Sorted(slices.Values(names)))
	if err != nil {
		return err
	}
	return secret.WriteFile(path, text)
}
