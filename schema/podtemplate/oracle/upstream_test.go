package oracle_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// exceptions are the enumerations that the overlay does not contain, with the reasons. Most
// of them do not occur in a template.
var exceptions = map[string]string{
	"PersistentVolumeReclaimPolicy":           "of volumes",
	"ClaimResourceStatus":                     "of volumes",
	"PersistentVolumeClaimModifyVolumeStatus": "of volumes",
	"PersistentVolumePhase":                   "of volumes",
	"PersistentVolumeClaimPhase":              "of volumes",
	"PodPhase":                                "of the status",
	"PodQOSClass":                             "of the status",
	"ServiceAffinity":                         "of services",
	"ServiceType":                             "of services",
	"ServiceInternalTrafficPolicy":            "of services",
	"ServiceExternalTrafficPolicy":            "of services",
	"IPFamily":                                "of services",
	"IPFamilyPolicy":                          "of services",
	"NodePhase":                               "of nodes",
	"NamespacePhase":                          "of namespaces",
	"ResourceQuotaScope":                      "of quotas",
	"Signal":                                  "the overlay has a pattern, which TestTypesSignals tests",
	"TaintEffect":                             "NoScheduleNoAdmit is declared but not implemented",
	"TolerationOperator":                      "Gt and Lt need a feature gate",
}

// directory returns the directory of a module, or of the module that replaces it.
func directory(t *testing.T, module string) string {
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

func read(t *testing.T, path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// enumerations returns the sorted values of each enumeration of the API core/v1, without the
// empty value.
func enumerations(t *testing.T) map[string][]string {
	text := read(t, filepath.Join(directory(t, "k8s.io/api"), "core/v1/types.go"))
	found := map[string][]string{}
	for _, name := range regexp.MustCompile(`// \+enum\n(?://.*\n)*type (\w+) string`).FindAllStringSubmatch(text, -1) {
		values := []string{}
		for _, value := range regexp.MustCompile(`\s`+name[1]+`\s*=\s*"([^"]+)"`).FindAllStringSubmatch(text, -1) {
			values = append(values, value[1])
		}
		slices.Sort(values)
		found[name[1]] = values
	}
	return found
}

// TestTypesEnumerations checks that the overlay has every enumeration of a Pod.
func TestTypesEnumerations(t *testing.T) {
	var ours [][]string
	for line := range strings.Lines(read(t, "../overlay.cue")) {
		var choices []string
		declaration, _, _ := strings.Cut(line, "@must")
		for _, choice := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(declaration, -1) {
			choices = append(choices, choice[1])
		}
		slices.Sort(choices)
		ours = append(ours, choices)
	}
	enums := enumerations(t)
	if len(enums) < 30 {
		t.Fatalf("found %d enumerations", len(enums))
	}
	for name, values := range enums {
		known := slices.ContainsFunc(ours, func(choices []string) bool { return slices.Equal(choices, values) })
		if _, isException := exceptions[name]; known == isException {
			t.Errorf("%s: %v: in the overlay: %t; it must be either there or in exceptions", name, values, known)
		}
	}
}

// TestTypesSignals checks that the overlay accepts every signal, and rejects an empty one.
func TestTypesSignals(t *testing.T) {
	signals := enumerations(t)["Signal"]
	if len(signals) < 60 {
		t.Fatalf("found %d signals", len(signals))
	}
	for _, signal := range append(signals, "") {
		content := "spec: {os: {name: linux}, containers: [{name: pulumi-workflow, " +
			"lifecycle: {stopSignal: \"" + signal + "\"}}]}\n"
		if problems := podtemplate.CheckFile("pod.yaml", []byte(content)); len(problems) > 0 != (signal == "") {
			t.Errorf("signal %q: problems %v", signal, problems)
		}
	}
}

// TestTypesVersion checks that pod.cue is generated from the version of Kubernetes that this
// module requires.
func TestTypesVersion(t *testing.T) {
	version := regexp.MustCompile(`k8s.io/kubernetes (v[0-9.]+)\b`)
	required := version.FindStringSubmatch(read(t, "go.mod"))
	generated := version.FindStringSubmatch(read(t, "../pod.cue"))
	if required == nil || generated == nil || required[1] != generated[1] {
		t.Errorf("go.mod requires %v, pod.cue is generated from %v", required, generated)
	}
}
