package docker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"
)

const manifestType = "application/vnd.docker.distribution.manifest.v2+json"

// imageServer is a registry with one image, at an address that engines of this machine
// use without TLS.
type imageServer struct {
	host           string
	user, password string // required if not empty
	manifest       []byte
	blobs          map[string][]byte
	onPull         func()        // called before the manifest is served; may be nil
	hold           chan struct{} // layers and the configuration are served after it is closed; may be nil
	pulls          atomic.Int32  // number of served manifests
}

// newImageServer serves an image of an architecture until the end of the test.
func newImageServer(t *testing.T, arch string) *imageServer {
	t.Helper()
	var layer bytes.Buffer
	zipped, raw := gzip.NewWriter(&layer), sha256.New()
	files := tar.NewWriter(io.MultiWriter(zipped, raw))
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	_ = files.WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: int64(len(noise))})
	_, _ = files.Write(noise)
	_ = files.Close()
	_ = zipped.Close()

	r := &imageServer{blobs: map[string][]byte{}}
	config := r.add(mustJSON(t, map[string]any{
		"architecture": arch, "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(raw.Sum(nil))}},
	}))
	blob := r.add(layer.Bytes())
	r.manifest = mustJSON(t, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "digest": config,
			"size": len(r.blobs[config])},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": blob,
			"size": layer.Len()}},
	})
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	t.Cleanup(func() { r.removeImage(t) })
	return r
}

func (r *imageServer) image() string { return r.host + "/story:latest" }

// removeImage removes the pulled image from the engine.
func (r *imageServer) removeImage(t *testing.T) {
	engine, err := client.New(client.FromEnv)
	if err != nil {
		t.Error(err)
		return
	}
	defer engine.Close()
	_, _ = engine.ImageRemove(context.Background(), r.image(), client.ImageRemoveOptions{Force: true})
}

func (r *imageServer) add(content []byte) (digest string) {
	sum := sha256.Sum256(content)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	r.blobs[digest] = content
	return digest
}

func (r *imageServer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	user, password, _ := q.BasicAuth()
	if user != r.user || password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="story"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`,
			http.StatusUnauthorized)
		return
	}
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	sum := sha256.Sum256(r.manifest)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	switch path := q.URL.Path; {
	case path == "/v2/":
	case path == "/v2/story/manifests/latest", path == "/v2/story/manifests/"+digest:
		if r.onPull != nil {
			r.onPull()
		}
		r.pulls.Add(1)
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", digest)
		_, _ = w.Write(r.manifest)
	case r.blobs[path[strings.LastIndex(path, "/")+1:]] != nil:
		if r.hold != nil {
			select {
			case <-r.hold:
			case <-q.Context().Done():
				return
			}
		}
		_, _ = w.Write(r.blobs[path[strings.LastIndex(path, "/")+1:]])
	default:
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
	}
}

func mustJSON(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
