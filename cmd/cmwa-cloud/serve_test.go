package main

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/servertest"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema/printable"
)

func TestServeOIDCIssuer(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	var flags, tokens []string
	for _, issuer := range []string{"https://one.example", "https://two.example"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "jwks.json")
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"keys":[{"kty":"RSA","n":%q,"e":"AQAB"}]}`, b64(key.N.Bytes())),
			0o600); err != nil {
			t.Fatal(err)
		}
		signed := b64([]byte(`{"alg":"RS256"}`)) + "." +
			b64(fmt.Appendf(nil, `{"iss":%q,"aud":"urn:pulumi:org:organization","exp":%d}`, issuer,
				time.Now().Add(time.Hour).Unix()))
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--oidc-issuer", issuer+"="+file)
		tokens = append(tokens, signed+"."+b64(signature))
	}
	p := newService(t, flags...)
	made, _ := p.run(cli.ExitOK, "pool", "create", "p")
	var pools struct {
		All []struct{ ID string } `json:"agentPools"`
	}
	a := agent{p: p}
	if a.call(p.env["PULUMI_ACCESS_TOKEN"], "GET", "/api/orgs/organization/agent-pools", "", &pools) != 200 ||
		len(pools.All) != 1 {
		t.Fatalf("the pools are %+v after %s", pools, made)
	}
	for i, token := range append(tokens, strings.Repeat("x", 100)) {
		form := url.Values{
			"grant_type":         {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"audience":           {"urn:pulumi:org:organization"},
			"subject_token_type": {"urn:ietf:params:oauth:token-type:id_token"}, "subject_token": {token},
			"requested_token_type": {"urn:pulumi:token-type:access_token:runner"},
			"scope":                {"runner:" + pools.All[0].ID},
		}
		var got struct {
			Token string `json:"access_token"`
		}
		want := 200
		if i == len(tokens) {
			want = 400
		}
		if code := a.call("", "POST", "/api/oauth/token", form.Encode(), &got); code != want {
			t.Errorf("exchange of OIDC token %d: got status %d, want %d", i, code, want)
		}
		if code := a.call(got.Token, "GET", "/api/deployments/poll", "", nil); want == 200 && code != 204 {
			t.Errorf("a poll with the pool token for OIDC token %d: got %d, want 204", i, code)
		}
	}
}

func TestServePublicIssuer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const github = "https://token.actions.githubusercontent.com"
	for issuer, c := range map[string]struct {
		code int
		want string
	}{
		github + "=" + file: {cli.ExitFailure, "require a claim that identifies yours, such as --oidc-issuer '" +
			github + "=JWKS_FILE,sub=repo:acme/*'"},
		github + "=" + file + ",sub=repo:acme*":  {cli.ExitFailure, "also matches tokens of other customers"},
		github + "=" + file + ",sub=repo:acme/*": {cli.ExitFailure, "no key for signatures"},
		github + "=" + file + ",v2.json":         {cli.ExitUsage, "double quotes"},
	} {
		var out, log strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		code := run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"),
			"--oidc-issuer", issuer}, stdio{os.LookupEnv, &out, &log})
		cancel()
		if code != c.code || !strings.Contains(log.String(), c.want) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", issuer, code, c.code, c.want, log.String())
		}
	}
}

func TestListenAddress(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv6zero, Port: 4000}
	for address, want := range map[string]string{
		"0.0.0.0:0": "0.0.0.0:4000", "localhost:0": "localhost:4000", "[::1]:0": "[::1]:4000", ":0": "[::]:4000",
	} {
		if got := listenAddress(address, bound); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}

func TestServeLogin(t *testing.T) {
	p := newService(t)
	token := printable.ShellArgument(filepath.Join(p.directory, "access-token"))
	want := "log in with: PULUMI_ACCESS_TOKEN=$(cat " + token + ") pulumi login " + p.url + "\n"
	if got := p.out.find(t, `log in.*\n`); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestServeHeaderLimit(t *testing.T) {
	p := newService(t)
	for size, want := range map[int]int{30 << 10: 200, 40 << 10: 431} {
		request, err := http.NewRequest("GET", p.url+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Large", strings.Repeat("x", size))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a header of %d bytes: got %d, want %d", size, response.StatusCode, want)
		}
	}
}

// TestServeDrain ends the service in the middle of a call. The call is answered, and new connections are refused.
func TestServeDrain(t *testing.T) {
	p := newService(t)
	address := strings.TrimPrefix(p.url, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"name":"late"}`
	fmt.Fprintf(conn, "POST /api/orgs/organization/agent-pools HTTP/1.1\r\nHost: %s\r\nAuthorization: token %s\r\n"+
		"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", address, p.env["PULUMI_ACCESS_TOKEN"], len(body))
	answers := bufio.NewReader(conn)
	next := func(want int) {
		t.Helper()
		response, err := http.ReadResponse(answers, nil)
		if err != nil || response.StatusCode != want {
			t.Fatalf("got %+v, %v, want %d", response, err, want)
		}
	}
	next(http.StatusContinue) // the handler reads the body

	p.stop()
	for { // until the listener is closed
		other, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		_ = other.Close()
	}
	if _, err := conn.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	next(http.StatusOK)
}

