package kube

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// serverConfig starts a server, and returns the configuration of its clients.
func serverConfig(t *testing.T, handler http.HandlerFunc) *rest.Config {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

// callErrors calls the methods of a new client, and returns their errors.
func callErrors(t *testing.T, config *rest.Config) map[string]error {
	t.Helper()
	c, err := newClient(config, noMetrics{})
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "a", Namespace: "jobs"}
	secret := &corev1.Secret{ObjectMeta: meta}
	_, getErr := c.get(t.Context(), "jobs", "a")
	_, createErr := c.create(t.Context(), &corev1.Pod{ObjectMeta: meta}, false)
	_, createSecretErr := c.createObject(t.Context(), secrets, secret, false)
	_, updateSecretErr := c.updateObject(t.Context(), secrets, secret)
	_, listSecretsErr := c.listMetadata(t.Context(), secrets, "jobs", metav1.ListOptions{})
	return map[string]error{
		"get": getErr, "create": createErr, "delete": c.delete(t.Context(), "jobs", "a", "uid", 0),
		"create of a Secret": createSecretErr, "update of a Secret": updateSecretErr, "list of Secrets": listSecretsErr,
		"delete of a Secret": c.deleteObject(t.Context(), secrets, "jobs", "a", metav1.DeleteOptions{}),
	}
}

func TestClient(t *testing.T) {
	t.Run("follows no redirect", func(t *testing.T) {
		var requests, tokens atomic.Int32
		elsewhere := serverConfig(t, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Header.Get("Authorization") != "" {
				tokens.Add(1)
			}
			w.WriteHeader(http.StatusNotFound)
		})
		for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
			config := serverConfig(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.Host+r.URL.Path, status)
			})
			for _, token := range []string{"cluster-token", ""} {
				config.BearerToken = token
				for call, err := range callErrors(t, config) {
					if err == nil || isNotFound(err) || !fromProxy(err) {
						t.Errorf("%s with token %q, redirected by %d: got %v, want an error", call, token, status, err)
					}
				}
			}
		}
		if requests.Load() > 0 || tokens.Load() > 0 {
			t.Errorf("redirects led to %d requests, %d of them with the token", requests.Load(), tokens.Load())
		}
	})

	t.Run("HTML page of a proxy is an error", func(t *testing.T) {
		config := serverConfig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>Please log in</html>"))
		})
		for call, err := range callErrors(t, config) {
			if err == nil || isNotFound(err) {
				t.Errorf("%s: got %v, want an error", call, err)
			}
		}
	})
}
