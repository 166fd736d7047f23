package agentid

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
)

const idBytes = 16

// errDamaged means that a file does not contain an id.
var errDamaged = errors.New("it does not contain an agent id")

func newID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails, see crypto/rand
	return hex.EncodeToString(id[:])
}

// readID reads an id. The error wraps fs.ErrNotExist if the file is missing, and
// errDamaged if it has no id or is not a regular file.
func readID(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO): // ELOOP: a link; ENXIO: a socket
		return "", errDamaged
	case err != nil:
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errDamaged)
	}
	text, err := io.ReadAll(io.LimitReader(file, 2*idBytes+2))
	if err != nil {
		return "", err
	}
	id := strings.TrimSuffix(string(text), "\n")
	if len(id) != 2*idBytes || strings.Trim(id, "0123456789abcdef") != "" {
		return "", errDamaged
	}
	return id, nil
}