// newPair returns a certificate for a name, and its key, as PEM.
func newPair(t *testing.T, name string, end ...time.Time) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	until := append(end, time.Now().Add(time.Hour))[0]
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// TestServeTLS renews a certificate while the service runs.
func TestServeTLS(t *testing.T) {
	chainFile, keyFile := filepath.Join(t.TempDir(), "chain.pem"), filepath.Join(t.TempDir(), "key.pem")
	write := func(file string, content []byte) {
		t.Helper()
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chain, key := newPair(t, "first")
	write(chainFile, chain)
	write(keyFile, key)
	p := newService(t, "--tls-certificate", chainFile, "--tls-key", keyFile, "--tls-min-version", "1.3")
	// The name in the certificate of a new connection.
	name := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if version := conn.ConnectionState().Version; version != tls.VersionTLS13 {
			t.Errorf("the version is %s", tls.VersionName(version))
		}
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	want := func(what, want string) {
		t.Helper()
		for range 2 {
			if got := name(); got != want {
				t.Errorf("%s: the certificate is %s, want %s", what, got, want)
			}
		}
	}

	want("at the start", "first")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(chain)
	trusting := &tls.Config{RootCAs: roots, ServerName: "first"}
	verified := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting}}
	defer verified.CloseIdleConnections()
	response, err := verified.Get(p.url + "/api/status")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("GET /api/status: %s", response.Status)
	}

	chain, key = newPair(t, "second")
	write(chainFile, chain)
	want("with the key of the first certificate", "first")
	write(keyFile, key)
	want("with both files", "second")
	write(keyFile, key[:10])
	want("with a part of the key", "second")
	if err := os.Remove(chainFile); err != nil {
		t.Fatal(err)
	}
	want("without the file", "second")
	old, oldKey := newPair(t, "old", time.Now().Add(-time.Hour))
	write(chainFile, old)
	write(keyFile, oldKey)
	want("with an expired certificate", "second")

	log := p.log.String()
	if count := strings.Count(log, "cannot reload the certificate"); count < 4 || count > 5 {
		t.Errorf("%d warnings, want one for each broken state:\n%s", count, log)
	}
	if strings.Count(log, "certificate reloaded") != 1 || strings.Contains(log, "PRIVATE KEY") {
		t.Errorf("the log is\n%s", log)
	}
	if _, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
	}); err == nil {
		t.Error("TLS 1.2 is accepted")
	}
}

