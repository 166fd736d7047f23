package oracle_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
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

// removed stands for no value at all.
const removed = "(removed)"

// differences are the places, in no template but in what becomes of one when a
// value is changed, at which the two may differ.
var differences = []struct{ place, reason string }{
	{`^\.(apiVersion|kind)$`, "the merge works, but the agent asks for a Pod of v1"},
	{`\$patch|\$deleteFromPrimitiveList`, "the merge drops the directive in silence, or not, depending on the Pod below it"},
	{`\.emptyDir\.medium$`, "the API server does not look, and the node refuses to start the Pod"},
	{`\.imagePullSecrets\.\d+(\.name)?$`, "the merge fails without a name only if the Pod has secrets already"},
	{`\.env\.0(\.name|\.value)?$`, "the merge lays the second entry over the first in silence"},
	{`\.windowsOptions\.`, "jobs run on Linux, so that no more than the kinds of these values are looked at"},
	{`\.lifecycle\.preStop\.sleep\.seconds$`, "the check does not know the grace period of the Pod below"},
}

// values are what a change puts in place of a value.
func values() []any {
	return []any{
		removed, "", "plain", "Not A Name", "a/b", "../up", "/abs", "UPPER", strings.Repeat("x", 70), "10.0.0.1", "500m", -1, 0, 1, 70000, true,
		[]any{}, map[string]any{}, []any{"a"}, map[string]any{"a": "b"}, "None", "Localhost",
	}
}

func TestEveryChangeOfOneValueIsJudgedAlike(t *testing.T) {
	archives, err := filepath.Glob("../testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	met := make([]bool, len(differences))
	tried := map[string]bool{}
	for _, archive := range archives {
		files := templates(t, archive)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			var whole any
			if !strings.Contains(name, "/good-") || yaml.Unmarshal([]byte(files[name]), &whole) != nil {
				continue
			}
			each(whole, "", func(path string, set func(any)) {
				for _, v := range values() {
					change := fmt.Sprintf("%s = %T %v", digits.ReplaceAllString(path, ".N"), v, v)
					if tried[change] {
						continue
					}
					tried[change] = true
					set(v)
					content, err := json.Marshal(whole)
					if err != nil {
						t.Fatal(err)
					}
					all := podtemplate.CheckFile("pod.json", content)
					problems, refusal := all.Errors(), oracle.Judge(content)
					if (len(problems) == 0) == (refusal == nil) || slices.ContainsFunc(all, protected) {
						continue
					}
					known := slices.IndexFunc(differences, func(d struct{ place, reason string }) bool { return regexp.MustCompile(d.place).MatchString(path) })
					if known < 0 {
						t.Errorf("%s: %s = %v: the check says %v, the API server %.300v", name, path, v, problems, refusal)
						continue
					}
					met[known] = true
				}
			})
		}
	}
	for i, d := range differences {
		if !met[i] {
			t.Errorf("%s is no difference any more", d.place)
		}
	}
	t.Logf("%d changes", len(tried))
}

// digits tell the entries of a list apart, which are alike.
var digits = regexp.MustCompile(`\.\d+\b`)

func protected(p position.Problem) bool { return p.Rule == position.RuleProtectedField }

func TestEveryEntryWrittenTwiceIsJudgedAlike(t *testing.T) {
	archives, err := filepath.Glob("../testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, archive := range archives {
		files := templates(t, archive)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			var whole any
			if !strings.Contains(name, "/good-") || yaml.Unmarshal([]byte(files[name]), &whole) != nil {
				continue
			}
			each(whole, "", func(path string, set func(any)) {
				list, ok := at(whole, path).([]any)
				if !ok || len(list) == 0 || laidOver.MatchString(path) {
					return
				}
				set(append(slices.Clone(list), list[len(list)-1]))
				content, err := json.Marshal(whole)
				if err != nil {
					t.Fatal(err)
				}
				count++
				all := podtemplate.CheckFile("pod.json", content)
				problems := all.Errors()
				if refusal := oracle.Judge(content); (len(problems) == 0) != (refusal == nil) && !slices.ContainsFunc(all, protected) {
					t.Errorf("%s: %s: the check says %v, the API server %.300v", name, path, problems, refusal)
				}
			})
		}
	}
	t.Logf("%d lists", count)
}

// laidOver are the lists of the Pod below: the merge lays the second entry over
// the first in silence, which the check refuses where it is surely a slip. The
// last one stands for a selector that repeats what matchLabelKeys say.
var laidOver = regexp.MustCompile(`^\.spec\.(containers|initContainers|volumes)$|^\.spec\.containers\.\d+\.(env|volumeMounts)$|\$|\.topologySpreadConstraints\.0\.labelSelector\.matchExpressions$`)

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

// each calls a function for every value within a value, with a way to change it,
// and puts the value back afterwards.
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
