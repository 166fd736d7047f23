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

// RunnerDirectory is where a job's container has the runner and its files (Pulumi
// documentation, "Customer-managed runners", example of an init container).
const RunnerDirectory = "/mnt/pulumi/workflow"

// text returns the text of a key, empty if there is none.
func text(t position.Mapping, key string) string {
	word, _ := t[key].Data.(string)
	return word
}

// directive checks a key of a mapping that steers the merge.
func (c *checker) directive(t position.Mapping, key string, fields map[string]*valueType, s step) {
	v := t[key]
	at := position.Join(s.path, position.SafeName(key))
	name, target, _ := strings.Cut(key, "/")
	if target != "" {
		at = position.Join(s.path, name)
	}
	f := fields[target]
	switch {
	case key == "$patch":
		c.verb(v, at)
	case key == "$retainKeys":
		c.retained(t, v, at)
	case name == "$setElementOrder" && f != nil && f.kind == kindList && f.merges:
		c.ordered(t, v, target, f.mergeKey, at)
	case name == "$deleteFromPrimitiveList" && f != nil && f.kind == kindList && f.entry.kind == kindLeaf:
		if _, ok := v.Data.([]position.Value); !ok {
			c.report(position.RulePodTemplate, v.At, at, "must be a list", "")
		}
	case name == "$setElementOrder":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of this mapping whose entries merge",
			"write such as $setElementOrder/containers")
	case name == "$deleteFromPrimitiveList":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of plain values of this mapping",
			"write such as $deleteFromPrimitiveList/finalizers")
	default:
		c.unknown(key, v, "", s)
	}
}

// verb checks what $patch says.
func (c *checker) verb(v position.Value, at string) {
	switch v.Data {
	case "replace", "delete":
	case "merge":
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete",
			"remove the line: merging is what happens without it")
	default:
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete", "")
	}
}

// retained checks that $retainKeys keeps what the mapping itself sets.
func (c *checker) retained(t position.Mapping, v position.Value, at string) {
	list, ok := v.Data.([]position.Value)
	if !ok {
		c.report(position.RulePodTemplate, v.At, at, "must be a list", "write the keys that are to stay")
		return
	}
	var kept []string
	for _, entry := range list {
		name, ok := entry.Data.(string)
		if !ok {
			c.report(position.RulePodTemplate, entry.At, at, "must be a list of keys", "")
		}
		kept = append(kept, name)
	}
	for key, inner := range t {
		if inner.Data != nil && !strings.HasPrefix(key, "$") && !slices.Contains(kept, key) {
			c.report(position.RulePodTemplate, v.At, at, "must name every key that is set beside it",
				"add "+position.SafeName(key))
		}
	}
}

// ordered checks that $setElementOrder names the entries of the list beside it in
// their order.
func (c *checker) ordered(t position.Mapping, v position.Value, target, mergeKey, at string) {
	order, ok := v.Data.([]position.Value)
	if !ok {
		c.report(position.RulePodTemplate, v.At, at, "must be a list", "")
		return
	}
	label := func(entry position.Value) any {
		if mergeKey == "" {
			return entry.Data
		}
		inner, _ := entry.Data.(position.Mapping)
		return inner[mergeKey].Data
	}
	var names []any
	for _, entry := range order {
		name := label(entry)
		switch name.(type) {
		case nil, position.Mapping, []position.Value:
			c.report(position.RulePodTemplate, entry.At, at,
				"must hold entries such as - name: app, with the key of the list", "")
			return
		}
		names = append(names, name)
	}
	list, _ := t[target].Data.([]position.Value)
	for _, entry := range list {
		inner, _ := entry.Data.(position.Mapping)
		if _, special := inner["$patch"]; special || len(names) == 0 && len(order) == 0 {
			continue
		}
		switch name := label(entry).(type) {
		case nil, position.Mapping, []position.Value:
		default:
			found := slices.Index(names, name)
			if found < 0 {
				c.report(position.RulePodTemplate, v.At, at, "must name the entries of "+target+", in their order", "")
				return
			}
			names = names[found+1:]
		}
	}
}

// entryDirective checks an entry of a list that steers the merge, and reports
// whether it is one.
func (c *checker) entryDirective(t position.Mapping, v position.Value, f *valueType, s step) bool {
	verb, ok := t["$patch"]
	if !ok {
		return false
	}
	c.verb(verb, position.Join(s.path, "$patch"))
	switch {
	case verb.Data == "delete" && t[f.mergeKey].Data == nil:
		c.report(position.RulePodTemplate, v.At, s.path, "needs "+f.mergeKey, "it tells which entry is to be deleted")
	case verb.Data == "replace" && len(t) > 1 && text(t, "name") != mainContainer:
		c.warn(v.At, s.path, "what stands beside $patch: replace in one entry is ignored",
			"write it as an entry of its own")
	}
	return true
}

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
		c.own(v, "is what the cluster reports", "remove it")
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
			c.own(v, "is chosen by the agent", "remove it")
		}
	}
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "selfLink", "managedFields"} {
		if v, ok := n.at(key); ok && v.v.Data != nil {
			c.own(v, "is set by the cluster", "remove it")
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
			if name == "app.kubernetes.io/component" || name == "app.kubernetes.io/name" {
				if key == "labels" {
					c.own(node{v: v, path: position.Join(marks.path, name)},
						"is set by the agent, which finds its Pods by it", "use another label")
				}
			} else if strings.HasPrefix(name, "cmwa") {
				c.own(node{v: v, path: position.Join(marks.path, position.SafeName(name))},
					"begins with cmwa, which is kept for the agent", "use another name")
			}
		}
	}
}

func (c *checker) protectSpec(n node) {
	c.whole(n, "the spec")
	if v, ok := n.at("restartPolicy"); ok && v.v.Data != "Never" {
		c.own(v, "must be Never, because a job runs once", "remove it")
	}
	if v, ok := n.at("ephemeralContainers"); ok && v.v.Data != nil && !v.hollow() {
		c.own(v, "cannot be part of a new Pod", "add one with kubectl debug while the Pod runs")
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
	isMain := word == mainContainer && list == "containers"
	if ok && !isMain && (word == mainContainer || strings.HasPrefix(word, mainContainer+"-")) {
		c.report(position.RuleProtectedField, name.v.At, name.path,
			"is a name that is kept for the agent: pulumi-workflow, and whatever begins with pulumi-workflow-",
			"use another name")
	}
	if list == "volumes" {
		return
	}
	if isMain {
		c.protectMain(n)
	}
	mounts, _ := n.at("volumeMounts")
	for _, mount := range mounts.entries() {
		if v, ok := mount.at("mountPath"); ok {
			if where, ok := v.v.Data.(string); ok && inOwnMount(where) {
				c.report(position.RuleProtectedField, v.v.At, v.path,
					"is, or lies below, "+RunnerDirectory+", where the agent puts the runner and its files",
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

func inOwnMount(where string) bool {
	where = path.Clean("/" + where)
	return where == RunnerDirectory || strings.HasPrefix(where, RunnerDirectory+"/")
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
				c.own(v, "is set by the agent, which starts the runner with it",
					"remove it; a container of another name may have its own")
			}
		}
	}
	if v, ok := n.at("restartPolicy"); ok && v.v.Data != nil {
		c.own(v, "must not be set here, because a job runs once", "remove it")
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