func TestServeTLSRefused(t *testing.T) {
	directory := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chain, key := newPair(t, "a")
	_, otherKey := newPair(t, "b")
	oldChain, oldKey := newPair(t, "old", time.Now().Add(-time.Hour))
	good, goodKey := file("chain", chain), file("key", key)
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"no key": {[]string{"--tls-certificate", good}, nil, "--tls-certificate and --tls-key need each other"},
		"the key of another": {
			[]string{"--tls-certificate", good, "--tls-key", file("other", otherKey)}, nil, "does not match",
		},
		"an expired one": {
			[]string{"--tls-certificate", file("o", oldChain), "--tls-key", file("k", oldKey)}, nil, "expired at",
		},
		"a missing file": {
			[]string{"--tls-certificate", filepath.Join(directory, "none"), "--tls-key", goodKey}, nil, "no such file",
		},
		"a low version": {[]string{"--tls-min-version", "1.1"}, nil, "must be one of 1.2, 1.3"},
		"a certificate as the key": {nil, map[string]string{
			"API_TLS_CERTIFICATE": good, "API_TLS_PRIVATE_KEY": good, "API_MIN_TLS_VERSION": "1.2",
		}, "read the certificate and its key"},
		"a refused variable": {
			nil, map[string]string{"PULUMI_DATABASE_ENDPOINT": "db:3306"}, "PULUMI_DATABASE_ENDPOINT is set",
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := filepath.Join(directory, "data")
			p := &testService{t: t, env: c.env}
			_, stderr := p.run(cli.ExitUsage, append([]string{"serve", "--data", data}, c.args...)...)
			if !strings.Contains(stderr, c.want) || strings.Contains(stderr, "PRIVATE") {
				t.Errorf("got %q, want %q", stderr, c.want)
			}
			if _, err := os.Stat(data); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

// TestServeMasterKey starts a service with a master key outside of its data directory.
func TestServeMasterKey(t *testing.T) {
	directory := t.TempDir()
	file := func(name string, size int) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(name, size)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p := &testService{t: t, directory: filepath.Join(directory, "data")}
	p.env = map[string]string{"PULUMI_LOCAL_KEYS": file("a", 32)}
	t.Run("serve", func(t *testing.T) {
		q := *p
		q.t = t
		q.start()
		if _, err := os.Stat(filepath.Join(p.directory, "master.key")); err == nil {
			t.Error("the data directory has a master key, too")
		}
	})
	for name, c := range map[string]struct{ path, want string }{
		"another key":    {file("b", 32), "not the key of this database"},
		"a short file":   {file("c", 31), "has 31 bytes and not 32"},
		"a missing file": {filepath.Join(directory, "none"), "no such file"},
	} {
		p.env = map[string]string{"PULUMI_LOCAL_KEYS": c.path}
		_, stderr := p.run(cli.ExitUsage, "serve", "--listen", "127.0.0.1:0", "--data", p.directory)
		if !strings.Contains(stderr, c.want) {
			t.Errorf("%s: got %q, want %q", name, stderr, c.want)
		}
	}
}

// TestServeObjects keeps the states of stacks in another directory.
func TestServeObjects(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &testService{t: t, directory: filepath.Join(directory, "data")}
	p.env = map[string]string{"PULUMI_LOCAL_OBJECTS": file}
	_, stderr := p.run(cli.ExitUsage, "serve", "--listen", "127.0.0.1:0", "--data", p.directory)
	matches(t, stderr, `--objects or PULUMI_LOCAL_OBJECTS: open the directory of objects: .* not a directory`)

	p.env = map[string]string{"PULUMI_LOCAL_OBJECTS": filepath.Join(directory, "objects")}
	p.start()
	if _, err := os.Stat(filepath.Join(p.directory, "objects")); err == nil {
		t.Error("the data directory has objects, too")
	}
	p.run(cli.ExitOK, "backup", filepath.Join(directory, "backup.tar"), "--data", p.directory)
}

// TestServeUpload imports a state of 50 MB. The number is the limit of bodies in Pulumi's installers.
func TestServeUpload(t *testing.T) {
	p := newService(t)
	p.run(cli.ExitOK, "deploy", "organization/project/large", "--file", failingRequest(t))
	body := fmt.Sprintf(`{"version":3,"deployment":{"manifest":{},"resources":[{"urn":%q,"type":"pulumi:pulumi:Stack",
		"outputs":{"large":%q}}]}}`, "urn:pulumi:large::project::pulumi:pulumi:Stack::project-large",
		strings.Repeat("x", 50e6))
	a := agent{p: p}
	code := a.call(p.env["PULUMI_ACCESS_TOKEN"], "POST", "/api/stacks/organization/project/large/import", body, nil)
	if code != 200 {
		t.Errorf("the import of 50 MB got %d, want 200", code)
	}
	out, _ := p.run(cli.ExitOK, "stack", "list")
	matches(t, out, `^organization/project/large +1 +20`)
}

// TestServeMetrics scrapes a service as Prometheus does with the authorization of the README.
func TestServeMetrics(t *testing.T) {
	p := &testService{t: t, directory: servertest.DataDirectory(t)}
	p.env = map[string]string{"METRICS_WEBHOOK_SECRET": " s3cret\n"}
	p.start()
	for authorization, want := range map[string]int{"": 401, "webhook-token s3cret": 200, "webhook-token x": 401} {
		request, err := http.NewRequest("GET", p.url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", authorization)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != want || strings.Contains(string(text), "s3cret") {
			t.Errorf("%q: got %d, %v, want %d", authorization, response.StatusCode, err, want)
		}
	}
	if strings.Contains(p.log.String()+p.out.String(), "s3cret") {
		t.Errorf("the output contains the secret:\n%s%s", p.out, p.log)
	}
}
