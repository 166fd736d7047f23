package runner

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Variables by which programs are told which certificates to trust: the first
// group replaces what a program trusts, so it gets a bundle with everything;
// the last adds to it.
var bundleVariables = []string{
	certFileVariable,     // Go, OpenSSL and what is built on it
	"GIT_SSL_CAINFO",     //
	"CURL_CA_BUNDLE",     //
	"REQUESTS_CA_BUNDLE", // Python
	"AWS_CA_BUNDLE",      //
}

const (
	certFileVariable  = "SSL_CERT_FILE"
	extraCertVariable = "NODE_EXTRA_CA_CERTS"
)

// systemBundles are where systems keep the certificates that they trust, in one
// file: Debian and Alpine, Fedora, older Fedora, SUSE, and macOS with the BSDs.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// maxBundle limits a file of certificates in bytes; a system's is below 1 MiB.
const maxBundle = 16 << 20

// trust makes the programs of steps trust the handover's certificates beside
// those of the environment, by a bundle in the job's own folder. Variables that
// the job sets itself are left alone. It returns what is to be said about it.
func (j *job) trust() (says []string, err error) {
	own := []byte(j.handover.CA)
	if len(own) == 0 {
		return nil, nil
	}
	bundle, found := systemBundle(j.env)
	if !found {
		says = append(says, "This environment has no certificates of its own: programs trust those of the agent's ca_file alone")
	}
	extra := own
	for _, name := range append(slices.Clone(bundleVariables[1:]), extraCertVariable) { // which the image may set
		if text, ok := readCertificates(j.env[name]); ok && !j.sets(name) {
			if name == extraCertVariable {
				extra = chain(text, own)
			}
			bundle = chain(bundle, text)
		}
	}
	all, err := j.write("ca-bundle.pem", chain(bundle, own))
	if err != nil {
		return nil, err
	}
	added, err := j.write("ca.pem", extra)
	if err != nil {
		return nil, err
	}
	for _, name := range bundleVariables {
		if !j.sets(name) {
			j.env[name] = all
		}
	}
	if !j.sets(extraCertVariable) {
		j.env[extraCertVariable] = added
	}
	return append(says, "Programs are told to trust the certificates of the agent's ca_file too: "+all), nil
}

// write writes a file in the job's own folder.
func (j *job) write(name string, text []byte) (path string, err error) {
	path = filepath.Join(j.private, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write certificates: %w", err)
	}
	return path, nil
}

// systemBundle reads the certificates that the environment trusts.
func systemBundle(env environ) (text []byte, found bool) {
	for _, path := range append([]string{env[certFileVariable]}, systemBundles...) {
		if text, found = readCertificates(path); found {
			return text, true
		}
	}
	return nil, false
}

// readCertificates reads a file if there is one, and if it can be one of
// certificates.
func readCertificates(path string) ([]byte, bool) {
	if path == "" {
		return nil, false
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil, false
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBundle))
	return text, err == nil && bytes.Contains(text, []byte("-----BEGIN "))
}

// chain puts certificates behind one another, each beginning a line.
func chain(texts ...[]byte) []byte {
	var all []byte
	for _, text := range texts {
		if len(all) > 0 && all[len(all)-1] != '\n' {
			all = append(all, '\n')
		}
		all = append(all, text...)
	}
	return all
}
