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

// MaxSealed is the longest sealed text in bytes. A Pod may have 262,144 bytes of
// annotations; the difference is left for those of others.
const MaxSealed = 240 << 10

// maxOpened limits the text after decompression, in bytes.
const maxOpened = 64<<20 + 1

// keyPrefix begins a public key in its text form and names the scheme.
const keyPrefix = "x25519:"

// ErrTooLarge is returned by [Seal] for a text that does not fit into
// [MaxSealed] bytes.
var ErrTooLarge = errors.New("handoff is too large")

// Recipient names the one environment that may open a sealed text.
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

// Seal returns the text in a form that only the holder of the private key can
// open, and only as the named recipient. Its errors never show the text.
func Seal(public string, to Recipient, text []byte) (string, error) {
	key, err := parseKey(public)
	if err != nil {
		return "", err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return "", err
	}
	_, err = w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("compress handoff: %w", err)
	}
	sealed, err := hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), to.info(), packed.Bytes())
	if err != nil {
		return "", fmt.Errorf("seal handoff: %w", err)
	}
	if length := base64.StdEncoding.EncodedLen(len(sealed)); length > MaxSealed {
		return "", fmt.Errorf("%w: %d KiB compressed and sealed, at most %d KiB fit into a Pod's annotations",
			ErrTooLarge, length>>10, MaxSealed>>10)
	}
	return base64.StdEncoding.EncodeToString(sealed), nil
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
