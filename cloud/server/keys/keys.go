// Package keys encrypts what the service keeps secret. One master key wraps a random key of each stack and one
// of the service, and these keys encrypt the data. So a master key that never leaves a key service is
// asked once for each key, and a change of the master key wraps keys again and encrypts no data again.
//
// A wrapped key begins with a byte for the kind of its master key, so that a later release can read it:
// 1 is the file of [Local].
//
// The interface [Master] has the shape of gocloud.dev/secrets and does not import it: that module adds gRPC and
// 9 MB to the service, and raises versions of modules that the agent also uses. Master keys in
// cloud services do not exist yet.
package keys

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Size is the size of every key in bytes.
const Size = 32

// sealVersion is the first byte of sealed data. A random nonce and the AES-256-GCM ciphertext follow.
const sealVersion = 1

// Key encrypts and decrypts with AES-256-GCM. It is safe for concurrent use.
type Key struct{ aead cipher.AEAD }

// FromBytes returns the key with the given Size bytes.
func FromBytes(raw []byte) (Key, error) {
	if len(raw) != Size {
		return Key{}, fmt.Errorf("make a key: %d bytes, want %d", len(raw), Size)
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return Key{}, fmt.Errorf("make a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return Key{}, fmt.Errorf("make a key: %w", err)
	}
	return Key{aead}, nil
}

// Seal encrypts data for a purpose. The purpose is authenticated, but not stored: Open
// refuses data that was sealed for another purpose.
func (k Key) Seal(plain []byte, purpose string) []byte {
	return k.aead.Seal([]byte{sealVersion}, nil, plain, []byte(purpose))
}

// ErrSealed is the error for every ciphertext that cannot be decrypted.
var ErrSealed = errors.New("the ciphertext was not made by this service for this stack")

// Open decrypts what Seal returned, or returns ErrSealed.
func (k Key) Open(sealed []byte, purpose string) ([]byte, error) {
	if len(sealed) == 0 || sealed[0] != sealVersion {
		return nil, ErrSealed
	}
	plain, err := k.aead.Open(nil, nil, sealed[1:], []byte(purpose))
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}

// Master is a master key. It is safe for concurrent use.
type Master interface {
	// Wrap encrypts a key. The result begins with the byte of the kind of master key. The purpose names
	// the owner of the key.
	Wrap(ctx context.Context, key []byte, purpose string) ([]byte, error)
	// Unwrap decrypts a wrapped key. The error is ErrSealed if another master key or another purpose
	// wrapped it.
	Unwrap(ctx context.Context, wrapped []byte, purpose string) ([]byte, error)
}

// cached is the number of unwrapped keys in memory: about 3 MB.
const cached = 10_000

// Keys makes and unwraps keys. It is safe for concurrent use.
type Keys struct {
	master Master
	cache  *lru.Cache[cacheKey, [Size]byte]
}

type cacheKey struct{ purpose, wrapped string }

// New returns the keys below a master key.
func New(master Master) *Keys {
	cache, err := lru.New[cacheKey, [Size]byte](cached)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &Keys{master, cache}
}

// Make returns a new random key, wrapped.
func (k *Keys) Make(ctx context.Context, purpose string) (wrapped []byte, err error) {
	raw := make([]byte, Size)
	rand.Read(raw)
	if wrapped, err = k.master.Wrap(ctx, raw, purpose); err != nil {
		return nil, fmt.Errorf("wrap a key: %w", err)
	}
	return wrapped, nil
}

// Unwrap returns a key that Make wrapped for the same purpose. It asks the master key only for a key that is
// not in memory.
func (k *Keys) Unwrap(ctx context.Context, wrapped []byte, purpose string) (Key, error) {
	at := cacheKey{purpose, string(wrapped)}
	if raw, found := k.cache.Get(at); found {
		return FromBytes(raw[:])
	}
	raw, err := k.master.Unwrap(ctx, wrapped, purpose)
	if err != nil {
		return Key{}, fmt.Errorf("unwrap a key: %w", err)
	}
	key, err := FromBytes(raw)
	if err == nil {
		k.cache.Add(at, [Size]byte(raw))
	}
	return key, err
}
