package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectors "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// agentPodWith returns the Pod of an agent with a controller. Kind is empty for a Pod
// without a controller.
func agentPodWith(name, kind, controller, hash string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "cmwa", Name: name, UID: types.UID("uid of " + name)}}
	if hash != "" {
		pod.Labels = map[string]string{"pod-template-hash": hash}
	}
	if kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{
			{Kind: "Node", Name: "not-the-controller"},
			{Kind: kind, Name: controller, Controller: new(true)},
		}
	}
	return pod
}

func TestGroupOf(t *testing.T) {
	long := strings.Repeat("agent-", 20) + "x"
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string // empty for a digest
	}{
		"Deployment": {
			agentPodWith("agent-7d-abcde", "ReplicaSet", "agent-7d", "7d"), "cmwa.deployment.agent",
		},
		"ReplicaSet alone": {agentPodWith("agent-abcde", "ReplicaSet", "agent", ""), "cmwa.replicaset.agent"},
		"hash of another object": {
			agentPodWith("agent-abcde", "ReplicaSet", "agent-1", "2"), "cmwa.replicaset.agent-1",
		},
		"StatefulSet": {agentPodWith("agent-0", "StatefulSet", "agent", ""), "cmwa.statefulset.agent"},
		"DaemonSet":   {agentPodWith("agent-xyz", "DaemonSet", "agent", ""), "cmwa.daemonset.agent"},
		"Job":         {agentPodWith("agent-xyz", "Job", "agent-28", ""), "cmwa.job.agent-28"},
		"CronJob":     {agentPodWith("agent-xyz", "Job", "agent-29734215", ""), "cmwa.cronjob.agent"},
		"ScaledJob": {
			func() *corev1.Pod {
				pod := agentPodWith("agent-wq7xz-k2k2k", "Job", "agent-wq7xz", "")
				pod.Labels = map[string]string{labelScaledJob: "agent"}
				return pod
			}(), "cmwa.scaledjob.agent",
		},
		"Pod without controller":    {agentPodWith("agent", "", "", ""), "cmwa.pod.agent"},
		"name is not a valid label": {agentPodWith(long, "ReplicaSet", long+"-1", "1"), ""},
		"name with dots":            {agentPodWith("a.b-0", "StatefulSet", "a.b", ""), "cmwa.statefulset.a.b"},
		"Deployment without name":   {agentPodWith("x", "ReplicaSet", "-1", "1"), "cmwa.replicaset.-1"},
	} {
		got := groupOf(c.pod, "")
		if len(validation.IsValidLabelValue(got)) > 0 || c.want != "" && got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestMark(t *testing.T) {
	me := selfOf(agentPodWith(strings.Repeat("a", 100), "ReplicaSet", "agent-1", "1"), "")
	pod := &corev1.Pod{}
	me.mark(pod)
	if got := ownerOf(pod); got != me.owner {
		t.Errorf("the owner is %+v, want %+v", got, me.owner)
	}
	if value := pod.Labels[labelOwner]; len(validation.IsValidLabelValue(value)) > 0 {
		t.Errorf("the owner's label is %q", value)
	}
	plain := &corev1.Pod{}
	self{}.mark(plain)
	if len(plain.Labels)+len(plain.Annotations) > 0 {
		t.Errorf("an agent without a known Pod marked %+v", plain)
	}
}

func TestOwnerOf(t *testing.T) {
	for text, want := range map[string]owner{
		`{"namespace":"cmwa","name":"agent-1","uid":"u"}`:      {"cmwa", "agent-1", "u"},
		`{"namespace":"cmwa","name":"agent-1"}`:                {"cmwa", "agent-1", ""},
		`{"namespace":"../x","name":"agent-1","uid":"u"}`:      {"jobs", "label", ""},
		`{"namespace":"cmwa","name":"a/b?c=d","uid":"u"}`:      {"jobs", "label", ""},
		`{"namespace":"cmwa"}`:                                 {"jobs", "label", ""},
		`[1]`:                                                  {"jobs", "label", ""},
		``:                                                     {"jobs", "label", ""},
		`{"namespace":1,"name":"agent-1","uid":"u"}`:           {"jobs", "label", ""},
		strings.Repeat(`{"name":`, 10_000) + `{}`:              {"jobs", "label", ""},
		`{"namespace":"cmwa","name":"agent-1","uid":"u"} more`: {"jobs", "label", ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace:   "jobs",
			Labels:      map[string]string{labelOwner: "label"},
			Annotations: map[string]string{annotationOwner: text},
		}}
		if got := ownerOf(pod); got != want {
			t.Errorf("%.60s: got %+v, want %+v", text, got, want)
		}
		if got := ownerOf(reduced(pod)); got != want {
			t.Errorf("%.60s, reduced: got %+v, want %+v", text, got, want)
		}
	}
	none := ownerOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "jobs"}})
	if none.valid() {
		t.Errorf("got owner %+v of a Pod without labels, want one that is not valid", none)
	}
}

