package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// bundleVariables name a file of trusted certificates. The file replaces the certificates
// that a program trusts by default, so the file must contain these too.
var bundleVariables = []string{
	certFileVariable,     // Go and OpenSSL
	"GIT_SSL_CAINFO",     // Git
	"CURL_CA_BUNDLE",     // curl
	"REQUESTS_CA_BUNDLE", // Python
	"AWS_CA_BUNDLE",      // programs for AWS
}

const (
	certFileVariable  = "SSL_CERT_FILE"
	extraCertVariable = "NODE_EXTRA_CA_CERTS" // adds to the certificates that Node.js trusts
)

// systemBundles are the files in which systems store their trusted certificates: Debian
// and Alpine, Fedora, older Fedora, SUSE, and macOS with the BSDs.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// maxBundle is the largest file of certificates in bytes. The files of systems are smaller
// than 1 MiB.
const maxBundle = 16 << 20

// trustCA makes the programs of steps trust the certificates of the handoff in addition
// to those of the instance. It writes both into a bundle in the directory of the job, and sets
// the variables that name a bundle. Variables that the job sets stay unchanged. It returns
// messages for the log.
func (j *job) trustCA() (messages []string, err error) {
	own := []byte(j.handoff.CA)
	if len(own) == 0 {
		return nil, nil
	}

	bundle, found := systemBundle(j.env)
	if !found {
		messages = append(messages, "No trusted certificates were found in this environment: "+
			"programs trust only those of the agent's ca_file")
	}
	extra := own
	for _, name := range append(slices.Clone(bundleVariables[1:]), extraCertVariable) { // the image may set them
		if text, ok := readCertificates(j.env[name]); ok && !j.sets(name) {
			if name == extraCertVariable {
				extra = chain(text, own)
			}
			bundle = chain(bundle, text)
		}
	}

	all, err := j.writeCertificates("ca-bundle.pem", chain(bundle, own))
	if err != nil {
		return nil, err
	}
	added, err := j.writeCertificates("ca.pem", extra)
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
	return append(messages, "Programs also trust the certificates of the agent's ca_file: "+all), nil
}

func (j *job) writeCertificates(name string, text []byte) (path string, err error) {
	path = filepath.Join(j.private, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write certificates: %w", err)
	}
	return path, nil
}

// systemBundle returns the certificates that the instance trusts: those of the file in
// SSL_CERT_FILE, or else of the first of systemBundles that exists.
func systemBundle(env environ) (text []byte, found bool) {
	for _, path := range append([]string{env[certFileVariable]}, systemBundles...) {
		if text, found = readCertificates(path); found {
			return text, true
		}
	}
	return nil, false
}

// readCertificates reads a file if it exists and may contain certificates.
func readCertificates(path string) ([]byte, bool) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil, false
	}
	text, err := os.ReadFile(path)
	return text, err == nil && bytes.Contains(text, []byte("-----BEGIN "))
}

// chain concatenates certificates, each at the beginning of a line.
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
