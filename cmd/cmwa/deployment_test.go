package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/schema"
)

const (
	configDirectory = "/etc/cmwa"              // directory of a deployed agent's configuration
	tokenDirectory  = "/var/run/secrets/cmwa"  // directory of a deployed agent's token
	touchEvery      = time.Second              // interval of updates that make the kubelet refresh a Pod's volumes
	nameLabel       = "app.kubernetes.io/name" // of the agent's Pods
)

// deployment is an agent that runs as a Deployment, with its configuration in a
// ConfigMap that is mounted as a directory.
type deployment struct {
	w         *world
	namespace string
	name      string // of the Deployment and of its ConfigMap
	selector  string // of the agent's Pods, by their labels

	core, apps *rest.RESTClient
}

// deploy creates a Deployment with this number of agents in the namespace of the world,
// and blocks until they are ready. The agents have the rights of the documented Role. Their
// configuration has the lines, and the settings that all tests use. The name must be unique
// in the world.
func (w *world) deploy(name string, replicas int32, lines ...string) *deployment {
	w.t.Helper()
	w.must(clusterImage())
	d := w.deployed(w.cluster.Name, name, nameLabel+"="+name)
	meta := metav1.ObjectMeta{Name: name}
	d.create(d.core, "secrets", &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"token": w.pool}})
	d.create(d.core, "configmaps", &corev1.ConfigMap{ObjectMeta: meta, Data: d.configuration(lines)})
	d.create(d.apps, "deployments", d.object(replicas))
	w.t.Cleanup(d.remove)
	d.awaitReady(int(replicas))
	return d
}

// deployed returns a deployment for a Deployment that exists, or that the caller creates
// later.
func (w *world) deployed(namespace, name, selector string) *deployment {
	return &deployment{
		w: w, namespace: namespace, name: name, selector: selector,
		core: kubetest.Client(w.t, w.cluster.Admin, corev1.SchemeGroupVersion),
		apps: kubetest.Client(w.t, w.cluster.Admin, appsv1.SchemeGroupVersion),
	}
}

// configuration returns the data of the ConfigMap.
func (d *deployment) configuration(lines []string) map[string]string {
	text := d.w.settings(lines,
		"token_file: "+tokenDirectory+"/token",
		"kubernetes: {image: "+imageName+", image_pull_policy: Never}",
		"pod_template: {spec: {containers: [{name: pulumi-workflow, imagePullPolicy: Never}]}}",
	)
	return map[string]string{schema.FileName: text}
}

// object returns the Deployment.
func (d *deployment) object(replicas int32) *appsv1.Deployment {
	labels := map[string]string{nameLabel: d.name}
	probe := func(path string) *corev1.Probe {
		get := &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get}, PeriodSeconds: 1, FailureThreshold: 60}
	}
	pod := corev1.PodSpec{
		ServiceAccountName:            kubetest.Account,
		TerminationGracePeriodSeconds: new(int64(3600 + 120)), // longer than shutdown_timeout
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), FSGroup: new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "agent", Image: imageName, ImagePullPolicy: corev1.PullNever,
			Args:          []string{"run", "--config", configDirectory + "/" + schema.FileName},
			Ports:         []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			LivenessProbe: probe("/healthz"), ReadinessProbe: probe("/readyz"),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "configuration", MountPath: configDirectory, ReadOnly: true},
				{Name: "token", MountPath: tokenDirectory, ReadOnly: true},
				{Name: "state", MountPath: "/var/lib/cmwa"},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "configuration", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: d.name},
			}}},
			{Name: "token", VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: d.name, DefaultMode: new(int32(0o440))},
			}},
			{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: d.name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

// pods returns the agents' Pods, without those that are being deleted.
func (d *deployment) pods() []corev1.Pod {
	d.w.t.Helper()
	return slices.DeleteFunc(d.allPods(), func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// allPods returns the Pods of the Deployment, also those that are being deleted.
func (d *deployment) allPods() []corev1.Pod {
	d.w.t.Helper()
	pods, err := d.list(d.w.t.Context())
	d.w.must(err)
	return pods
}

func (d *deployment) list(ctx context.Context) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := d.core.Get().Namespace(d.namespace).Resource("pods").
		Param("labelSelector", d.selector).Do(ctx).Into(&all)
	return all.Items, err
}

// awaitReady blocks until this number of Pods exists and all are ready, and returns them.
func (d *deployment) awaitReady(count int) (pods []corev1.Pod) {
	d.w.t.Helper()
	d.w.eventually(fmt.Sprintf("Deployment %s has %d ready Pods", d.name, count), func() bool {
		pods = d.pods()
		isUnready := func(pod corev1.Pod) bool { return !isReady(pod) }
		return len(pods) == count && !slices.ContainsFunc(pods, isUnready)
	})
	return pods
}

func isReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// change updates the Deployment: for example its replicas, or an annotation of its template.
func (d *deployment) change(edit func(*appsv1.Deployment)) {
	d.w.t.Helper()
	updateObject(d, d.apps, "deployments", d.name, &appsv1.Deployment{}, edit)
}

// rewrite changes the configuration in the ConfigMap through the API, and blocks until
// each agent has applied it. The kubelet refreshes the volumes of a Pod when the Pod
// changes; by itself it does so within 90 s.
func (d *deployment) rewrite(change func(text string) string) {
	d.w.t.Helper()
	before := d.generations()
	updateObject(d, d.core, "configmaps", d.name, &corev1.ConfigMap{}, func(c *corev1.ConfigMap) {
		c.Data[schema.FileName] = change(c.Data[schema.FileName])
	})
	d.awaitReload(before)
}

// generations returns the generation of the configuration in each Pod.
func (d *deployment) generations() map[string]uint64 {
	d.w.t.Helper()
	generations := map[string]uint64{}
	for _, pod := range d.pods() {
		generations[pod.Name] = d.status(pod).Config.Desired
	}
	return generations
}

// awaitReload blocks until each Pod has applied a later generation than before, and until
// each poll that started before the reload has ended. A job from such a poll would still get
// the old settings.
func (d *deployment) awaitReload(before map[string]uint64) {
	d.w.t.Helper()
	for _, pod := range d.pods() {
		touched, converged := time.Time{}, map[string]time.Time(nil)
		d.w.eventually("Pod "+pod.Name+" has reloaded its configuration", func() bool {
			if time.Since(touched) > touchEvery {
				touched = time.Now()
				d.touch(pod.Name)
			}
			now := d.status(pod)
			if now.Config.Desired <= before[pod.Name] || !now.Converged {
				return false
			}
			answered := map[string]time.Time{}
			for _, pool := range now.Pools {
				answered[pool.Key] = pool.AnsweredAt
			}
			if converged == nil {
				converged = answered
			}
			for key, at := range answered {
				if !at.After(converged[key]) {
					return false
				}
			}
			return true
		})
	}
}

// touch changes an annotation of a Pod, so that the kubelet refreshes its volumes.
func (d *deployment) touch(pod string) {
	d.w.t.Helper()
	updateObject(d, d.core, "pods", pod, &corev1.Pod{}, func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "cmwa-test/touched", time.Now().Format(time.RFC3339Nano))
	})
}