func TestOwnerEnded(t *testing.T) {
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := agentPodWith("agent-1", "", "", "")
		pod.Status.Phase = corev1.PodRunning
		change(pod)
		return pod
	}
	now := time.Now()
	deleted := func(age time.Duration) *corev1.Pod {
		return with(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(now.Add(age))) })
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"no Pod":           {nil, true},
		"running":          {with(func(*corev1.Pod) {}), false},
		"pending":          {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), false},
		"lost node":        {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }), false},
		"being deleted":    {deleted(-overdueOwnerLimit), false},
		"on a failed node": {deleted(-overdueOwnerLimit - time.Second), true},
		"another uid":      {with(func(p *corev1.Pod) { p.UID = "new" }), true},
		"evicted":          {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"single run ended": {with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), true},
	} {
		if got := selfOf(agentPodWith("agent-1", "", "", ""), "").owner.ended(c.pod, now); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if (owner{"cmwa", "agent-1", ""}).ended(with(func(*corev1.Pod) {}), now) {
		t.Error("got ended, want no end, because a Pod with its name runs")
	}
}

func TestWatchedSelector(t *testing.T) {
	first := selfOf(agentPodWith("a-1-x", "ReplicaSet", "a-1", "1"), "")
	second := selfOf(agentPodWith("a-1-y", "ReplicaSet", "a-1", "1"), "")
	other := selfOf(agentPodWith("b-1-x", "ReplicaSet", "b-1", "1"), "")
	pods := map[string]map[string]string{}
	add := func(name string, s self, agent string, keep bool) {
		job := testJob()
		job.Agent = agent
		settings := settingsOf(agentImage)
		settings.self = s
		pod, err := plainPod(job, name, settings)
		if err != nil {
			t.Fatal(err)
		}
		if keep {
			releasePod(pod, pod.CreationTimestamp.Time)
		}
		pods[name] = pod.Labels
	}
	add("first's", first, "id-1", false)
	add("second's", second, "id-2", false)
	add("other's", other, "id-3", false)
	add("by id", self{}, "id-4", false)
	add("group's kept", first, "id-1", true)
	add("other's kept", other, "id-3", true)
	add("kept by id", self{}, "id-4", true)
	for _, c := range []struct{ name, selector, want string }{
		{"watch of a group", watchedSelector(first, "id-1"), "first's, second's"},
		{"watch of another group", watchedSelector(other, "id-3"), "other's"},
		{"watch by id", watchedSelector(self{}, "id-4"), "by id"},
		{"own Pods", ownedSelector(first, "id-1"), "first's"},
		{"own Pods by id", ownedSelector(self{}, "id-4"), "by id"},
		{"kept of a group", keptSelector(first), "group's kept"},
		{"kept without a group", keptSelector(self{}), "kept by id"},
	} {
		selector, err := selectors.Parse(c.selector)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range slices.Sorted(maps.Keys(pods)) {
			if selector.Matches(selectors.Set(pods[name])) {
				got = append(got, name)
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s (%s): got %v, want %s", c.name, c.selector, got, c.want)
		}
	}
}

func TestAgentPodOf(t *testing.T) {
	for _, c := range []struct {
		environ map[string]string
		want    string
	}{
		{map[string]string{"HOSTNAME": "agent-1"}, "agent-1"},
		{map[string]string{"HOSTNAME": "node", "POD_NAME": "agent-1"}, "agent-1"},
		{map[string]string{"HOSTNAME": "agent-1", "POD_NAME": ""}, "agent-1"},
	} {
		if got := agentPodOf(environ(c.environ), "cmwa"); got != (agentPod{"cmwa", c.want}) {
			t.Errorf("%v: got %+v, want %s", c.environ, got, c.want)
		}
	}
}
