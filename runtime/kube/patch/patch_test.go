package patch

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plainPod returns a Pod like that of a job: with an init container, a container, and a
// volume that both containers mount.
func plainPod() *corev1.Pod {
	mounts := []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "a"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			InitContainers: []corev1.Container{
				{Name: "prepare", Image: "p", Command: []string{"p"}, VolumeMounts: mounts},
			},
			Containers: []corev1.Container{{Name: "main", Image: "m", Command: []string{"m"}, VolumeMounts: mounts}},
			Volumes:    []corev1.Volume{{Name: "work"}},
		},
	}
}

// documentOf returns the plain Pod with a patch applied.
func documentOf(text string) (Document, error) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, err
	}
	pod, err := Merge(plainPod(), fields)
	if err != nil {
		return nil, err
	}
	return NewDocument(pod, "main", "prepare")
}

func TestMerge(t *testing.T) {
	t.Run("the Pod that is merged is not changed", func(t *testing.T) {
		pod := plainPod()
		fields := map[string]any{"spec": map[string]any{
			"hostname": "h", "containers": []any{map[string]any{"name": "main", "image": "other"}},
		}}
		if _, err := Merge(pod, fields); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(pod, plainPod()) {
			t.Errorf("Merge changed the Pod to %+v", pod)
		}
	})
	t.Run("a panic is an error", func(t *testing.T) {
		// checkKeys would find this error before the merge.
		if _, err := merge([]byte(`{"spec": {"containers": [{"name": "a"}]}}`),
			[]byte(`{"spec": {"containers": [{"name": ["a"]}]}}`)); err == nil {
			t.Error("got no error, want one for the panic")
		}
	})
}

// leaf is a value in a document that is neither a mapping nor a list.
type leaf struct {
	path string
	set  func(any)
}

// leaves returns the leaves below a value. The path of an element of a list is the path of
// the list.
func leaves(path string, value any, set func(any)) (all []leaf) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			all = append(all, leaves(joinPath(path, key), inner, func(v any) { value[key] = v })...)
		}
	case []any:
		for i, inner := range value {
			all = append(all, leaves(path, inner, func(v any) { value[i] = v })...)
		}
	default:
		all = append(all, leaf{path, set})
	}
	return all
}

// TestDocumentChanges changes each value of a Pod, and expects a change whose path is a
// prefix of the value's path.
func TestDocumentChanges(t *testing.T) {
	whole := `{"metadata": {"labels": {"a/b": "c"}}, "spec": {
		"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b"]}],
		"tolerations": [{"key": "a"}, {"key": "b"}], "containers": [{"name": "proxy", "image": "p", "args": ["x"],
			"env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 53, "protocol": "UDP"}],
			"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
		"volumes": [{"name": "cache", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}}`
	fresh := func() Document {
		document, err := documentOf(whole)
		if err != nil {
			t.Fatal(err)
		}
		return document
	}
	paths := leaves("", map[string]any(fresh()), nil)
	if len(paths) < 30 {
		t.Fatalf("the Pod has %d values, want at least 30", len(paths))
	}
	slices.SortFunc(paths, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
	unnamed := func(path string) string { // removes the keys of elements
		for {
			before, suffix, found := strings.Cut(path, "[")
			_, after, closed := strings.Cut(suffix, "]")
			if !found || !closed {
				return path
			}
			path = before + after
		}
	}
	for _, one := range paths {
		document, changed := fresh(), fresh()
		for _, l := range leaves("", map[string]any(changed), nil) {
			if l.path == one.path {
				l.set("changed")
			}
		}
		changes := document.Changes(changed)
		if !slices.ContainsFunc(changes, func(c Change) bool {
			return strings.HasPrefix(unnamed(one.path), strings.TrimSuffix(unnamed(c.Path), "."+"name"))
		}) {
			t.Errorf("%s: got the changes %v, want one with a prefix of this path", one.path, changes)
		}
	}
}

// FuzzChanges compares the Pods of two templates. A Pod equals itself, different Pods have
// a change, and both directions have the same paths.
func FuzzChanges(f *testing.F) {
	f.Add(`{}`, `{"spec": {"containers": [{"name": "a", "command": ["x"], "env": [{"name": "A", "value": "b"}]}]}}`)
	f.Add(`{"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}}`,
		`{"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}`)
	f.Add(`{"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}`,
		`{"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}`)
	f.Add(`{"metadata": {"labels": {"": "a", "a.b": "c"}}}`, `{"metadata": {"finalizers": ["a/b"]}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		from, err := documentOf(a)
		if err != nil {
			return
		}
		to, err := documentOf(b)
		if err != nil {
			return
		}
		forth, back := from.Changes(to), to.Changes(from)
		if (len(forth) == 0) != reflect.DeepEqual(from, to) {
			t.Errorf("%q to %q: got the changes %v, want none only for equal Pods", a, b, forth)
		}
		if len(from.Changes(from)) > 0 {
			t.Errorf("%q differs from itself", a)
		}
		reversed := make([]Change, len(back))
		for i, c := range back {
			reversed[i] = Change{Path: c.Path, From: c.To, To: c.From}
		}
		if !reflect.DeepEqual(append([]Change{}, forth...), reversed) {
			t.Errorf("%q to %q:\n%v\nand back:\n%v", a, b, forth, back)
		}
		for _, c := range forth {
			if text := c.String(); strings.ContainsAny(text, "\n\r") || text == "" {
				t.Errorf("%q to %q: got the change %q, want one line", a, b, text)
			}
		}
	})
}

// TestChangeString expects one line for each of 1,000 random values.
func TestChangeString(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000 {
		text := make([]rune, random.IntN(300))
		for i := range text {
			text[i] = rune(random.IntN(0x2fff))
		}
		line := Change{Path: "spec.hostname", From: nil, To: string(text)}.String()
		if strings.ContainsAny(line, "\n\r\x00") || len(line) > len("spec.hostname: added ")+maxValue {
			t.Fatalf("got %q, want one line that is not too long", line)
		}
	}
}
