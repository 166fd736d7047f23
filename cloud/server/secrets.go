package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	keySize     = 32
	sealVersion = 1 // first byte of sealed data, before a random nonce and the AES-256-GCM ciphertext
)

// key encrypts and decrypts with AES-256-GCM. It is safe for concurrent use.
type key struct{ aead cipher.AEAD }

func newKey(raw []byte) (key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, fmt.Errorf("make a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return key{}, fmt.Errorf("make a key: %w", err)
	}
	return key{aead}, nil
}

// seal encrypts data for a purpose. The purpose is authenticated, but not stored: open
// refuses data that was sealed for another purpose.
func (k key) seal(plain []byte, purpose string) []byte {
	return k.aead.Seal([]byte{sealVersion}, nil, plain, []byte(purpose))
}

// errSealed is the error for every ciphertext that cannot be decrypted.
var errSealed = errors.New("the ciphertext was not made by this service for this stack")

func (k key) open(sealed []byte, purpose string) ([]byte, error) {
	if len(sealed) == 0 || sealed[0] != sealVersion {
		return nil, errSealed
	}
	plain, err := k.aead.Open(nil, nil, sealed[1:], []byte(purpose))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}

// Purposes of sealed data.
const (
	forValue      = "value"      // of deployment settings; leaves the service as a ciphertext
	forSecret     = "secret"     // of a stack's config or state; leaves the service as a ciphertext
	forDefinition = "definition" // of a job
	forStack      = "stack "     // followed by the stack's id: its key, under the master key
	forActivity   = "activity "  // followed by the activity's id: the definition of its jobs, under the master key
)

// openMaster reads the master key of a data directory. If the directory has neither a key nor a
// database, it makes a key. It refuses a directory with a database and without a key, because a
// new key could not decrypt the database.
func openMaster(directory string) (key, error) {
	path := filepath.Join(directory, "master.key")
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(directory, "cloud.db")); err == nil {
			return key{}, fmt.Errorf("%s is missing, and the secrets in the database need it: "+
				"restore it, or start with an empty directory", path)
		}
		raw = make([]byte, keySize)
		rand.Read(raw)
		err = secret.WriteFile(path, raw)
	}
	switch {
	case err != nil:
		return key{}, fmt.Errorf("open the master key: %w", err)
	case len(raw) != keySize:
		return key{}, fmt.Errorf("open the master key: %s has %d bytes and not %d", path, len(raw), keySize)
	}
	return newKey(raw)
}

// newStackKey makes a key for a stack, and returns it in its stored form.
func (s *Server) newStackKey(stack string) []byte {
	raw := make([]byte, keySize)
	rand.Read(raw)
	return s.master.seal(raw, forStack+stack)
}

// stackKey decrypts the stored key of a stack.
func (s *Server) stackKey(stack string, wrapped []byte) (key, error) {
	raw, err := s.master.open(wrapped, forStack+stack)
	if err != nil {
		return key{}, fmt.Errorf("decrypt the key of stack %s: master.key may belong to another directory: %w",
			stack, err)
	}
	return newKey(raw)
}
