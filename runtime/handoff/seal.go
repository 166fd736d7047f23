package handoff

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hpke"
	"encoding/base64"
	"encoding/hex"
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

// ErrTooLarge is returned by [Sender.Seal] and [Sender.Pack] for a text that does not fit into
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

// Sender signs the handoffs for one instance. It exists only in the agent that starts the instance:
// no other agent ever sends a handoff to an instance that exists. The zero value is not ready for
// use. A Sender is safe for concurrent use.
type Sender struct{ key ed25519.PrivateKey }

// signing separates the signatures of handoffs from all others.
var signing = &ed25519.Options{Context: "cmwa handoff 1"}

// errSender is returned for a text that any other process may have written.
var errSender = errors.New("the handoff is not signed by the agent that created this Pod: " +
	"another client of the cluster has written it")

// NewSender returns a Sender with a new key.
func NewSender() (Sender, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return Sender{}, fmt.Errorf("generate key: %w", err)
	}
	return Sender{key}, nil
}

// Public returns the key that checks the signatures, as text. The runner gets it as an argument.
func (s Sender) Public() string { return hex.EncodeToString(s.key.Public().(ed25519.PublicKey)) }

// sign returns the signature of a text, followed by the text.
func (s Sender) sign(text []byte) ([]byte, error) {
	signature, err := s.key.Sign(nil, text, signing)
	if err != nil {
		return nil, fmt.Errorf("sign handoff: %w", err)
	}
	return append(signature, text...), nil
}

// verify returns the text that the sender with this public key has signed.
func verify(sender string, signed []byte) ([]byte, error) {
	key, err := hex.DecodeString(sender)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("the key of the sender is damaged")
	}
	if len(signed) < ed25519.SignatureSize {
		return nil, errSender
	}
	signature, text := signed[:ed25519.SignatureSize], signed[ed25519.SignatureSize:]
	if ed25519.VerifyWithOptions(key, text, signature, signing) != nil {
		return nil, errSender
	}
	return text, nil
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

// Seal returns the text encrypted for the holder of the private key and the recipient, and signed.
// Limit is the maximum length of the sealed text in bytes. Its errors never contain the
// text.
func (s Sender) Seal(public string, to Recipient, text []byte, limit int) (string, error) {
	key, err := parseKey(public)
	if err != nil {
		return "", err
	}
	sealed, err := hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), to.info(), compress(text))
	if err != nil {
		return "", fmt.Errorf("seal handoff: %w", err)
	}
	if sealed, err = s.sign(sealed); err != nil {
		return "", err
	}
	if length := base64.StdEncoding.EncodedLen(len(sealed)); length > limit {
		return "", tooLarge("compressed and sealed", length, limit)
	}
	return base64.StdEncoding.EncodeToString(sealed), nil
}

// Pack returns the text compressed and signed, for an object that only the recipient's namespace
// can read. Limit is the maximum length of the packed text in bytes.
func (s Sender) Pack(text []byte, limit int) ([]byte, error) {
	packed, err := s.sign(compress(text))
	if err != nil {
		return nil, err
	}
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

// Open returns the text that the sender has sealed to the key for the recipient.
func Open(private []byte, sender string, as Recipient, sealed string) ([]byte, error) {
	key, err := hpke.DHKEM(ecdh.X25519()).NewPrivateKey(private)
	if err != nil {
		return nil, errors.New("the private key is damaged")
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(sealed))
	if err != nil {
		return nil, errors.New("the sealed handoff is damaged: not base64")
	}
	if raw, err = verify(sender, raw); err != nil {
		return nil, err
	}
	packed, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), as.info(), raw)
	if err != nil {
		return nil, errors.New("the handoff is not sealed to this Pod, job and key")
	}
	return decompress(packed)
}

// Unpack returns the text that the sender has packed.
func Unpack(sender string, packed []byte) ([]byte, error) {
	packed, err := verify(sender, packed)
	if err != nil {
		return nil, err
	}
	return decompress(packed)
}

func decompress(packed []byte) ([]byte, error) {
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
