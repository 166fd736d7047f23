package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
)

// serveBaseImage starts a registry with the base image of the tests, which runs until the
// end of the test. It returns the name of the image in the registry.
func serveBaseImage(w *world) string {
	w.t.Helper()

	// Read the image from the engine.
	saved, err := exec.Command("docker", "save", baseImage).Output()
	w.must(err)
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(saved)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		files[header.Name], err = io.ReadAll(archive)
		w.must(err)
	}
	var list []struct {
		Config string
		Layers []string
	}
	w.must(json.Unmarshal(files["manifest.json"], &list))

	// Create the manifest of the image, as a registry serves it.
	blobs := map[string][]byte{}
	describe := func(kind string, content []byte) map[string]any {
		sum := sha256.Sum256(content)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		blobs[digest] = content
		return map[string]any{
			"mediaType": "application/vnd.docker." + kind, "digest": digest, "size": len(content),
		}
	}
	const manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": describe("container.image.v1+json", files[list[0].Config]),
	}
	var layers []map[string]any
	for _, layer := range list[0].Layers {
		layers = append(layers, describe("image.rootfs.diff.tar", files[layer]))
	}
	manifest["layers"] = layers
	text, err := json.Marshal(manifest)
	w.must(err)
	described := describe("manifest", text)["digest"].(string)

	// Serve the image on the loopback interface, where engines need no TLS.
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		switch {
		case r.URL.Path == "/v2/":
		case strings.Contains(r.URL.Path, "/manifests/"):
			answer.Header().Set("Content-Type", manifestType)
			answer.Header().Set("Docker-Content-Digest", described)
			_, _ = answer.Write(text)
		case blobs[name] != nil:
			_, _ = answer.Write(blobs[name])
		default:
			http.NotFound(answer, r)
		}
	}))
	w.t.Cleanup(server.Close)
	image := strings.TrimPrefix(server.URL, "http://") + "/base:latest"
	w.t.Cleanup(func() { _ = exec.Command("docker", "rmi", "--force", image).Run() })
	return image
}
