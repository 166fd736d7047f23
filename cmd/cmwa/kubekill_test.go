package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// killDirectory is the path of the directory of staticPrograms within the agent's container.
const killDirectory = "/killpoints"

// pointsInPod returns the points at which TestKillPointsInPod kills: in make soak all
// points of a job with the target kubernetes except PollAnswered, in make test three of
// them. At PollAnswered, the cluster has no record of the job yet.
func pointsInPod() []killpoint.Point {
	if !whole() {
		return []killpoint.Point{killpoint.Journalled, killpoint.InstanceCreated, killpoint.HandoffSent}
	}
	var all []killpoint.Point
	for _, entry := range killEntries {
		if entry.absent["kubernetes"] == "" && entry.point != killpoint.PollAnswered {
			all = append(all, entry.point)
		}
	}
	return all
}

// TestKillPointsInPod kills an agent in a Pod at points of a job, and replaces the Pod. The
// new agent does not have the state directory of the old one, so it must find the job in the
// cluster.
func TestKillPointsInPod(t *testing.T) {
	t.Parallel()
	for _, point := range pointsInPod() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			directory, err := staticPrograms()
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, "kubernetes")
			agents := w.deploy("agent", 1)

			// Run a job with an agent that is killed.
			agents.change(func(d *appsv1.Deployment) { killAt(&d.Spec.Template.Spec, directory, point) })
			w.eventually("the agent with kill points is ready, and no other one runs", func() bool {
				pods := agents.allPods()
				return len(pods) == 1 && isReady(pods[0]) && len(pods[0].Spec.Containers[0].Command) > 0
			})
			old := agents.pods()[0].Name
			script := "echo the step runs; sleep 3"
			if point == killpoint.HandoffStored {
				script += "\n: " + largeText
			}
			w.queue("one", oneStep(script))
			w.eventually("the agent is killed", func() bool {
				return slices.ContainsFunc(agents.pods(), func(pod corev1.Pod) bool {
					status := pod.Status.ContainerStatuses
					return len(status) > 0 && (status[0].RestartCount > 0 || status[0].State.Terminated != nil)
				})
			})

			// Replace the Pod by one whose agent is not killed.
			agents.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Env = nil })
			agents.kill(old)
			w.eventually("the new agent is ready", func() bool {
				pods := agents.pods()
				return len(pods) == 1 && isReady(pods[0]) && pods[0].Name != old
			})
			returned := time.Now()

			// The job ends once, and nothing is left.
			w.await("one", "succeeded")
			succeeded := time.Since(returned).Round(time.Second)
			w.wantSteps("one", "succeeded", "succeeded")
			if n := strings.Count(w.log("one"), "\nthe step runs\n"); n != 1 {
				t.Errorf("the step has run %d times:\n%s", n, w.log("one"))
			}
			w.eventually("the Pod and the record are removed", func() bool {
				return len(w.containers("one"))+len(w.objects("configmaps", "cmwa.record")) == 0
			})
			took := time.Since(returned).Round(time.Second)
			t.Logf("the job succeeded %s after the new agent was ready, and nothing is left after %s", succeeded, took)
			if took > time.Minute {
				var log any // with the times of the lines
				w.call(http.MethodGet, w.path("one")+"/logs", nil, &log)
				t.Errorf("the Pod and the record were removed later than a minute after the new agent was ready; "+
					"the log of the job is %v", log)
			}
		})
	}
}

// killAt makes a Pod run the program cmwa in this directory of the node. The agent is then
// killed at a point.
func killAt(pod *corev1.PodSpec, directory string, point killpoint.Point) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "killpoints", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: directory},
	}})
	pod.ShareProcessNamespace = new(true) // the first process of a PID namespace cannot kill itself
	agent := &pod.Containers[0]
	agent.Command = []string{killDirectory + "/cmwa"}
	agent.Env = []corev1.EnvVar{{Name: "CMWA_KILL_AT", Value: string(point)}}
	agent.VolumeMounts = append(agent.VolumeMounts, corev1.VolumeMount{
		Name: "killpoints", MountPath: killDirectory, ReadOnly: true,
	})
}
