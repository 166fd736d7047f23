package handoff

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of a sealed or packed text in bytes, for an annotation and for a whole object. A
// Pod may have 262,144 bytes of annotations, and a ConfigMap or a Secret 1 MiB of data; the
// difference is left for annotations and data of others.
const (
	MaxAnnotation = 240 << 10
	MaxObject     = 1000 << 10
)

// maxOpened is the largest text in bytes after decompression: one byte more than the largest
// handoff, so that the reader of the handoff refuses a larger one.
const maxOpened = 16<<20 + 1

// keyPrefix begins a public key in its text form and names the scheme.
const keyPrefix = "x25519:"

// ErrTooLarge is returned by [Seal] and [Pack] for a text that does not fit into
// the limit.
var ErrTooLarge = errors.New("handoff is too large")

// Recipient identifies the only instance that may open a sealed text.
type Recipient struct {
	Pod        string `json:"pod"` // uid
	Job        string `json:"job"`
	Generation string `json:"generation"`
}

// info returns the recipient as HPKE's info parameter.
func (r Recipient) info() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings only
	}
	return append([]byte("cmwa handoff 1\n"), text...)
}

// NewKey returns a new private key, and its public half as text.
func NewKey() (private []byte, public string, err error) {
	key, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	if err != nil {
		return nil, "", fmt.Errorf("generate key: %w", err)
	}
	private, err = key.Bytes()
	if err != nil {
		return nil, "", fmt.Errorf("encode key: %w", err)
	}
	return private, keyPrefix + base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()), nil
}

// IsKey reports whether the text is a public key.
func IsKey(public string) bool {
	_, err := parseKey(public)
	return err == nil
}

func parseKey(public string) (hpke.PublicKey, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(public), keyPrefix)
	if !ok {
		return nil, errors.New("not a public key of this release")
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("decode public key: %w", err)
	}
	return hpke.DHKEM(ecdh.X25519()).NewPublicKey(raw)
}

// Seal returns the text encrypted for the holder of the private key and the recipient.
// Limit is the maximum length of the sealed text in bytes. Its errors never contain the
// text.
func Seal(public string, to Recipient, text []byte, limit int) (string, error) {
	key, err := parseKey(public)
	if err != nil {
		return "", err
	}
	sealed, err := hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), to.info(), compress(text))
	if err != nil {
		return "", fmt.Errorf("seal handoff: %w", err)
	}
	if length := base64.StdEncoding.EncodedLen(len(sealed)); length > limit {
		return "", tooLarge("compressed and sealed", length, limit)
	}
	return base64.StdEncoding.EncodeToString(sealed), nil
}

// Pack returns the text compressed, for an object that only the recipient's namespace can
// read. Limit is the maximum length of the packed text in bytes.
func Pack(text []byte, limit int) ([]byte, error) {
	packed := compress(text)
	if len(packed) > limit {
		return nil, tooLarge("compressed", len(packed), limit)
	}
	return packed, nil
}

// tooLarge wraps ErrTooLarge. How is the operation on the text, such as sealed.
func tooLarge(how string, length, limit int) error {
	return fmt.Errorf("%w: %d KiB %s, and at most %d KiB can be sent", ErrTooLarge, length>>10, how, limit>>10)
}

// compress returns the text compressed. It cannot fail: the level is valid, and a buffer accepts
// every write.
func compress(text []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	_, _ = w.Write(text)
	_ = w.Close()
	return packed.Bytes()
}

// Open returns the text that was sealed to the key for the recipient.
func Open(private []byte, as Recipient, sealed string) ([]byte, error) {
	key, err := hpke.DHKEM(ecdh.X25519()).NewPrivateKey(private)
	if err != nil {
		return nil, errors.New("the private key is damaged")
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(sealed))
	if err != nil {
		return nil, errors.New("the sealed handoff is damaged: not base64")
	}
	packed, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), as.info(), raw)
	if err != nil {
		return nil, errors.New("the handoff is not sealed to this Pod, job and key")
	}
	return Unpack(packed)
}

// Unpack returns the text that [Pack] has compressed.
func Unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("decompress handoff: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxOpened))
	if err != nil {
		return nil, fmt.Errorf("decompress handoff: %w", err)
	}
	return text, nil
}
