package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
)

// Images that the cluster has after a call of [RunnerImage]. Pods must use imagePullPolicy
// Never.
const (
	BaseImage   = "cmwa-test/base:latest" // a shell and its tools
	runnerImage = "cmwa-test/runner:1"    // only the runner, for a user other than root
)

// RunnerImage returns the name of an image with the workflow-runner of this module. The
// first call in a test process builds the image and loads it into the cluster.
func RunnerImage(t testing.TB) string {
	t.Helper()
	Admin(t)
	if err := loadRunner(); err != nil {
		t.Fatal(err)
	}
	return runnerImage
}

var loadRunner = sync.OnceValue(func() error {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	directory, err := os.MkdirTemp("", "cmwa-test-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	root, program := strings.TrimSpace(string(module)), filepath.Join(directory, "workflow-runner")
	build := exec.Command("go", "build", "-C", root, "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o",
		program, "./cmd/workflow-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the runner: %w\n%s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	archive := filepath.Join(directory, "image.tar")
	if err := os.WriteFile(archive, imageArchive(content), 0o600); err != nil {
		return err
	}
	load := exec.Command(filepath.Join(root, "testdata/toolchain/kube-load"), "--archive", archive)
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image: %w\n%s", err, out)
	}
	return nil
})

// imageArchive returns an image with the runner, in the format of docker save.
func imageArchive(program []byte) []byte {
	layer := archive(map[string][]byte{"usr/local/bin/workflow-runner": program})
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(layer))
	config, _ := json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux", "config": map[string]any{"User": "65532:65532"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest}},
	})
	manifest, _ := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{runnerImage}, "Layers": []string{"layer.tar"},
	}})
	return archive(map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest})
}

// archive returns a tar file of executable files. Writes to memory never fail.
func archive(files map[string][]byte) []byte {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for name, content := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg})
		_, _ = w.Write(content)
	}
	_ = w.Close()
	return text.Bytes()
}
