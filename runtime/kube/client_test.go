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

func TestClient(t *testing.T) {
	t.Run("follows no redirect", func(t *testing.T) {
		var requests, tokens atomic.Int32
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Header.Get("Authorization") != "" {
				tokens.Add(1)
			}
			w.WriteHeader(http.StatusNotFound)
		}))
		t.Cleanup(elsewhere.Close)
		for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
			}))
			t.Cleanup(server.Close)
			for name, config := range map[string]*rest.Config{
				"a token":        {Host: server.URL, BearerToken: "cluster-token"},
				"no credentials": {Host: server.URL},
			} {
				c, err := newClient(config)
				if err != nil {
					t.Fatal(err)
				}
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "jobs"}}
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "jobs"}}
				_, getErr := c.get(t.Context(), "jobs", "a")
				_, createErr := c.create(t.Context(), "jobs", pod, false)
				_, secretErr := c.createObject(t.Context(), secrets, secret, false)
				for call, err := range map[string]error{
					"get": getErr, "create": createErr,
					"create of a Secret": secretErr,
					"delete":             c.delete(t.Context(), "jobs", "a", "uid", 0),
					"delete of a Secret": c.deleteObject(t.Context(), secrets, "jobs", "a", metav1.Preconditions{}),
				} {
					if err == nil || isNotFound(err) || !fromProxy(err) {
						t.Errorf("%s with %s, redirected by %d: got %v, want an error", call, name, status, err)
					}
				}
			}
		}
		if requests.Load() > 0 || tokens.Load() > 0 {
			t.Errorf("redirects led to %d requests, %d of them with the token", requests.Load(), tokens.Load())
		}
	})

	t.Run("HTML page of a proxy is an error", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>Please log in</html>"))
		}))
		t.Cleanup(server.Close)
		c, err := newClient(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "jobs"}}
		_, createErr := c.createObject(t.Context(), secrets, secret, false)
		_, updateErr := c.updateObject(t.Context(), secrets, secret)
		_, listErr := c.listObjects(t.Context(), secrets, "jobs", "")
		for call, err := range map[string]error{
			"create":          createErr,
			"update":          updateErr,
			"delete":          c.deleteObject(t.Context(), secrets, "jobs", "a", metav1.Preconditions{}),
			"delete of a Pod": c.delete(t.Context(), "jobs", "a", "uid", 0),
			"list":            listErr,
		} {
			if err == nil || isNotFound(err) {
				t.Errorf("%s: got %v, want an error", call, err)
			}
		}
	})
}
