package schema

import (
	"path"
	"slices"
	"strings"
)

// mainContainer is the container that a template changes rather than adds. Names
// that go on after it with a dash are the agent's too, and so is the path at
// which the runner and its files are mounted.
const (
	mainContainer = "pulumi-workflow"
	ownMount      = "/mnt/pulumi/workflow"
)

// text returns a text of a table, or the empty one.
func text(t table, key string) string {
	word, _ := t[key].data.(string)
	return word
}

// directive checks a key of a mapping that steers the merge.
func (c *podCheck) directive(t table, key string, fields map[string]*podField, s podStep) {
	v := t[key]
	at := join(s.path, shown(key))
	name, target, _ := strings.Cut(key, "/")
	if target != "" {
		at = join(s.path, name)
	}
	f := fields[target]
	switch {
	case key == "$patch":
		c.verb(v, at)
	case key == "$retainKeys":
		c.retained(t, v, at)
	case name == "$setElementOrder" && f != nil && f.kind == podList && f.merges:
		c.ordered(t, v, target, f.mergeKey, at)
	case name == "$deleteFromPrimitiveList" && f != nil && f.kind == podList && f.entry.kind == podLeaf:
		if _, ok := v.data.([]value); !ok {
			c.report(RulePodTemplate, v.at, at, "must be a list", "")
		}
	case name == "$setElementOrder":
		c.report(RulePodTemplate, v.key, at, "must name a list of this mapping whose entries merge", "write such as $setElementOrder/containers")
	case name == "$deleteFromPrimitiveList":
		c.report(RulePodTemplate, v.key, at, "must name a list of plain values of this mapping", "write such as $deleteFromPrimitiveList/finalizers")
	default:
		c.unknown(key, v, "", s)
	}
}

// verb checks what $patch says.
func (c *podCheck) verb(v value, at string) {
	switch v.data {
	case "replace", "delete":
	case "merge":
		c.report(RulePodTemplate, v.at, at, "must be replace or delete", "remove the line: merging is what happens without it")
	default:
		c.report(RulePodTemplate, v.at, at, "must be replace or delete", "")
	}
}

// retained checks that $retainKeys keeps what the mapping itself sets.
func (c *podCheck) retained(t table, v value, at string) {
	list, ok := v.data.([]value)
	if !ok {
		c.report(RulePodTemplate, v.at, at, "must be a list", "write the keys that are to stay")
		return
	}
	var kept []string
	for _, entry := range list {
		name, ok := entry.data.(string)
		if !ok {
			c.report(RulePodTemplate, entry.at, at, "must be a list of keys", "")
		}
		kept = append(kept, name)
	}
	for key, inner := range t {
		if inner.data != nil && !strings.HasPrefix(key, "$") && !slices.Contains(kept, key) {
			c.report(RulePodTemplate, v.at, at, "must name every key that is set beside it", "add "+shown(key))
		}
	}
}

// ordered checks that $setElementOrder names the entries of the list beside it in
// their order.
func (c *podCheck) ordered(t table, v value, target, mergeKey, at string) {
	order, ok := v.data.([]value)
	if !ok {
		c.report(RulePodTemplate, v.at, at, "must be a list", "")
		return
	}
	label := func(entry value) any {
		if mergeKey == "" {
			return entry.data
		}
		inner, _ := entry.data.(table)
		return inner[mergeKey].data
	}
	var names []any
	for _, entry := range order {
		name := label(entry)
		switch name.(type) {
		case nil, table, []value:
			c.report(RulePodTemplate, entry.at, at, "must hold entries such as - name: app, with the key of the list", "")
			return
		}
		names = append(names, name)
	}
	list, _ := t[target].data.([]value)
	for _, entry := range list {
		inner, _ := entry.data.(table)
		if _, special := inner["$patch"]; special || len(names) == 0 && len(order) == 0 {
			continue
		}
		switch name := label(entry).(type) {
		case nil, table, []value:
		default:
			found := slices.Index(names, name)
			if found < 0 {
				c.report(RulePodTemplate, v.at, at, "must name the entries of "+target+", in their order", "")
				return
			}
			names = names[found+1:]
		}
	}
}

// entryDirective checks an entry of a list that steers the merge, and reports
// whether it is one.
func (c *podCheck) entryDirective(t table, v value, f *podField, s podStep) bool {
	verb, ok := t["$patch"]
	if !ok {
		return false
	}
	c.verb(verb, join(s.path, "$patch"))
	switch {
	case verb.data == "delete" && t[f.mergeKey].data == nil:
		c.report(RulePodTemplate, v.at, s.path, "needs "+f.mergeKey, "it tells which entry is to be deleted")
	case verb.data == "replace" && len(t) > 1 && text(t, "name") != mainContainer:
		c.warn(v.at, s.path, "what stands beside $patch: replace in one entry is ignored", "write it as an entry of its own")
	}
	return true
}

// protect refuses what belongs to the agent, whatever else is wrong with it.
func (c *podCheck) protect(n podNode) {
	c.whole(n, "the Pod")
	if v, ok := n.at("apiVersion"); ok && v.v.data != "v1" {
		c.report(RulePodTemplate, v.v.at, v.path, "must be v1", "")
	}
	if v, ok := n.at("kind"); ok && v.v.data != "Pod" {
		hint := ""
		if word, ok := v.v.data.(string); ok && strings.HasPrefix(word, "PodTemplate") {
			hint = "write what stands under template: as a Pod"
		}
		c.report(RulePodTemplate, v.v.at, v.path, "must be Pod", hint)
	}
	if v, ok := n.at("status"); ok && v.v.data != nil && !v.empty() {
		c.own(v, "is what the cluster reports", "remove it")
	}
	if metadata, ok := n.at("metadata"); ok {
		c.protectMetadata(metadata)
	}
	if spec, ok := n.at("spec"); ok {
		c.protectSpec(spec)
	}
}

