package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

// kubeconfig writes a kubeconfig with two contexts, and returns its path. User is the user
// of both contexts, in JSON.
func kubeconfig(t *testing.T, server, current, user string) string {
	t.Helper()
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "` + current + `",
		"clusters": [{"name": "c", "cluster": {"server": "` + server + `", "insecure-skip-tls-verify": true}}],
		"users": [{"name": "u", "user": ` + user + `}],
		"contexts": [
			{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "jobs"}},
			{"name": "arn:aws:eks:mars/two", "context": {"cluster": "c", "user": "u"}}]}`
	if !json.Valid([]byte(text)) {
		t.Fatal(text)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// environ returns a function that looks up environment variables.
func environ(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
}

func TestConnection(t *testing.T) {
	path := kubeconfig(t, "https://cluster.example.com", "one", "{}")
	for name, c := range map[string]struct{ file, context, namespace string }{
		"current context":            {path, "", "jobs"},
		"named context":              {path, "one", "jobs"},
		"context without namespace":  {path, "arn:aws:eks:mars/two", "default"},
		"several files, one missing": {"/none" + string(filepath.ListSeparator) + path, "", "jobs"},
	} {
		config, namespace, home, err := connection(environ(map[string]string{"KUBECONFIG": c.file}), c.context)
		if err != nil || namespace != c.namespace || home != nil || config.Host != "https://cluster.example.com" {
			t.Errorf("%s: got %v, namespace %q, in a Pod of %v, %v", name, config, namespace, home, err)
		}
	}
	t.Run("file in the home directory", func(t *testing.T) {
		home := t.TempDir()
		directory := filepath.Join(home, ".kube")
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(kubeconfig(t, "https://a", "one", "{}"), filepath.Join(directory, "config")); err != nil {
			t.Fatal(err)
		}
		_, namespace, _, err := connection(environ(map[string]string{"HOME": home}), "one")
		if err != nil || namespace != "jobs" {
			t.Errorf("got namespace %q, %v", namespace, err)
		}
	})
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, context, want string }{
		"context that is missing": {
			path, "three",
			path + " has no context three: change kubernetes.context; its contexts are arn:aws:eks:mars/two, one",
		},
		"no current context": {
			kubeconfig(t, "https://a", "", "{}"), "",
			"names no current context: set kubernetes.context; its contexts are arn:",
		},
		"file that is missing": {"/none", "", ": /none does not exist: run the agent in a Pod"},
		"files that are missing": {
			"/none:/other", "", ": none of these files exists: /none, /other: run the agent in a Pod",
		},
		"file that is broken": {broken, "", "read the kubeconfig: error loading config file \"" + broken},
		"user of a removed provider": {kubeconfig(t, "https://a", "one", `{"auth-provider": {"name": "gcp"}}`), "",
			`auth-provider "gcp", which this program does not support: use a credential plugin (exec)`},
	} {
		_, _, _, err := connection(environ(map[string]string{"KUBECONFIG": c.file}), c.context)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestConnectionPluginOnCluster uses a credential plugin, as the kubeconfigs of most cloud
// providers do.
func TestConnectionPluginOnCluster(t *testing.T) {
	n := onCluster(t)
	plugin := filepath.Join(t.TempDir(), "plugin")
	script := "#!/bin/sh\necho '" + `{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", ` +
		`"status": {"token": "` + n.Agent.BearerToken + `"}}` + "'\n"
	if err := os.WriteFile(plugin, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	path := kubeconfig(t, n.Agent.Host, "one",
		`{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "`+plugin+
			`"}}`)
	e := newCluster(t, Options{
		Environ: environ(map[string]string{"KUBECONFIG": path}), Context: "arn:aws:eks:mars/two",
	}).Executor(n.Name)
	t.Cleanup(e.Close)
	if err := e.Check(t.Context(), runtime.Tuning{}); err != nil {
		t.Errorf("Check: got %v", err)
	}
}
