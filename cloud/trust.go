package cloud

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
)

// Transport returns a copy of Go's default transport that closes dead connections. It
// trusts the system's certificates, and in addition the certificates in the argument, a
// text in PEM form that may be empty. If the text is not empty and contains no certificate,
// the transport trusts only the system's certificates, and the error is not nil.
func Transport(certificates string) (*http.Transport, error) {
	transport := newTransport()
	return transport, trust(transport, certificates)
}

// trust makes an unused transport trust additional certificates.
func trust(transport *http.Transport, certificates string) error {
	if certificates == "" {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM([]byte(certificates)) {
		return errors.New("ca_file contains no certificate in PEM form")
	}
	if transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{}
	}
	transport.TLSClientConfig.RootCAs = pool
	return nil
}

// untrusted reports whether an error means that the service's certificate is not trusted.
func untrusted(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError))
}
