package agentid

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
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
// A relative path in a variable is ignored, as the specification demands.
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
	return "", errors.New("no state folder: neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME is set")
}

// noFile is the folder of agents without a configuration file.
const noFile = "no-file"

// folderOf names the folder of a configuration file. The name of the file is only
// there for people.
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
