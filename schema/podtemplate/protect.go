package podtemplate

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// mainContainer is the name of the container of the job. A template can change this container,
// but not add it. Names that begin with this name and a dash are reserved for the agent.
const mainContainer = "pulumi-workflow"

// prepareContainer is the name of the agent's init container. A template may change only its
// [prepareFields].
const prepareContainer = mainContainer + "-prepare"

// prepareFields are the fields of the agent's init container that a template may set,
// because quotas and policies of a namespace may require them for every container.
var prepareFields = []string{"name", "resources", "securityContext", "imagePullPolicy"}

// isAgentContainer reports whether a container in a list belongs to the agent. A template
// changes such a container, and adds all others.
func isAgentContainer(list, name string) bool {
	return list == "containers" && name == mainContainer || list == "initContainers" && name == prepareContainer
}

// isReserved reports whether a name of a container or a volume belongs to the agent.
func isReserved(name string) bool {
	return name == mainContainer || strings.HasPrefix(name, mainContainer+"-")
}

// RunnerDirectory is the directory of the runner and its files in a job's container. It is not
// /mnt/pulumi/workflow, where init containers of a template may leave files for the job.
const RunnerDirectory = "/mnt/pulumi/runner"

// handoffDirectory is the directory of the runner's input in a job's container.
const handoffDirectory = "/mnt/pulumi/handoff"

// protect reports fields that belong to the agent, even if their values are also invalid.
func (c *checker) protect(n node) {
	c.protectWhole(n, "the Pod")
	if v, ok := n.field("apiVersion"); ok && v.v.Data != "v1" {
		c.report(position.RulePodTemplate, v.v.At, v.path, "must be v1", "")
	}
	if v, ok := n.field("kind"); ok && v.v.Data != "Pod" {
		hint := ""
		if kind, ok := v.v.Data.(string); ok && strings.HasPrefix(kind, "PodTemplate") {
			hint = "write the content of template: as a Pod"
		}
		c.report(position.RulePodTemplate, v.v.At, v.path, "must be Pod", hint)
	}
	if v, ok := n.field("status"); ok && v.v.Data != nil && !v.isEmptyMapping() {
		c.restored(v, "has no effect: the cluster reports it")
	}
	if metadata, ok := n.field("metadata"); ok {
		c.protectMetadata(metadata)
	}
	if spec, ok := n.field("spec"); ok {
		c.protectSpec(spec)
	}
}

// protected reports a field that belongs to the agent.
func (c *checker) protected(n node, message, hint string) {
	c.report(position.RuleProtectedField, cmp.Or(n.v.Key, n.v.At), n.path, message, hint)
}

// restored warns of a field that has no effect, because the agent or the cluster sets it
// after the merge.
func (c *checker) restored(n node, message string) {
	at := cmp.Or(n.v.Key, n.v.At)
	c.problems = append(c.problems, position.NewWarning(position.RuleProtectedField, at, n.path, message, "remove it"))
}

// protectWhole rejects the removal or replacement of a mapping or list that contains
// parts of the agent. what names the mapping or the list in messages.
func (c *checker) protectWhole(n node, what string) {
	if n.v.Data == nil && n.v.Key.Line > 0 {
		c.protected(n, "must not be removed: the agent needs parts of it", "write only the fields to change")
		return
	}
	for _, key := range []string{"$patch", "$retainKeys"} {
		if v, ok := n.field(key); ok && v.v.Data != "merge" {
			c.protected(v, "is not allowed here: it would remove parts of "+what+" that the agent needs",
				"write only the fields to change, and null for fields to remove")
		}
	}
	for _, entry := range n.entries() {
		if v := entry.get("$patch"); v.text() == "replace" && entry.get("name").text() != mainContainer {
			c.protected(v, "is not allowed here: it would remove parts of "+what+" that the agent needs",
				"delete single entries with $patch: delete")
		}
	}
}

func (c *checker) protectMetadata(n node) {
	c.protectWhole(n, "the metadata")
	// Fields that the agent or the cluster sets.
	for _, key := range []string{"name", "generateName", "namespace"} {
		if v, ok := n.field(key); ok {
			c.restored(v, "has no effect: the agent chooses it")
		}
	}
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "selfLink", "managedFields"} {
		if v, ok := n.field(key); ok && v.v.Data != nil {
			c.restored(v, "has no effect: the cluster sets it")
		}
	}

	for _, key := range []string{"labels", "annotations"} {
		values, ok := n.field(key)
		if !ok {
			continue
		}
		c.protectWhole(values, "the "+key)
		for name := range values.mapping() {
			entry := values.userKey(name)
			switch {
			case key == "labels" && slices.Contains(agentLabels, name):
				entry.path = position.Join(values.path, name)
				c.restored(entry, "has no effect: the agent sets it, and finds its Pods by it")
			case strings.HasPrefix(name, "cmwa."):
				c.restored(entry, "has no effect: names that begin with cmwa. are reserved for the agent")
			}
		}
	}
}

// agentLabels are the labels of the agent whose names do not begin with "cmwa.".
var agentLabels = []string{"app.kubernetes.io/component", "app.kubernetes.io/name", "app.kubernetes.io/managed-by"}

