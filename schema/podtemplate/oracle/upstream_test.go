package oracle_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// apart are the enumerations of which no template has a value, and those that
// the check means to know less of.
var apart = map[string]string{
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
	"Signal":                                  "a pattern, tested below",
	"TaintEffect":                             "NoScheduleNoAdmit is a plan of which nothing came",
	"TolerationOperator":                      "Gt and Lt must be switched on in a cluster",
}

// directory is where a module lies.
func directory(t *testing.T, module string) string {
	answer, err := exec.Command("go", "list", "-m", "-json", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Dir     string
		Replace *struct{ Dir string }
	}
	if err := json.Unmarshal(answer, &found); err != nil {
		t.Fatal(err)
	}
	if found.Replace != nil {
		return found.Replace.Dir
	}
	return found.Dir
}

func read(t *testing.T, path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// enumerations returns the values of each, sorted, without the empty one.
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

func TestTheOverlayKnowsEveryEnumerationOfAPod(t *testing.T) {
	var ours [][]string
	for line := range strings.Lines(read(t, "../overlay.cue")) {
		var words []string
		for _, word := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(strings.Split(line, "@must")[0], -1) {
			words = append(words, word[1])
		}
		slices.Sort(words)
		ours = append(ours, words)
	}
	enums := enumerations(t)
	if len(enums) < 30 {
		t.Fatalf("found %d enumerations", len(enums))
	}
	for name, values := range enums {
		known := slices.ContainsFunc(ours, func(words []string) bool { return slices.Equal(words, values) })
		if _, isApart := apart[name]; known == isApart {
			t.Errorf("%s: %v: in the overlay: %t", name, values, known)
		}
	}
}

func TestEverySignalIsKnown(t *testing.T) {
	signals := enumerations(t)["Signal"]
	if len(signals) < 60 {
		t.Fatalf("found %d signals", len(signals))
	}
	for _, signal := range append(signals, "") {
		content := "spec: {os: {name: linux}, containers: [{name: pulumi-workflow, lifecycle: {stopSignal: \"" + signal + "\"}}]}\n"
		if problems := podtemplate.CheckFile("pod.yaml", []byte(content)); len(problems) > 0 != (signal == "") {
			t.Errorf("%s: %v", signal, problems)
		}
	}
}

func TestTheTypesAreThoseOfTheAPIServerAskedHere(t *testing.T) {
	version := regexp.MustCompile(`k8s.io/kubernetes (v[0-9.]+)\b`)
	asked := version.FindStringSubmatch(read(t, "go.mod"))
	generated := version.FindStringSubmatch(read(t, "../pod.cue"))
	if asked == nil || generated == nil || asked[1] != generated[1] {
		t.Errorf("asked %v, generated from %v", asked, generated)
	}
}
