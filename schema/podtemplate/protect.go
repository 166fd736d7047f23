package podtemplate

import (
	"path"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// mainContainer is the container that a template changes rather than adds. Names
// that go on after it with a dash are the agent's too.
const mainContainer = "pulumi-workflow"

// prepareContainer is the agent's init container. Of it a template may change what
// [prepareFields] names.
const prepareContainer = mainContainer + "-prepare"

// prepareFields are the fields of the agent's init container that a template may set:
// what a quota or a policy of the namespace demands of every container.
var prepareFields = []string{"name", "resources", "securityContext", "imagePullPolicy"}

// isOwn reports whether a template changes the container, rather than adds it.
func isOwn(list, name string) bool {
	return list == "containers" && name == mainContainer || list == "initContainers" && name == prepareContainer
}

// RunnerDirectory is where a job's container has the runner and its files (Pulumi
// documentation, "Customer-managed runners", example of an init container).
const RunnerDirectory = "/mnt/pulumi/workflow"

// Further folders of the agent in a job's container.
const (
	handoffDirectory = "/mnt/pulumi/handoff" // what the runner shall do
	imageDirectory   = "/mnt/pulumi/runner"  // the agent's image, where the runner is not copied
)

// protect refuses what belongs to the agent, whatever else is wrong with it.
func (c *checker) protect(n node) {
	c.whole(n, "the Pod")
	if v, ok := n.at("apiVersion"); ok && v.v.Data != "v1" {
		c.report(position.RulePodTemplate, v.v.At, v.path, "must be v1", "")
	}
	if v, ok := n.at("kind"); ok && v.v.Data != "Pod" {
		hint := ""
		if word, ok := v.v.Data.(string); ok && strings.HasPrefix(word, "PodTemplate") {
			hint = "write what stands under template: as a Pod"
		}
		c.report(position.RulePodTemplate, v.v.At, v.path, "must be Pod", hint)
	}
	if v, ok := n.at("status"); ok && v.v.Data != nil && !v.empty() {
		c.restored(v, "is what the cluster reports, and has no effect here")
	}
	if metadata, ok := n.at("metadata"); ok {
		c.protectMetadata(metadata)
	}
	if spec, ok := n.at("spec"); ok {
		c.protectSpec(spec)
	}
}

func (c *checker) own(n node, message, hint string) {
	at := n.v.Key
	if at.Line == 0 {
		at = n.v.At
	}
	c.report(position.RuleProtectedField, at, n.path, message, hint)
}

// restored warns of a field that has no effect, because the agent sets its own after
// the merge.
func (c *checker) restored(n node, message string) {
	at := n.v.Key
	if at.Line == 0 {
		at = n.v.At
	}
	c.problems = append(c.problems, position.NewWarning(position.RuleProtectedField, at, n.path, message, "remove it"))
}

// whole refuses to take away or replace a mapping or a list of which a part is
// the agent's.
func (c *checker) whole(n node, what string) {
	if n.v.Data == nil && n.v.Key.Line > 0 {
		c.own(n, "must not be removed: it holds what the agent needs", "write only what is to change")
		return
	}
	t, _ := n.v.Data.(position.Mapping)
	for _, key := range []string{"$patch", "$retainKeys"} {
		if v, ok := t[key]; ok && v.Data != "merge" {
			c.own(node{v: v, path: position.Join(n.path, key)},
				"must not stand here: it would remove what the agent needs of "+what,
				"write only what is to change, or null for what is to go")
		}
	}
	list, _ := n.v.Data.([]position.Value)
	for i := range list {
		entry := n.entry(i)
		if inner, ok := list[i].Data.(position.Mapping); ok && text(inner, "$patch") == "replace" &&
			text(inner, "name") != mainContainer {
			c.own(node{v: inner["$patch"], path: position.Join(entry.path, "$patch")},
				"must not stand here: it would remove what the agent needs of "+what,
				"delete single entries with $patch: delete")
		}
	}
}

func (c *checker) protectMetadata(n node) {
	c.whole(n, "the metadata")
	for _, key := range []string{"name", "generateName", "namespace"} {
		if v, ok := n.at(key); ok {
			c.restored(v, "has no effect: the agent chooses it")
		}
	}
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "selfLink", "managedFields"} {
		if v, ok := n.at(key); ok && v.v.Data != nil {
			c.restored(v, "has no effect: the cluster sets it")
		}
	}
	for _, key := range []string{"labels", "annotations"} {
		marks, ok := n.at(key)
		if !ok {
			continue
		}
		c.whole(marks, "the "+key)
		t, _ := marks.v.Data.(position.Mapping)
		for name, v := range t {
			entry := node{v: v, path: position.Join(marks.path, position.SafeName(name))}
			switch {
			case key == "labels" && slices.Contains(ownLabels, name):
				entry.path = position.Join(marks.path, name)
				c.restored(entry, "has no effect: the agent sets it, and finds its Pods by it")
			case strings.HasPrefix(name, "cmwa."):
				c.restored(entry, "has no effect: names that begin with cmwa. are kept for the agent")
			}
		}
	}
}

// ownLabels are the labels of the agent beside those that begin with cmwa.
var ownLabels = []string{"app.kubernetes.io/component", "app.kubernetes.io/name", "app.kubernetes.io/managed-by"}