func (c *checker) protectSpec(n node) {
	c.protectWhole(n, "the spec")
	if v, ok := n.field("restartPolicy"); ok && v.v.Data != "Never" {
		c.restored(v, "has no effect: it is Never, because a job runs once")
	}
	if v, ok := n.field("ephemeralContainers"); ok && v.v.Data != nil && !v.isEmptyCollection() {
		c.restored(v, "has no effect: a new Pod cannot have ephemeral containers; "+
			"kubectl debug adds one to a running Pod")
	}
	if v, ok := n.field("activeDeadlineSeconds"); ok {
		c.restored(v, "has no effect: the agent sets it, from the limit of each job")
	}
	for _, key := range []string{"containers", "initContainers", "volumes"} {
		list, ok := n.field(key)
		if !ok {
			continue
		}
		c.protectWhole(list, "the "+key)
		for _, entry := range list.entries() {
			c.protectEntry(entry, key)
		}
	}
}

// protectEntry checks one container or volume.
func (c *checker) protectEntry(n node, list string) {
	name, ok := n.field("name")
	text := name.text()
	if ok && !isAgentContainer(list, text) && isReserved(text) {
		c.report(position.RuleProtectedField, name.v.At, name.path,
			"is a reserved name: the agent uses pulumi-workflow and all names that begin with pulumi-workflow-",
			"use another name")
	}
	if list == "volumes" {
		return
	}

	switch {
	case !isAgentContainer(list, text):
	case text == mainContainer:
		c.protectMain(n)
	default:
		c.protectPrepare(n)
		return
	}

	// Mounts: the job's container must not mount a volume in a directory of the agent, and no
	// container of the template may mount a volume of the agent, or use one as a device.
	mounts, _ := n.field("volumeMounts")
	for _, mount := range mounts.entries() {
		if v, ok := mount.field("mountPath"); ok && isAgentContainer(list, text) {
			if directory := agentDirectory(v.text()); directory != "" {
				c.report(position.RuleProtectedField, v.v.At, v.path,
					"must not be in "+directory+", where the agent puts the runner and its files",
					"mount it elsewhere")
			}
		}
		c.protectVolume(mount)
	}
	devices, _ := n.field("volumeDevices")
	for _, device := range devices.entries() {
		c.protectVolume(device)
	}
}

// protectVolume reports a mount or a device that has the name of a volume of the agent.
func (c *checker) protectVolume(mount node) {
	if v := mount.get("name"); isReserved(v.text()) {
		c.report(position.RuleProtectedField, v.v.At, v.path,
			"is a volume of the agent, which holds the credentials of the job", "use a volume of your own")
	}
}

// agentDirectory returns the directory of the agent that contains a path of a job's container,
// or an empty string if no directory does.
func agentDirectory(target string) string {
	target = path.Clean("/" + target)
	for _, directory := range []string{RunnerDirectory, handoffDirectory} {
		if target == directory || strings.HasPrefix(target, directory+"/") {
			return directory
		}
	}
	return ""
}

// protectMain checks the container of the job.
func (c *checker) protectMain(n node) {
	if v, ok := n.field("$patch"); ok {
		c.protected(v, "is not allowed here: it would remove the container of the job",
			"write only the fields to change")
	}
	if v, ok := n.field("$retainKeys"); ok {
		c.protected(v, "is not allowed here: it would remove parts of the container that the agent needs",
			"write null for fields to remove")
	}

	// Fields that the agent sets again after the merge.
	for _, key := range []string{"command", "args"} {
		for _, spelling := range []string{key, "$deleteFromPrimitiveList/" + key} {
			if v, ok := n.field(spelling); ok {
				v.path = position.Join(n.path, key)
				c.restored(v, "has no effect: the agent starts the runner with its own")
			}
		}
	}
	for _, key := range []string{"restartPolicy", "restartPolicyRules"} {
		if v, ok := n.field(key); ok && v.v.Data != nil {
			c.restored(v, "has no effect: a job runs once")
		}
	}
	for key, own := range map[string]string{
		"terminationMessagePath": "", "terminationMessagePolicy": "FallbackToLogsOnError",
	} {
		if v, ok := n.field(key); ok && v.v.Data != own {
			c.restored(v, "has no effect: the agent reads the message of the runner")
		}
	}

	// Fields that must not be removed.
	if v, ok := n.field("image"); ok && (v.v.Data == nil || v.v.Data == "") {
		c.protected(v, "must not be removed: the job runs in it", "write an image, or nothing")
	}
	for _, key := range []string{"env", "volumeMounts"} {
		if v, ok := n.field(key); ok {
			c.protectWhole(v, "the container")
		}
	}
}

// protectPrepare checks the agent's init container.
func (c *checker) protectPrepare(n node) {
	for key := range n.mapping() {
		field := n.userKey(key)
		switch {
		case slices.Contains(prepareFields, key):
		case strings.HasPrefix(key, "$"):
			c.protected(field, "is not allowed here: it would remove parts of the container that the agent needs",
				"write only the fields to change")
		case c.types.fields("#Container")[key] != nil:
			c.restored(field, "has no effect: in this container a template can change "+
				strings.Join(prepareFields[1:], ", ")+" only")
		}
	}
}
