package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxPEM limits a file with a certificate or a key, in bytes.
const maxPEM = 1 << 20

// certificate is the certificate of the service. It is read again when its files change, so that a renewal needs no
// restart. Its methods are safe for concurrent use.
type certificate struct {
	chain string        // path of the certificates, or the certificates as PEM
	key   secret.String // path of the key, or the key as PEM
	log   *slog.Logger

	mu      sync.Mutex
	read    [2][]byte // content that was read last, of chain and key
	current *tls.Certificate
}

// openCertificate reads a certificate. It refuses one that has expired, and a key of another certificate.
func openCertificate(chain string, key secret.String, log *slog.Logger) (*certificate, error) {
	c := &certificate{chain: chain, key: key, log: log}
	var err error
	if c.read, err = c.readFiles(); err == nil {
		c.current, err = parseCertificate(c.read)
	}
	return c, err
}

// get returns the certificate for a handshake. It reads both files in each handshake, which takes less than a tenth of
// the time of the signature. If they have changed and do not belong together, for example because only the first is
// replaced yet, get returns the certificate before the change.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	read, err := c.readFiles()
	if err == nil && bytes.Equal(read[0], c.read[0]) && bytes.Equal(read[1], c.read[1]) {
		return c.current, nil
	}
	// An error is logged once for each change. A file that cannot be read counts as empty.
	changed := err == nil || c.read[0] != nil
	c.read = read
	var renewed *tls.Certificate
	if err == nil {
		renewed, err = parseCertificate(read)
	}
	switch {
	case err == nil:
		c.current = renewed
		c.log.Info("certificate reloaded", "component", "tls", "expires", renewed.Leaf.NotAfter)
	case changed:
		c.log.Warn("cannot reload the certificate: the previous one stays in use", "component", "tls", "error", err)
	}
	return c.current, nil
}

// readFiles returns the content of the chain and of the key. The error names the file, but contains no content.
func (c *certificate) readFiles() (content [2][]byte, err error) {
	for i, source := range []string{c.chain, c.key.Reveal()} {
		if isPEM(source) {
			content[i] = []byte(source)
			continue
		}
		if content[i], err = readLimited(source, maxPEM); err != nil {
			return [2][]byte{}, err
		}
	}
	return content, nil
}

// readLimited reads a regular file. A larger file is an error.
func readLimited(path string, limit int64) ([]byte, error) {
	file, _, err := secret.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("read %s: it is larger than %d KiB", path, limit>>10)
	}
	return content, err
}

func parseCertificate(content [2][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	if end := pair.Leaf.NotAfter; time.Now().After(end) {
		return nil, fmt.Errorf("the certificate expired at %s", end.Format(time.RFC3339))
	}
	return &pair, nil
}

// tlsVersion returns the version with a name that API_MIN_TLS_VERSION allows.
func tlsVersion(name string) uint16 {
	if name == "1.3" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}
