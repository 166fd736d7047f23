package oracle_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/podtemplate/oracle"
	"github.com/cmwa-project/cmwa/schema/position"
)

// removed is a replacement. As the value of a key, it removes the key. As an entry of a list,
// it is an ordinary string.
const removed = "(removed)"

// differences are the paths at which a change of one value may lead to different results of
// the check and of the API server.
var differences = []struct{ path, reason string }{
	{`^\.(apiVersion|kind)$`, "the API server accepts other values, because the agent sets these fields"},
	{`\$patch|\$deleteFromPrimitiveList`, "the merge ignores the directive silently, depending on the Pod"},
	{`\.emptyDir\.medium$`, "the API server does not check it, and the node fails to start the Pod"},
	{`\.imagePullSecrets\.\d+(\.name)?$`, "the merge fails without a name only if the Pod already has secrets"},
	{`\.env\.0(\.name|\.value)?$`, "the merge silently replaces the first entry with the second"},
	{`\.windowsOptions\.`, "jobs run on Linux, so only the types of these values are checked"},
	{`\.lifecycle\.preStop\.sleep\.seconds$`, "the check does not know the grace period of the Pod"},
}

// values returns the replacements that the test tries for each value.
func values() []any {
	return []any{
		removed, "", "plain", "Not A Name", "a/b", "../up", "/abs", "UPPER",
		strings.Repeat("x", 70), "10.0.0.1", "500m",
		-1, 0, 1, 70000, true,
		[]any{}, map[string]any{}, []any{"a"}, map[string]any{"a": "b"}, "None", "Localhost",
	}
}

// eachGoodValue calls call with every value of every valid template of testdata: the name of the
// template, the whole template, and the arguments of [each].
func eachGoodValue(t *testing.T, call func(name string, whole any, path string, set func(any))) {
	t.Helper()
	files := templates(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var whole any
		if strings.Contains(name, "/good-") && yaml.Unmarshal([]byte(files[name]), &whole) == nil {
			each(whole, "", func(path string, set func(any)) { call(name, whole, path, set) })
		}
	}
}

// compare returns the errors of the check and that of the API server for a template, and
// reports whether only one of the two rejects it. Fields that the agent sets do not count.
func compare(t *testing.T, whole any) (problems position.Problems, rejection error, differ bool) {
	t.Helper()
	content, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	all := podtemplate.CheckFile("pod.json", content)
	problems, rejection = all.Errors(), oracle.Validate(content)
	return problems, rejection, (len(problems) == 0) != (rejection == nil) && !slices.ContainsFunc(all, protected)
}

// TestCheckFileChanges compares the check with the API server after each change of one
// value.
func TestCheckFileChanges(t *testing.T) {
	found := make([]bool, len(differences)) // for each difference, whether a change has shown it
	tried := map[string]bool{}
	eachGoodValue(t, func(name string, whole any, path string, set func(any)) {
		for _, v := range values() {
			change := fmt.Sprintf("%s = %T %v", digits.ReplaceAllString(path, ".N"), v, v)
			if tried[change] {
				continue
			}
			tried[change] = true
			set(v)
			problems, rejection, differ := compare(t, whole)
			if !differ {
				continue
			}
			known := slices.IndexFunc(differences, func(d struct{ path, reason string }) bool {
				return regexp.MustCompile(d.path).MatchString(path)
			})
			if known < 0 {
				t.Errorf("%s: %s = %v: the check reports %v, the API server %.300v", name, path, v, problems, rejection)
				continue
			}
			found[known] = true
		}
	})
	for i, d := range differences {
		if !found[i] {
			t.Errorf("no change of %s shows a difference: remove this path from differences", d.path)
		}
	}
	t.Logf("%d changes", len(tried))
}

// digits matches the indexes of entries in a path. The test replaces them with N, so that it
// tries a change only once for all entries of a list.
var digits = regexp.MustCompile(`\.\d+\b`)

func protected(p position.Problem) bool { return p.Rule == position.RuleProtectedField }

// TestCheckFileDuplicates compares the check with the API server after each duplication
// of the last entry of a list.
func TestCheckFileDuplicates(t *testing.T) {
	count := 0
	eachGoodValue(t, func(name string, whole any, path string, set func(any)) {
		list, ok := at(whole, path).([]any)
		if !ok || len(list) == 0 || merged.MatchString(path) {
			return
		}
		set(append(slices.Clone(list), list[len(list)-1]))
		count++
		if problems, rejection, differ := compare(t, whole); differ {
			t.Errorf("%s: %s: the check reports %v, the API server %.300v", name, path, problems, rejection)
		}
	})
	t.Logf("%d lists", count)
}

// merged matches the paths of lists that TestCheckFileDuplicates skips. In containers,
// initContainers, volumes, env and volumeMounts, the merge keeps only the second entry: the
// API server accepts the duplicate, and the check may reject it. The path of a merge
// directive contains $. The last alternative is the selector into which the API server copies
// matchLabelKeys.
var merged = regexp.MustCompile(`^\.spec\.(containers|initContainers|volumes)$` +
	`|^\.spec\.containers\.\d+\.(env|volumeMounts)$|\$` +
	`|\.topologySpreadConstraints\.0\.labelSelector\.matchExpressions$`)

// at returns the value at a path.
func at(v any, path string) any {
	for _, step := range strings.Split(path, ".")[1:] {
		switch data := v.(type) {
		case map[string]any:
			v = data[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(data) {
				return nil
			}
			v = data[i]
		}
	}
	return v
}

// each calls call with the path of every value inside v and a function that sets the
// value. It restores the old value after call has returned.
func each(v any, path string, call func(path string, set func(any))) {
	switch data := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(data)) {
			old := data[key]
			call(path+"."+key, func(v any) {
				if data[key] = v; v == removed {
					delete(data, key)
				}
			})
			data[key] = old
			each(old, path+"."+key, call)
		}
	case []any:
		for i, old := range data {
			inner := fmt.Sprintf("%s.%d", path, i)
			call(inner, func(v any) { data[i] = v })
			data[i] = old
			each(old, inner, call)
		}
	}
}