// status returns the status of one agent.
func (d *deployment) status(pod corev1.Pod) (document status.Document) {
	d.w.t.Helper()
	ctx, cancel := context.WithTimeout(d.w.t.Context(), storyLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pod.Status.PodIP+":8080/status", nil)
	d.w.must(err)
	response, err := http.DefaultClient.Do(request)
	d.w.must(err)
	defer response.Body.Close()
	d.w.must(json.NewDecoder(response.Body).Decode(&document))
	return document
}

// log returns the log of the agent in a Pod.
func (d *deployment) log(pod string) string {
	ctx, cancel := context.WithTimeout(context.Background(), storyLimit)
	defer cancel()
	text, err := d.core.Get().Namespace(d.namespace).Resource("pods").Name(pod).SubResource("log").Do(ctx).Raw()
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// remove deletes the Deployment; the deletion of the namespace ends its Pods. If the test
// has failed, it logs the agents' logs.
func (d *deployment) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), storyLimit)
	defer cancel()
	if d.w.t.Failed() {
		pods, err := d.list(ctx)
		d.w.t.Logf("%d agents, %v", len(pods), err)
		for _, pod := range pods {
			d.w.t.Logf("-- log of Pod %s:\n%s", pod.Name, d.log(pod.Name))
		}
	}
	options := &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	err := d.apps.Delete().Namespace(d.namespace).Resource("deployments").Name(d.name).Body(options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		d.w.t.Errorf("delete Deployment %s: %v", d.name, err)
	}
}

// create creates an object in the namespace of the Deployment.
func (d *deployment) create(client *rest.RESTClient, resource string, object runtime.Object) {
	d.w.t.Helper()
	d.w.must(client.Post().Namespace(d.namespace).Resource(resource).Body(object).Do(d.w.t.Context()).Error())
}

// updateObject changes an object in the namespace of a Deployment, and retries after a
// conflict. It reads the present state into object.
func updateObject[T runtime.Object](
	d *deployment, client *rest.RESTClient, resource, name string, object T, edit func(T),
) {
	d.w.t.Helper()
	d.w.eventually("update of "+resource+"/"+name, func() bool {
		get := client.Get().Namespace(d.namespace).Resource(resource).Name(name)
		d.w.must(get.Do(d.w.t.Context()).Into(object))
		edit(object)
		put := client.Put().Namespace(d.namespace).Resource(resource).Name(name).Body(object)
		err := put.Do(d.w.t.Context()).Error()
		if apierrors.IsConflict(err) {
			return false
		}
		d.w.must(err)
		return true
	})
}

// keep runs a function, and checks that it neither replaces nor restarts the agents'
// Pods.
func (d *deployment) keep(what func()) {
	d.w.t.Helper()
	identities := func() (all []string) {
		for _, pod := range d.pods() {
			all = append(all, fmt.Sprint(pod.UID, " with ", pod.Status.ContainerStatuses[0].RestartCount, " restarts"))
		}
		slices.Sort(all)
		return all
	}
	before := identities()
	what()
	if after := identities(); !slices.Equal(after, before) {
		d.w.t.Errorf("the agents' Pods are %v afterwards, and were %v before", after, before)
	}
}

// warnings returns the lines of the agents' logs that are warnings or errors. The service of the
// tests has no TLS, and the agent warns of that.
func (d *deployment) warnings() (lines []string) {
	for _, pod := range d.pods() {
		for line := range strings.Lines(d.log(pod.Name)) {
			if (strings.Contains(line, " WRN ") || strings.Contains(line, " ERR ")) &&
				!strings.Contains(line, "without TLS") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