func (c *checker) protectSpec(n node) {
	c.whole(n, "the spec")
	if v, ok := n.at("restartPolicy"); ok && v.v.Data != "Never" {
		c.restored(v, "has no effect: it is Never, because a job runs once")
	}
	if v, ok := n.at("ephemeralContainers"); ok && v.v.Data != nil && !v.hollow() {
		c.restored(v, "has no effect: it cannot be part of a new Pod; kubectl debug adds one while the Pod runs")
	}
	if v, ok := n.at("activeDeadlineSeconds"); ok {
		c.restored(v, "has no effect: the agent sets it, from the limit of each job")
	}
	for _, key := range []string{"containers", "initContainers", "volumes"} {
		list, ok := n.at(key)
		if !ok {
			continue
		}
		c.whole(list, "the "+key)
		for _, entry := range list.entries() {
			c.protectEntry(entry, key)
		}
	}
}

// protectEntry looks at one container or volume.
func (c *checker) protectEntry(n node, list string) {
	name, ok := n.at("name")
	word, _ := name.v.Data.(string)
	if ok && !isOwn(list, word) && (word == mainContainer || strings.HasPrefix(word, mainContainer+"-")) {
		c.report(position.RuleProtectedField, name.v.At, name.path,
			"is a name that is kept for the agent: pulumi-workflow, and whatever begins with pulumi-workflow-",
			"use another name")
	}
	if list == "volumes" {
		return
	}
	switch {
	case !isOwn(list, word):
	case word == mainContainer:
		c.protectMain(n)
	default:
		c.protectPrepare(n)
		return
	}
	mounts, _ := n.at("volumeMounts")
	for _, mount := range mounts.entries() {
		if v, ok := mount.at("mountPath"); ok && isOwn(list, word) {
			if folder := ownFolder(v.text()); folder != "" {
				c.report(position.RuleProtectedField, v.v.At, v.path,
					"is, or lies below, "+folder+", where the agent puts the runner and its files",
					"mount it elsewhere")
			}
		}
		if v, ok := mount.at("name"); ok {
			if word, _ := v.v.Data.(string); word == mainContainer || strings.HasPrefix(word, mainContainer+"-") {
				c.report(position.RuleProtectedField, v.v.At, v.path,
					"is a volume of the agent, which holds the credentials of the job", "use a volume of your own")
			}
		}
	}
}

// ownFolder returns the folder of the agent in which a path of a job's container
// lies; empty if it lies in none.
func ownFolder(where string) string {
	where = path.Clean("/" + where)
	for _, folder := range []string{RunnerDirectory, handoffDirectory, imageDirectory} {
		if where == folder || strings.HasPrefix(where, folder+"/") {
			return folder
		}
	}
	return ""
}

// protectMain looks at the container in which the job runs.
func (c *checker) protectMain(n node) {
	t, _ := n.v.Data.(position.Mapping)
	if verb, ok := t["$patch"]; ok {
		c.own(node{v: verb, path: position.Join(n.path, "$patch")},
			"must not stand here: it would remove the container in which the job runs", "write only what is to change")
	}
	if verb, ok := t["$retainKeys"]; ok {
		c.own(node{v: verb, path: position.Join(n.path, "$retainKeys")},
			"must not stand here: it would remove what the agent needs of the container",
			"write null for what is to go")
	}
	for _, key := range []string{"command", "args"} {
		for _, spelt := range []string{key, "$deleteFromPrimitiveList/" + key} {
			if v, ok := n.at(spelt); ok {
				v.path = position.Join(n.path, key)
				c.restored(v, "has no effect: the agent starts the runner with its own")
			}
		}
	}
	for _, key := range []string{"restartPolicy", "restartPolicyRules"} {
		if v, ok := n.at(key); ok && v.v.Data != nil {
			c.restored(v, "has no effect: a job runs once")
		}
	}
	for key, own := range map[string]string{
		"terminationMessagePath": "", "terminationMessagePolicy": "FallbackToLogsOnError",
	} {
		if v, ok := n.at(key); ok && v.v.Data != own {
			c.restored(v, "has no effect: the agent reads the message of the runner")
		}
	}
	if v, ok := n.at("image"); ok && (v.v.Data == nil || v.v.Data == "") {
		c.own(v, "must not be removed: the job runs in it", "write an image, or nothing")
	}
	for _, key := range []string{"env", "volumeMounts"} {
		if v, ok := n.at(key); ok {
			c.whole(v, "the container")
		}
	}
}

// protectPrepare looks at the agent's init container.
func (c *checker) protectPrepare(n node) {
	t, _ := n.v.Data.(position.Mapping)
	for key, v := range t {
		field := node{v: v, path: position.Join(n.path, position.SafeName(key))}
		switch {
		case slices.Contains(prepareFields, key):
		case strings.HasPrefix(key, "$"):
			c.own(field, "must not stand here: it would remove what the agent needs of the container",
				"write only what is to change")
		case c.types.fields("#Container")[key] != nil:
			c.restored(field, "has no effect: of this container, a template changes "+
				strings.Join(prepareFields[1:], ", ")+" only")
		}
	}
}
