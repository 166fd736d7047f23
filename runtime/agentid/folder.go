package agentid

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Directory returns the state folder: the configured one, or else the first of
//
//   - $STATE_DIRECTORY, which systemd sets for a unit with StateDirectory=
//     (systemd.exec(5)); the first folder of its list
//   - $XDG_STATE_HOME/cmwa (XDG Base Directory Specification)
//   - /var/lib/cmwa for root
//   - $HOME/.local/state/cmwa
//
// A relative path in a variable is ignored, as the XDG specification requires.
func Directory(configured string, environ func(string) (string, bool), uid int) (string, error) {
	if configured != "" {
		return filepath.Abs(configured)
	}
	set := func(name string) string {
		value, _ := environ(name)
		if !filepath.IsAbs(value) {
			return ""
		}
		return value
	}
	list, _ := environ("STATE_DIRECTORY")
	if first, _, _ := strings.Cut(list, ":"); filepath.IsAbs(first) {
		return first, nil
	}
	switch state, home := set("XDG_STATE_HOME"), set("HOME"); {
	case state != "":
		return filepath.Join(state, "cmwa"), nil
	case uid == 0:
		return "/var/lib/cmwa", nil
	case home != "":
		return filepath.Join(home, ".local", "state", "cmwa"), nil
	}
	return "", errors.New("no state folder: " +
		"neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME is set to an absolute path")
}

// noFile is the folder of agents without a configuration file.
const noFile = "no-file"

// folderOf returns the name of the subfolder of the state folder for a configuration file.
// The name of the file makes it readable, and the digest makes it unique.
func folderOf(config string) string {
	if config == "" {
		return noFile
	}
	if path, err := filepath.Abs(config); err == nil {
		config = path
	}
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, filepath.Base(config))
	sum := sha256.Sum256([]byte(config))
	return fmt.Sprintf("%.60s-%s", readable, hex.EncodeToString(sum[:8]))
}

// Folders returns the folders of the agents that run, or have run, with this configuration
// file, sorted by number. There are none if the state folder does not exist.
func Folders(folder, config string) ([]string, error) {
	folder = filepath.Join(folder, folderOf(config))
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil && entry.IsDir() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	folders := make([]string, 0, len(numbers))
	for _, n := range numbers {
		folders = append(folders, filepath.Join(folder, strconv.Itoa(n)))
	}
	return folders, nil
}
