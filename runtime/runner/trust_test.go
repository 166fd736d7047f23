package runner_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// countCertificates prints, for each variable, how many certificates its file has.
const countCertificates = `for v in SSL_CERT_FILE GIT_SSL_CAINFO CURL_CA_BUNDLE \
REQUESTS_CA_BUNDLE AWS_CA_BUNDLE NODE_EXTRA_CA_CERTS; do
eval "file=\$$v"
echo "$v has $(grep -c -e '^-----BEGIN' "$file") in $file"
done`

// certificates writes a file of n copies of a certificate, without a newline at
// its end.
func certificates(t *testing.T, text string, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.pem")
	noError(t, os.WriteFile(path, []byte(strings.TrimSpace(strings.Repeat(text, n))), 0o600))
	return path
}

// behindTLS serves the service over TLS, with a certificate of a new authority. It puts the
// URL and the authority's certificate into the handoff, and returns this certificate.
func (w *fixture) behindTLS(t *testing.T) (authority string) {
	t.Helper()
	w.handoff.Service, w.handoff.CA = runtimetest.ServeTLS(t, "127.0.0.1", w.service)
	return w.handoff.CA
}

func TestTrustCA(t *testing.T) {
	t.Run("runner and steps trust the certificates of the handoff", func(t *testing.T) {
		w := newFixture(t, steps(countCertificates))
		authority := w.behindTLS(t)
		w.options.Environ = append(w.options.Environ, "SSL_CERT_FILE="+certificates(t, authority, 3))
		w.run(runtime.CodeSucceeded)
		w.wantLog(0, "trust the certificates of the agent's ca_file")
		w.wantLog(1, "SSL_CERT_FILE has 4", "GIT_SSL_CAINFO has 4", "CURL_CA_BUNDLE has 4",
			"REQUESTS_CA_BUNDLE has 4", "AWS_CA_BUNDLE has 4", "NODE_EXTRA_CA_CERTS has 1")
		if left := w.leftovers(); len(left) > 0 {
			t.Errorf("%q is left", left)
		}
	})

	t.Run("bundle of the system is the default", func(t *testing.T) {
		system, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt") // some systems have another place for them
		w := newFixture(t, steps(`cat "$SSL_CERT_FILE" | cksum`, `cksum <"$EXPECTED"`))
		authority := w.behindTLS(t)
		if system == nil {
			w.options.Environ = append(w.options.Environ, "SSL_CERT_FILE="+certificates(t, authority, 1))
			system = []byte(authority)
		}
		expected := filepath.Join(t.TempDir(), "expected")
		noError(t, os.WriteFile(expected, append(system, authority...), 0o600))
		w.options.Environ = append(w.options.Environ, "EXPECTED="+expected)
		w.run(runtime.CodeSucceeded)
		_, first, _ := strings.Cut(w.record().Text(1), "\n")
		_, second, _ := strings.Cut(w.record().Text(2), "\n")
		if first == "" || first != second {
			t.Errorf("the checksum of the bundle is %q, want %q", first, second)
		}
	})

	t.Run("variables of the job stay unchanged", func(t *testing.T) {
		definition := steps(countCertificates)
		_, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.NotFoundHandler())
		one, five := certificates(t, authority, 1), certificates(t, authority, 5)
		definition.Env = map[string]cloud.SecretValue{
			"SSL_CERT_FILE": {Value: secret.New(one)}, "NODE_EXTRA_CA_CERTS": {Value: secret.New(five)},
		}
		w := newFixture(t, definition)
		w.behindTLS(t)
		w.handoff.Forward = map[string]string{"AWS_CA_BUNDLE": five}
		two, six := certificates(t, authority, 2), certificates(t, authority, 6)
		w.options.Environ = append(w.options.Environ, "CURL_CA_BUNDLE="+two, "AWS_CA_BUNDLE="+six) // of the image
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "SSL_CERT_FILE has 1 in", "GIT_SSL_CAINFO has 4", "CURL_CA_BUNDLE has 4",
			"REQUESTS_CA_BUNDLE has 4", "AWS_CA_BUNDLE has 5 in", "NODE_EXTRA_CA_CERTS has 5 in")
	})

	t.Run("handoff without certificates sets no variable", func(t *testing.T) {
		w := newFixture(t, steps(`echo "bundle: [$GIT_SSL_CAINFO$NODE_EXTRA_CA_CERTS]"`))
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "bundle: []\n")
	})
}