func (c *podCheck) own(n podNode, message, hint string) {
	at := n.v.key
	if at.Line == 0 {
		at = n.v.at
	}
	c.report(RuleProtectedField, at, n.path, message, hint)
}

// whole refuses to take away or replace a mapping or a list of which a part is
// the agent's.
func (c *podCheck) whole(n podNode, what string) {
	if n.v.data == nil && n.v.key.Line > 0 {
		c.own(n, "must not be removed: it holds what the agent needs", "write only what is to change")
		return
	}
	t, _ := n.v.data.(table)
	for _, key := range []string{"$patch", "$retainKeys"} {
		if v, ok := t[key]; ok && v.data != "merge" {
			c.own(podNode{v: v, path: join(n.path, key)}, "must not stand here: it would remove what the agent needs of "+what, "write only what is to change, or null for what is to go")
		}
	}
	list, _ := n.v.data.([]value)
	for i := range list {
		entry := n.entry(i)
		if inner, ok := list[i].data.(table); ok && text(inner, "$patch") == "replace" && text(inner, "name") != mainContainer {
			c.own(podNode{v: inner["$patch"], path: join(entry.path, "$patch")}, "must not stand here: it would remove what the agent needs of "+what, "delete single entries with $patch: delete")
		}
	}
}

func (c *podCheck) protectMetadata(n podNode) {
	c.whole(n, "the metadata")
	for _, key := range []string{"name", "generateName", "namespace"} {
		if v, ok := n.at(key); ok {
			c.own(v, "is chosen by the agent", "remove it")
		}
	}
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"} {
		if v, ok := n.at(key); ok && v.v.data != nil {
			c.own(v, "is set by the cluster", "remove it")
		}
	}
	for _, key := range []string{"labels", "annotations"} {
		marks, ok := n.at(key)
		if !ok {
			continue
		}
		c.whole(marks, "the "+key)
		t, _ := marks.v.data.(table)
		for name, v := range t {
			if name == "app.kubernetes.io/component" || name == "app.kubernetes.io/name" {
				if key == "labels" {
					c.own(podNode{v: v, path: join(marks.path, name)}, "is set by the agent, which finds its Pods by it", "use another label")
				}
			} else if strings.HasPrefix(name, "cmwa") {
				c.own(podNode{v: v, path: join(marks.path, shown(name))}, "begins with cmwa, which is kept for the agent", "use another name")
			}
		}
	}
}

func (c *podCheck) protectSpec(n podNode) {
	c.whole(n, "the spec")
	if v, ok := n.at("restartPolicy"); ok && v.v.data != "Never" {
		c.own(v, "must be Never, because a job runs once", "remove it")
	}
	if v, ok := n.at("ephemeralContainers"); ok && v.v.data != nil && !v.hollow() {
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
func (c *podCheck) protectEntry(n podNode, list string) {
	name, ok := n.at("name")
	word, _ := name.v.data.(string)
	isMain := word == mainContainer && list == "containers"
	if ok && !isMain && (word == mainContainer || strings.HasPrefix(word, mainContainer+"-")) {
		c.report(RuleProtectedField, name.v.at, name.path, "is a name that is kept for the agent: pulumi-workflow, and whatever begins with pulumi-workflow-", "use another name")
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
			if where, ok := v.v.data.(string); ok && inOwnMount(where) {
				c.report(RuleProtectedField, v.v.at, v.path, "is, or lies below, "+ownMount+", where the agent puts the runner and its files", "mount it elsewhere")
			}
		}
		if v, ok := mount.at("name"); ok {
			if word, _ := v.v.data.(string); word == mainContainer || strings.HasPrefix(word, mainContainer+"-") {
				c.report(RuleProtectedField, v.v.at, v.path, "is a volume of the agent, which holds the credentials of the job", "use a volume of your own")
			}
		}
	}
}

func inOwnMount(where string) bool {
	where = path.Clean("/" + where)
	return where == ownMount || strings.HasPrefix(where, ownMount+"/")
}

// protectMain looks at the container in which the job runs.
func (c *podCheck) protectMain(n podNode) {
	t, _ := n.v.data.(table)
	if verb, ok := t["$patch"]; ok {
		c.own(podNode{v: verb, path: join(n.path, "$patch")}, "must not stand here: it would remove the container in which the job runs", "write only what is to change")
	}
	if verb, ok := t["$retainKeys"]; ok {
		c.own(podNode{v: verb, path: join(n.path, "$retainKeys")}, "must not stand here: it would remove what the agent needs of the container", "write null for what is to go")
	}
	for _, key := range []string{"command", "args"} {
		for _, spelt := range []string{key, "$deleteFromPrimitiveList/" + key} {
			if v, ok := n.at(spelt); ok {
				v.path = join(n.path, key)
				c.own(v, "is set by the agent, which starts the runner with it", "remove it; a container of another name may have its own")
			}
		}
	}
	if v, ok := n.at("restartPolicy"); ok && v.v.data != nil {
		c.own(v, "must not be set here, because a job runs once", "remove it")
	}
	if v, ok := n.at("image"); ok && (v.v.data == nil || v.v.data == "") {
		c.own(v, "must not be removed: the job runs in it", "write an image, or nothing")
	}
	for _, key := range []string{"env", "volumeMounts"} {
		if v, ok := n.at(key); ok {
			c.whole(v, "the container")
		}
	}
}
