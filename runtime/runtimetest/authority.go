package runtimetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Serve serves on a host of this machine until the test ends. It returns the URL of the server.
func Serve(t testing.TB, host string, handler http.Handler) (url string) {
	t.Helper()
	listener := listen(t, host)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: limit}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return "http://" + listener.Addr().String()
}

func listen(t testing.TB, host string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatalf("listen at %s: %v", host, err)
	}
	return listener
}

// ServeTLS is [Serve] with TLS. A new authority signs the server's certificate; ServeTLS also
// returns the certificate of this authority in PEM form.
func ServeTLS(t testing.TB, host string, handler http.Handler) (url, authority string) {
	t.Helper()
	authority, certificate := certify(t, host)
	server := &httptest.Server{
		Listener: listen(t, host), Config: &http.Server{Handler: handler},
		TLS: &tls.Config{Certificates: []tls.Certificate{certificate}},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, authority
}

// certify creates an authority, and a certificate for a host, signed by the authority.
func certify(t testing.TB, host string) (authority string, certificate tls.Certificate) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	sign := func(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
		signed, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}

	begin, end := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	name := pkix.Name{CommonName: "authority " + rand.Text()}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: name, NotBefore: begin, NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{host},
	}
	if ip := net.ParseIP(host); ip != nil {
		leaf.DNSNames, leaf.IPAddresses = nil, []net.IP{ip}
	}

	rootKey, leafKey := key(), key()
	signed := sign(root, root, rootKey, rootKey)
	certificate = tls.Certificate{Certificate: [][]byte{sign(leaf, root, leafKey, rootKey)}, PrivateKey: leafKey}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})), certificate
}
