package oracle_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/podtemplate/oracle"
)

// stricter are the templates that only the check rejects, with the reasons.
var stricter = map[string]string{
	"metadata/bad-labels-removed.yaml":   "the label or the field belongs to the agent",
	"metadata/bad-labels-replaced.yaml":  "the label or the field belongs to the agent",
	"metadata/bad-kind.yaml":             "the merge works, but the agent creates a Pod of v1",
	"metadata/bad-api-version.yaml":      "the merge works, but the agent creates a Pod of v1",
	"metadata/bad-two-documents.yaml":    "a reader of one document ignores the second",
	"patch/bad-main-env-replaced.yaml":   "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-mount-below.yaml":         "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-mount-of-handoff.yaml":    "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-prepare-deleted.yaml":     "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-main-mount-deleted.yaml":  "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-main-mounts-removed.yaml": "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-containers-replaced.yaml": "it would remove or replace parts that the agent needs to run a job",
	"patch/bad-mount-of-ours.yaml":       "the volume belongs to the agent, or its name is reserved for the agent",
	"patch/bad-reserved-volume.yaml":     "the volume belongs to the agent, or its name is reserved for the agent",
	"patch/bad-directive-in-list.yaml":   "the merge ignores the directive silently, depending on the Pod",
	"patch/bad-primitive-list.yaml":      "the merge ignores the directive silently, depending on the Pod",
	"containers/bad-same-init-name.yaml": "the merge silently replaces the first entry with the second",
	"scheduling/bad-grace-negative.yaml": "the API server replaces a negative time with 1 second",
	"volumes/bad-medium.yaml":            "the API server does not check it, and the node fails to start the Pod",
}

// looser are the templates that only the API server rejects, with the reasons.
var looser = map[string]string{}

// TestCheckFile compares the check with the API server for each template of testdata.
func TestCheckFile(t *testing.T) {
	files := templates(t)
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			all := podtemplate.CheckFile(name, []byte(content))
			problems := all.Errors()
			rejection := oracle.Validate([]byte(content))
			if len(problems) == 0 && slices.ContainsFunc(all, protected) {
				return // the agent sets the field again after the merge, so the API server never gets the value
			}
			ours, theirs := len(problems) == 0, rejection == nil
			_, isStricter := stricter[name]
			_, isLooser := looser[name]
			switch {
			case !ours && theirs && !isStricter:
				t.Errorf("the API server accepts the template, and the check rejects it:\n%v", problems)
			case ours && !theirs && !isLooser:
				t.Errorf("the check accepts the template, and the API server rejects it:\n%v", rejection)
			case isStricter && (ours || !theirs):
				t.Errorf("the template must not be in stricter: the check reports %v, the API server %v",
					problems, rejection)
			case isLooser && (!ours || theirs):
				t.Errorf("the template must not be in looser: the check reports %v, the API server %v",
					problems, rejection)
			}
		})
	}
	for _, list := range []map[string]string{stricter, looser} {
		for name, reason := range list {
			if _, tested := files[name]; !tested || reason == "" {
				t.Errorf("exception %s does not name a template, or has no reason", name)
			}
		}
	}
	t.Logf("%d templates, %d exceptions", len(files), len(stricter)+len(looser))
}

// templates returns the files of the archives in testdata. Each file follows a line such as
// -- name.yaml --. The keys of the result begin with the name of the archive, as in
// volumes/name.yaml.
func templates(t *testing.T) map[string]string {
	t.Helper()
	archives, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatalf("found %d archives, %v", len(archives), err)
	}
	files := map[string]string{}
	for _, archive := range archives {
		theme := strings.TrimSuffix(filepath.Base(archive), ".txtar")
		current := ""
		for line := range strings.Lines(read(t, archive)) {
			name, ok := strings.CutPrefix(line, "-- ")
			switch {
			case ok:
				current = theme + "/" + strings.TrimSuffix(name, " --\n")
				files[current] = ""
			case current != "":
				files[current] += line
			}
		}
	}
	return files
}

// TestCheckFileQuantities compares the check with the API server for pairs of a limit and
// a request.
func TestCheckFileQuantities(t *testing.T) {
	quantities := []string{
		"0", "1", "-1", "+1", "1.5", ".5", "5.", "1e3", "1E3", "1E", "1e", "1e+3", "1e-3", "1Ki", "1k", "1K",
		"1M", "1Mi", "1m", "1u", "1n", "1p", "1 Gi", "1GB", "Gi", "", " 1", "0x10", "1_000", "1,5", "1e3Mi",
		"1.5Gi", "100m", "0.1", "1000m", "1024", "1e60", "1E61", "999999999999999999999", "0.0000000001",
		"1PiB", "2Ei", "NaN", "Inf", "½", "1.2.3", "--1", "1+", "00001",
	}
	// The check rejects these two. The API server accepts them: it reads a unit without a
	// number as 0, and removes spaces.
	stricter := []string{"Gi", " 1"}
	for _, limit := range quantities {
		for _, request := range quantities {
			content := []byte(`{"spec": {"containers": [{"name": "pulumi-workflow", "resources": {` +
				`"limits": {"cpu": "` + limit + `"}, "requests": {"cpu": "` + request + `"}}}]}}`)
			problems := podtemplate.CheckFile("pod.json", content).Errors()
			if slices.Contains(stricter, limit) || slices.Contains(stricter, request) {
				if len(problems) == 0 {
					t.Errorf("limit %q, request %q: the check reports nothing", limit, request)
				}
				continue
			}
			if rejection := oracle.Validate(content); (len(problems) == 0) != (rejection == nil) {
				t.Errorf("limit %q, request %q: the check reports %v, the API server %v",
					limit, request, problems, rejection)
			}
		}
	}
}
