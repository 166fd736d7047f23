package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestConfigCommand(t *testing.T) {
	chain, key := newPair(t, "localhost")
	p := &testService{t: t, env: map[string]string{
		"PORT": "9000", "PULUMI_API_DOMAIN": "cloud.example", "METRICS_WEBHOOK_SECRET": "s3cret",
		"API_TLS_CERTIFICATE": string(chain), "API_TLS_PRIVATE_KEY": string(key), "API_MIN_TLS_VERSION": "1.3",
		"PULUMI_LICENSE_KEY": "l1cence",
	}}
	out, stderr := p.run(cli.ExitOK, "config", "--data", "d", "--default-image", "mine")
	for _, line := range []string{
		`SETTING +VALUE +ORIGIN`, `data +d +--data`, `listen +:9000 +PORT`, `default-image +mine +--default-image`,
		`public-url +https://cloud.example +PULUMI_API_DOMAIN`, `console-url +- +default`, `keep-age +90d +default`,
		`tls-certificate +\(secret\) +API_TLS_CERTIFICATE`, `tls-key +\(secret\) +API_TLS_PRIVATE_KEY`,
		`tls-min-version +1.3 +API_MIN_TLS_VERSION`, `metrics-secret +\(secret\) +METRICS_WEBHOOK_SECRET`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(out) {
			t.Errorf("%s is missing in\n%s", line, out)
		}
	}
	if stderr != "warning: PULUMI_LICENSE_KEY has no effect: the service needs no licence\n" ||
		strings.Contains(out, "s3cret") || strings.Contains(out, "BEGIN") {
		t.Errorf("stdout\n%s\nstderr\n%s", out, stderr)
	}

	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"a flag overrides a variable": {
			map[string]string{"PORT": "1"}, []string{"--listen", "127.0.0.1:2"}, `listen +127.0.0.1:2 +--listen`,
		},
		"a domain on this machine has no TLS": {
			map[string]string{"PULUMI_API_DOMAIN": "localhost:8080"}, nil, `public-url +http://localhost:8080 `,
		},
		"nor has a loopback address": {
			map[string]string{"PULUMI_CONSOLE_DOMAIN": "[::1]:3000"}, nil, `console-url +http://\[::1\]:3000 `,
		},
		"a flag overrides a domain": {
			map[string]string{"PULUMI_API_DOMAIN": "a.example"}, []string{"--public-url", "http://b.example"},
			`public-url +http://b.example +--public-url`,
		},
	} {
		q := &testService{t: t, env: c.env}
		out, _ := q.run(cli.ExitOK, append([]string{"config", "--data", "d"}, c.args...)...)
		if !regexp.MustCompile(`(?m)^` + c.want).MatchString(out) {
			t.Errorf("%s: no match for %s in\n%s", name, c.want, out)
		}
	}
}
