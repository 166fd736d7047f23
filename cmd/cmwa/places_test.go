package main

import (
	"errors"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestRunContainerSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	release := t.TempDir()
	w.agent("docker:", "  memory: 64m", "  cpus: 0.5", "  user: \"1234:4321\"", "  labels: [team=infra]",
		"  volumes: ["+release+":/release]")
	w.queue("one", order{Steps: []step{
		{Name: "who", Run: `echo "I am $(id -u):$(id -g)"; touch "$HOME/file" file && echo "and can write"; ` +
			`echo later=so >>"$PULUMI_ENV_FILE"`},
		{Name: "wait", Run: `echo "later is $later"; while ! [ -e /release/now ]; do sleep 0.1; done`},
	}})
	w.eventually("the second step waits", func() bool { return strings.Contains(w.log("one"), "later is so") })
	ids := w.containers("one")
	if len(ids) != 1 {
		t.Fatalf("the containers are %v", ids)
	}
	got := w.engine("inspect", "--format", `{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.Config.User}} `+
		`{{index .Config.Labels "team"}} {{ne (index .Config.Labels "cmwa.agent") ""}}`, ids[0])
	if want := "67108864 500000000 1234:4321 infra true"; got != want {
		t.Errorf("the container has %s, want %s", got, want)
	}
	noError(t, os.WriteFile(filepath.Join(release, "now"), nil, 0o600))
	w.await("one", "succeeded")
	w.wantLog("one", "I am 1234:4321\nand can write\n")
	w.queue("two", oneStep("tail /dev/zero"))
	w.await("two", "failed")
	w.wantLog("two", "memory ran out")
}

func TestRunOwnCertificateAuthority(t *testing.T) {
	t.Parallel()
	atLocalTargets(t, func(t *testing.T, w *world) {
		service, err := url.Parse(w.url)
		noError(t, err)
		secure, authority := runtimetest.ServeTLS(t, service.Hostname(), httputil.NewSingleHostReverseProxy(service))
		file := filepath.Join(w.directory, "authority.pem")
		noError(t, os.WriteFile(file, []byte(authority), 0o600))
		ignorant := w.agent("service_url: " + secure)
		ignorant.waitFor("ca_file")
		ignorant.signal(os.Interrupt)
		ignorant.exit(cli.ExitOK)

		w.agent("service_url: "+secure, "ca_file: "+file)
		w.queue("one", oneStep(`cat "$NODE_EXTRA_CA_CERTS"; `+
			`grep -q "$(sed -n 2p "$NODE_EXTRA_CA_CERTS")" "$SSL_CERT_FILE" && echo "in the bundle too"`))
		w.await("one", "succeeded")
		w.wantLog("one", authority, "in the bundle too")
	})
}

// TestRunPulumiAsUnknownUser runs pulumi in a container as a user whose id has no name in the
// image. The user has no home directory there, and may write to no directory of the image except
// /tmp.
func TestRunPulumiAsUnknownUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	source, state := filepath.Join(w.directory, "source"), filepath.Join(w.directory, "state")
	noError(t, errors.Join(os.Mkdir(state, 0o755), os.Chmod(state, 0o777)))
	commitProgram(t, source, "", state, "a new user")
	w.agent(`docker: {user: "1234:4321", volumes: ["` + source + ":" + source + `:ro", "` + state + ":" + state + `"]}`)
	w.queue("dev", order{
		Image: "cmwa/job:local",
		Env: map[string]any{
			"PULUMI_BACKEND_URL": "file://" + state, "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
			// The repository belongs to another user.
			"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
		},
		Request: map[string]any{
			"operation": "update",
			"sourceContext": map[string]any{
				"git": map[string]any{"repoUrl": "file://" + source, "branch": "refs/heads/main"},
			},
		},
	})
	w.await("dev", "succeeded", "failed")
	w.wantLog("dev", "+ 3 created", "HOME is ")
	wantContent(t, filepath.Join(state, "written-by-pulumi"), "for a new user")
}
