package oracle_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/podtemplate/oracle"
)

// stricter are the templates that the check refuses and the API server takes.
var stricter = map[string]string{
	"metadata/bad-labels-removed.yaml":   "the label, or the field, is the agent's",
	"metadata/bad-labels-replaced.yaml":  "the label, or the field, is the agent's",
	"metadata/bad-kind.yaml":             "the merge works, but the agent asks for a Pod of v1",
	"metadata/bad-api-version.yaml":      "the merge works, but the agent asks for a Pod of v1",
	"metadata/bad-two-documents.yaml":    "a reader of one document passes over the second",
	"patch/bad-main-env-replaced.yaml":   "it would take away or replace what the agent needs to run a job",
	"patch/bad-mount-below.yaml":         "it would take away or replace what the agent needs to run a job",
	"patch/bad-mount-of-handoff.yaml":    "it would take away or replace what the agent needs to run a job",
	"patch/bad-prepare-deleted.yaml":     "it would take away or replace what the agent needs to run a job",
	"patch/bad-main-mount-deleted.yaml":  "it would take away or replace what the agent needs to run a job",
	"patch/bad-main-mounts-removed.yaml": "it would take away or replace what the agent needs to run a job",
	"patch/bad-containers-replaced.yaml": "it would take away or replace what the agent needs to run a job",
	"patch/bad-mount-of-ours.yaml":       "the volume is the agent's, or its name is kept for the agent",
	"patch/bad-reserved-volume.yaml":     "the volume is the agent's, or its name is kept for the agent",
	"patch/bad-directive-in-list.yaml":   "the merge drops the directive in silence, or not, depending on the Pod below it",
	"patch/bad-primitive-list.yaml":      "the merge drops the directive in silence, or not, depending on the Pod below it",
	"containers/bad-same-init-name.yaml": "the merge lays the second entry over the first in silence",
	"scheduling/bad-grace-negative.yaml": "the API server puts 1 second in place of a negative time",
	"volumes/bad-medium.yaml":            "the API server does not look, and the node refuses to start the Pod",
}

// looser are the templates that the API server refuses and the check takes.
var looser = map[string]string{}

func TestTheCheckAgreesWithTheAPIServer(t *testing.T) {
	archives, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatalf("found %d archives, %v", len(archives), err)
	}
	met := map[string]bool{}
	count := 0
	for _, archive := range archives {
		for name, content := range templates(t, archive) {
			count++
			met[name] = true
			t.Run(name, func(t *testing.T) {
				all := podtemplate.CheckFile(name, []byte(content))
				problems := all.Errors()
				refusal := oracle.Judge([]byte(content))
				if len(problems) == 0 && slices.ContainsFunc(all, protected) {
					return // the agent sets its own after the merge, so the API server never sees it
				}
				ours, theirs := len(problems) == 0, refusal == nil
				_, isStricter := stricter[name]
				_, isLooser := looser[name]
				switch {
				case !ours && theirs && !isStricter:
					t.Errorf("the API server takes it, and the check says\n%v", problems)
				case ours && !theirs && !isLooser:
					t.Errorf("the check takes it, and the API server says\n%v", refusal)
				case isStricter && (ours || !theirs):
					t.Errorf("is no exception any more: %v, %v", problems, refusal)
				case isLooser && (!ours || theirs):
					t.Errorf("is no exception any more: %v, %v", problems, refusal)
				}
			})
		}
	}
	for _, list := range []map[string]string{stricter, looser} {
		for name, reason := range list {
			if !met[name] || reason == "" {
				t.Errorf("the exception %s is no template, or has no reason", name)
			}
		}
	}
	t.Logf("%d templates, %d exceptions", count, len(stricter)+len(looser))
}

// templates reads an archive of files, each after a line such as -- name.yaml --.
func templates(t *testing.T, archive string) map[string]string {
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	theme := strings.TrimSuffix(filepath.Base(archive), ".txtar")
	files := map[string]string{}
	current := ""
	for line := range strings.Lines(string(content)) {
		name, ok := strings.CutPrefix(line, "-- ")
		switch {
		case ok:
			current = theme + "/" + strings.TrimSuffix(name, " --\n")
			files[current] = ""
		case current != "":
			files[current] += line
		}
	}
	return files
}

func TestQuantitiesAreReadAlike(t *testing.T) {
	written := []string{
		"0", "1", "-1", "+1", "1.5", ".5", "5.", "1e3", "1E3", "1E", "1e", "1e+3", "1e-3", "1Ki", "1k", "1K", "1M", "1Mi", "1m", "1u", "1n", "1p", "1 Gi", "1GB", "Gi", "", " 1", "0x10",
		"1_000", "1,5", "1e3Mi", "1.5Gi", "100m", "0.1", "1000m", "1024", "1e60", "1E61", "999999999999999999999", "0.0000000001", "1PiB", "2Ei", "NaN", "Inf", "½", "1.2.3", "--1", "1+", "00001",
	}
	// The API server takes a unit without a number for nothing, and cuts blanks.
	slips := []string{"Gi", " 1"}
	for _, limit := range written {
		for _, request := range written {
			content := []byte(`{"spec": {"containers": [{"name": "pulumi-workflow", "resources": {"limits": {"cpu": "` + limit + `"}, "requests": {"cpu": "` + request + `"}}}]}}`)
			problems := podtemplate.CheckFile("pod.json", content).Errors()
			if slices.Contains(slips, limit) || slices.Contains(slips, request) {
				if len(problems) == 0 {
					t.Errorf("limit %q, request %q: the check says nothing", limit, request)
				}
				continue
			}
			if refusal := oracle.Judge(content); (len(problems) == 0) != (refusal == nil) {
				t.Errorf("limit %q, request %q: the check says %v, the API server %v", limit, request, problems, refusal)
			}
		}
	}
}
