package records

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/journal"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	maxRecord = 512 << 10 // bytes of a record

	version = 1                // of the encoding
	keyInfo = "cmwa journal 1" // the info parameter of HKDF
)

// ErrSealed is returned for a record that is sealed with another key or was changed, and
// for a record that is not sealed although it must be.
var ErrSealed = errors.New("the record was changed, or is not sealed with the present token of the pool")

// Key encodes and decodes the records of one pool. The zero value does not seal.
type Key struct {
	sealing cipher.AEAD // chooses the nonces; nil without a static token
}

// NewKey returns the key of a pool with this static token. For an empty token, it returns
// the zero value.
func NewKey(token secret.String) Key {
	if token.Empty() {
		return Key{}
	}
	raw, err := hkdf.Key(sha256.New, []byte(token.Reveal()), nil, keyInfo, 32)
	if err != nil {
		panic(err) // the length is valid
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		panic(err) // the length is valid
	}
	sealing, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // it is AES
	}
	return Key{sealing}
}

// Seals reports whether Encode seals records, so that others may read the objects.
func (k Key) Seals() bool { return k.sealing != nil }

// Entry is a record, and the Pod of its job.
type Entry struct {
	Record runtime.Record
	Pod    string // name; empty until the Pod is about to be created
	UID    string // of the Pod; empty until the Pod is created
}

// envelope is the text of an object.
type envelope struct {
	Version int             `json:"version"`
	Sealed  []byte          `json:"sealed,omitempty"` // nonce and sealed entry
	Entry   json.RawMessage `json:"entry,omitempty"`  // if it is not sealed
}

// entry is an Entry in JSON.
type entry struct {
	Record json.RawMessage `json:"record"`
	Pod    string          `json:"pod,omitempty"`
	UID    string          `json:"uid,omitempty"`
}

// Encode returns the text of an entry for the object with this name. It leaves out the CA
// certificates: only a pool that is configured adopts a record, and it has its own. A bundle of
// 200 KiB would be stored twice for each job.
func (k Key) Encode(name string, e Entry) ([]byte, error) {
	e.Record.CA = ""
	record, err := journal.Encode(e.Record)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(entry{Record: record, Pod: e.Pod, UID: e.UID})
	if err != nil {
		return nil, fmt.Errorf("encode the record of a job: %w", err)
	}

	wrapped := envelope{Version: version, Entry: text}
	if k.Seals() {
		wrapped.Entry, wrapped.Sealed = nil, k.sealing.Seal(nil, nil, text, []byte(name))
	}
	text, err = json.Marshal(wrapped)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encode the record of a job: %w", err)
	case len(text) > maxRecord:
		return nil, fmt.Errorf("encode the record of a job: it has %d KiB, and at most %d KiB can be stored",
			len(text)>>10, maxRecord>>10)
	}
	return text, nil
}

// Decode returns the entry in the object with this name. It returns [ErrSealed] if the entry
// is sealed with another key, or was changed. It also returns ErrSealed for an entry that is
// not sealed although the pool has a static token, because other users may have written it.
func (k Key) Decode(name string, text []byte) (Entry, error) {
	var wrapped envelope
	switch {
	case len(text) > maxRecord:
		return Entry{}, fmt.Errorf("decode the record of a job: it is larger than %d KiB", maxRecord>>10)
	case json.Unmarshal(text, &wrapped) != nil:
		return Entry{}, errors.New("decode the record of a job: it is damaged")
	case wrapped.Version != version:
		return Entry{}, fmt.Errorf("decode the record of a job: it has version %d, and this release reads version %d",
			wrapped.Version, version)
	}
	if k.Seals() != (wrapped.Sealed != nil) {
		return Entry{}, ErrSealed
	}
	if k.Seals() {
		opened, err := k.sealing.Open(nil, nil, wrapped.Sealed, []byte(name))
		if err != nil {
			return Entry{}, ErrSealed
		}
		wrapped.Entry = opened
	}

	var e entry
	if json.Unmarshal(wrapped.Entry, &e) != nil {
		return Entry{}, errors.New("decode the record of a job: it is damaged")
	}
	record, err := journal.Decode(e.Record)
	if err != nil {
		return Entry{}, fmt.Errorf("decode the record of a job: %w", err)
	}
	return Entry{Pod: e.Pod, UID: e.UID, Record: record}, nil
}
