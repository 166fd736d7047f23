package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"archive/tar"
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// Images that the cluster of the toolchain holds.
const (
	jobImage   = "cmwa-test/base:latest"
	agentImage = "cmwa-test/runner:1" // holds nothing but the runner
)

// loadAgentImage builds an image of the runner program and copies it into the
// cluster, once in a test process.
var loadAgentImage = sync.OnceValue(func() error {
	folder, err := os.MkdirTemp("", "cmwa-test-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	program := filepath.Join(folder, "workflow-runner")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", program, "../../cmd/workflow-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the runner: %w\n%s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	archive := filepath.Join(folder, "image.tar")
	if err := os.WriteFile(archive, imageArchive(content), 0o600); err != nil {
		return err
	}
	if out, err := exec.Command("../../testdata/toolchain/kube-load", "--archive", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("load the image: %w\n%s", err, out)
	}
	return nil
})

// imageArchive returns an image that holds the runner, as docker save writes one.
func imageArchive(program []byte) []byte {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(name string, mode int64, content []byte) {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg})
		_, _ = w.Write(content)
	}
	put(strings.TrimPrefix(programImagePath, "/"), 0o755, program)
	_ = w.Close()
	sum := sha256.Sum256(layer.Bytes())
	config, _ := json.Marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux", "config": map[string]any{"User": "65532:65532"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest, _ := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{agentImage}, "Layers": []string{"layer.tar"},
	}})
	var image bytes.Buffer
	w = tar.NewWriter(&image)
	put("config.json", 0o644, config)
	put("layer.tar", 0o644, layer.Bytes())
	put("manifest.json", 0o644, manifest)
	_ = w.Close()
	return image.Bytes()
}

// onCluster returns a namespace of the real cluster in which Pods of jobs can run.
func onCluster(t *testing.T) *kubetest.Namespace {
	t.Helper()
	n := kubetest.New(t)
	if err := loadAgentImage(); err != nil {
		t.Fatal(err)
	}
	return n
}

// open makes an executor for Pods of every agent, with the rights of the
// documented Role.
func open(t *testing.T, config *rest.Config, namespace string) *Executor {
	t.Helper()
	cluster, err := New(Options{
		Config: config, Namespace: namespace, Image: agentImage, StartTimeout: 15 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := cluster.Executor("")
	t.Cleanup(e.Close)
	return e
}

// place sets what every job of the cluster needs.
func place(job *runtime.Job) {
	job.Definition.Image.Reference = jobImage
	job.Tuning.Place.Kubernetes.ImagePullPolicy = "Never"
	job.Tuning.Place.Kubernetes.Template = []byte(`{"spec": {"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never"}]}}`)
}

func TestConformanceOnACluster(t *testing.T) {
	n := onCluster(t)
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(t *testing.T) runtime.Executor { return open(t, n.Agent, n.Name) },
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			place(job)
			switch work {
			case runtimetest.Hopeless:
				job.Definition.Image.Reference = "cmwa-test/missing:1"
			case runtimetest.Misset:
				job.Tuning.Place.Kubernetes.ServiceAccount = "missing"
			}
		},
		Own:     true,
		Host:    n.HostAddress(t),
		Left:    func(t *testing.T, job *runtime.Job) []string { return leftIn(t, n, job) },
		Exposed: func(t *testing.T, job *runtime.Job, id string) string { return exposedIn(t, n, id) },
	})
}
