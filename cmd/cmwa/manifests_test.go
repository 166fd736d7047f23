package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// Variables that testdata/toolchain/environment sets to the paths of programs.
const (
	helmVariable    = "CMWA_TEST_HELM"
	helm3Variable   = "CMWA_TEST_HELM3"
	kubectlVariable = "CMWA_TEST_KUBECTL"
)

// tool returns the path of a program that the toolchain builds. Without it, the test is
// skipped, or fails if CI=true.
func tool(t testing.TB, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		const hint = ` is not set: run make toolchain; then: eval "$(testdata/toolchain/environment)"`
		skipUnlessCI(t, variable+hint)
	}
	return path
}

// try runs a program of the toolchain with an empty home directory and the rights of the
// cluster's administrator.
func try(t testing.TB, variable string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*storyLimit)
	defer cancel()
	var out, errors strings.Builder
	cmd := exec.CommandContext(ctx, tool(t, variable), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home,
		"KUBECONFIG="+os.Getenv("CMWA_TEST_KUBECONFIG"))
	cmd.Stdout, cmd.Stderr = &out, &errors
	err = cmd.Run()
	return out.String(), errors.String(), err
}

// must runs a program of the toolchain, and returns its output.
func must(t testing.TB, variable string, args ...string) string {
	t.Helper()
	stdout, stderr, err := try(t, variable, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(tool(t, variable)), strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// checkManifests checks manifests like decodeManifests, and checks the agent's configuration in
// them with cmwa vet. It returns the kinds of the objects, in the order of the manifests.
func checkManifests(t *testing.T, text string) (kinds []string) {
	t.Helper()
	if got := cmwa(nil, "vet", fileOf(t, "manifests.yaml", text)); got.code != cli.ExitOK || got.stdout != "" {
		t.Errorf("cmwa vet: %+v", got)
	}
	return decodeManifests(t, text)
}

// decodeManifests checks manifests against the types of the Kubernetes API; an unknown key
// is an error. It returns the kinds of the objects, in the order of the manifests.
func decodeManifests(t *testing.T, text string) (kinds []string) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for documents := kubeyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var meta metav1.TypeMeta
		if err = errors.Join(err, yaml.Unmarshal(document, &meta)); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if meta.Kind == "" && len(bytes.TrimSpace(document)) > 0 && !bytes.HasPrefix(document, []byte("#")) {
			t.Errorf("a document has no kind:\n%s", document)
		}
		if meta.Kind == "" {
			continue
		}
		kinds = append(kinds, meta.Kind)
		switch meta.Kind { // the types of the Prometheus operator are not linked
		case "ServiceMonitor":
			err = yaml.UnmarshalStrict(document, &serviceMonitor{})
		case "PodMonitor":
			err = yaml.UnmarshalStrict(document, &podMonitor{})
		default:
			_, _, err = decoder.Decode(document, nil, nil)
		}
		if err != nil {
			t.Errorf("%v:\n%s", err, document)
		}
	}
	return kinds
}

// serviceMonitor is the part of a ServiceMonitor, of monitoring.coreos.com/v1, that the
// examples use.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []monitorEndpoint    `json:"endpoints"`
	} `json:"spec"`
}

// podMonitor is the part of a PodMonitor, of monitoring.coreos.com/v1, that the examples use.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []monitorEndpoint    `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type monitorEndpoint struct {
	Port              string           `json:"port"`
	Path              string           `json:"path"`
	Interval          string           `json:"interval"`
	ScrapeTimeout     string           `json:"scrapeTimeout"`
	Relabelings       []map[string]any `json:"relabelings"`
	MetricRelabelings []map[string]any `json:"metricRelabelings"`
}
