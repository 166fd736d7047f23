package schema

import (
	"fmt"
	"math/big"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// podNode is a value of the template and its path. Questions about what is not
// there, or of another kind, are answered with nothing: CUE reports kinds.
type podNode struct {
	v    value
	path string
}

// at goes on to a word of the schema.
func (n podNode) at(key string) (podNode, bool) {
	t, _ := n.v.data.(table)
	v, ok := t[key]
	return podNode{v: v, path: join(n.path, key)}, ok
}

// into goes on to a key that the template chose.
func (n podNode) into(key string) podNode {
	inner, _ := n.at(key)
	inner.path = join(n.path, shown(key))
	return inner
}

// get follows keys as far as there are any.
func (n podNode) get(keys ...string) podNode {
	for _, key := range keys {
		n, _ = n.at(key)
	}
	return n
}

func (n podNode) has(key string) bool {
	_, ok := n.at(key)
	return ok
}

// blank reports what is no mapping, or one without content.
func (n podNode) blank() bool {
	t, _ := n.v.data.(table)
	return len(t) == 0
}

// empty reports a mapping without content.
func (n podNode) empty() bool {
	_, ok := n.v.data.(table)
	return ok && n.blank()
}

// hollow reports an empty mapping or list.
func (n podNode) hollow() bool {
	t, isTable := n.v.data.(table)
	list, isList := n.v.data.([]value)
	return isTable && len(t) == 0 || isList && len(list) == 0
}

func (n podNode) entry(i int) podNode {
	list, _ := n.v.data.([]value)
	return podNode{v: list[i], path: join(n.path, strconv.Itoa(i))}
}

func (n podNode) entries() []podNode {
	list, _ := n.v.data.([]value)
	nodes := make([]podNode, len(list))
	for i := range list {
		nodes[i] = n.entry(i)
	}
	return nodes
}

func (n podNode) text() string {
	word, _ := n.v.data.(string)
	return word
}

func (n podNode) number() (int64, bool) {
	number, ok := n.v.data.(int)
	return int64(number), ok
}

func (n podNode) yes() bool { return n.v.data == true }

// keys returns the keys that are there of some.
func (n podNode) keys(some ...string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(key string) bool { return !n.has(key) })
}

func (c *podCheck) wrong(n podNode, message, hint string) {
	c.report(RulePodTemplate, n.v.at, n.path, message, hint)
}

// exactlyOne reports a mapping that must hold one of some keys, and no second.
func (c *podCheck) exactlyOne(n podNode, what string, some ...string) {
	switch found := n.keys(some...); len(found) {
	case 1:
	case 0:
		c.wrong(n, "needs "+what, "write one of "+strings.Join(some, ", "))
	default:
		c.wrong(n, "must have one "+strings.TrimPrefix(strings.TrimPrefix(what, "a "), "an ")+", and has "+strings.Join(found, ", "), "keep one of them")
	}
}

// unique reports entries that repeat the value of a key.
func (c *podCheck) unique(list []podNode, key string, seen map[string]bool) {
	for _, entry := range list {
		v := entry.get(key)
		word := v.text()
		if word == "" {
			continue
		}
		if seen[word] {
			c.wrong(v, "is used twice", "use each once")
		}
		seen[word] = true
	}
}

// rules checks what no value alone can tell.
func (c *podCheck) rules(n podNode) {
	c.metadata(n.get("metadata"))
	spec := n.get("spec")
	pod := podRules{podCheck: c, spec: spec, volumes: map[string]podNode{}, claims: map[string]bool{}, hostPorts: map[string]bool{}}
	pod.volumeRules()
	pod.claimRules()
	names := map[string]bool{}
	for _, kind := range []string{"containers", "initContainers"} {
		list := spec.get(kind).entries()
		c.unique(list, "name", names)
		for _, container := range list {
			pod.container(container, kind == "initContainers")
		}
	}
	c.security(spec.get("securityContext"))
	pod.host()
	pod.dns()
	pod.scheduling()
	pod.resources(spec.get("resources"), true)
	if spec.has("overhead") {
		pod.amounts(spec.get("overhead"), false)
	}
}

// podRules is what rules of one part need to know of the others.
type podRules struct {
	*podCheck
	spec      podNode
	volumes   map[string]podNode
	claims    map[string]bool
	hostPorts map[string]bool
}

func (c *podCheck) metadata(n podNode) {
	for _, v := range n.get("finalizers").entries() {
		if word := v.text(); word != "" && !strings.Contains(word, "/") && !slices.Contains([]string{"kubernetes", "orphan", "foregroundDeletion"}, word) {
			c.wrong(v, "must be a name such as example.com/name", "")
		}
	}
	if v := n.get("annotations").into("controller.kubernetes.io/pod-deletion-cost"); v.v.data != nil {
		if _, err := strconv.ParseInt(v.text(), 10, 32); err != nil {
			c.wrong(v, "must be a whole number in quotes", "")
		}
	}
	t, _ := n.get("annotations").v.data.(table)
	size := 0
	for key, v := range t {
		word, _ := v.data.(string)
		size += len(key) + len(word)
	}
	if size > 256<<10 {
		c.wrong(n.get("annotations"), "must not hold more than 262144 bytes in all", "put large content into a ConfigMap")
	}
}

// volumeSources are the kinds of volumes.
var volumeSources = []string{
	"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "fc", "flexVolume", "flocker",
	"gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected",
	"quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
}

func (r podRules) volumeRules() {
	list := r.spec.get("volumes").entries()
	r.unique(list, "name", map[string]bool{})
	for _, volume := range list {
		if volume.blank() {
			continue
		}
		r.volumes[volume.get("name").text()] = volume
		switch found := volume.keys(volumeSources...); len(found) {
		case 1:
		case 0:
			r.warn(volume.v.at, volume.path, "has no source, and becomes an empty folder", "write emptyDir: {} if that is meant")
		default:
			r.wrong(volume, "must have one source, and has "+strings.Join(found, ", "), "keep one of them")
		}
		r.notNegative(volume.get("emptyDir", "sizeLimit"))
		for _, item := range volume.get("downwardAPI", "items").entries() {
			r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
			r.reference(item, true)
		}
		r.projected(volume.get("projected"))
		r.rareVolume(volume)
	}
}

func (r podRules) projected(n podNode) {
	paths := map[string]bool{}
	once := func(v podNode) {
		if word := v.text(); word != "" {
			if paths[word] {
				r.wrong(v, "is used twice in this volume", "give each file a path of its own")
			}
			paths[word] = true
		}
	}
	for _, source := range n.get("sources").entries() {
		if found := source.keys("clusterTrustBundle", "configMap", "downwardAPI", "podCertificate", "secret", "serviceAccountToken"); len(found) > 1 {
			r.wrong(source, "must have one kind of content, and has "+strings.Join(found, ", "), "put a dash before each")
		}
		for _, kind := range []string{"secret", "configMap", "downwardAPI"} {
			for _, item := range source.get(kind, "items").entries() {
				once(item.get("path"))
				if kind == "downwardAPI" {
					r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
					r.reference(item, true)
				}
			}
		}
		if certificate, ok := source.at("podCertificate"); ok {
			files := []string{"certificateChainPath", "credentialBundlePath", "keyPath"}
			if !slices.ContainsFunc(files, func(key string) bool { return certificate.get(key).text() != "" }) {
				r.wrong(certificate, "needs a path", "write one of "+strings.Join(files, ", "))
			}
			for _, key := range files {
				once(certificate.get(key))
			}
		}
		if bundle, ok := source.at("clusterTrustBundle"); ok {
			r.exactlyOne(bundle, "a name", "name", "signerName")
			once(bundle.get("path"))
		}
	}
}

func (r podRules) rareVolume(volume podNode) {
	if fc, ok := volume.at("fc"); ok {
		if (len(fc.get("targetWWNs").entries()) == 0) == (len(fc.get("wwids").entries()) == 0) {
			r.wrong(fc, "must have one of targetWWNs and wwids", "")
		}
		if fc.has("targetWWNs") && !fc.has("lun") {
			r.wrong(fc, "needs lun beside targetWWNs", "")
		}
	}
	if flocker, ok := volume.at("flocker"); ok {
		if (flocker.get("datasetName").text() == "") == (flocker.get("datasetUUID").text() == "") {
			r.wrong(flocker, "must have one of datasetName and datasetUUID", "")
		}
	}
	if iscsi, ok := volume.at("iscsi"); ok && (iscsi.get("chapAuthDiscovery").yes() || iscsi.get("chapAuthSession").yes()) && !iscsi.has("secretRef") {
		r.wrong(iscsi, "needs secretRef for CHAP", "")
	}
	if disk, ok := volume.at("azureDisk"); ok {
		beginning := "https://"
		if disk.get("kind").text() == "Managed" {
			beginning = "/subscriptions/"
		}
		if v := disk.get("diskURI"); v.text() != "" && !strings.HasPrefix(v.text(), beginning) {
			r.wrong(v, "must begin with "+beginning+" for a disk of this kind", "")
		}
	}
	if claim, ok := volume.get("ephemeral").at("volumeClaimTemplate"); ok {
		r.selector(claim.get("spec", "selector"))
		for _, key := range []string{"dataSource", "dataSourceRef"} {
			source := claim.get("spec", key)
			if kind := source.get("kind"); source.get("apiGroup").text() == "" && kind.text() != "" && kind.text() != "PersistentVolumeClaim" {
				r.wrong(kind, "must be PersistentVolumeClaim where there is no apiGroup", "")
			}
		}
		storage := claim.get("spec", "resources", "requests", "storage")
		switch amount, known := quantity(storage.v.data); {
		case storage.v.data == nil:
			r.wrong(claim, "needs spec.resources.requests.storage", "write such as storage: 10Gi")
		case known && amount.Sign() <= 0:
			r.wrong(storage, "must be greater than 0", "")
		}
		if t, _ := claim.get("metadata").v.data.(table); t != nil {
			for key, v := range t {
				if !slices.Contains([]string{"labels", "annotations"}, key) {
					r.report(RulePodTemplate, v.key, join(claim.path, "metadata."+shown(key)), "must not be set here", "only labels and annotations may be")
				}
			}
		}
	}
}

func (r podRules) claimRules() {
	list := r.spec.get("resourceClaims").entries()
	r.unique(list, "name", r.claims)
	for _, claim := range list {
		if !claim.blank() {
			r.exactlyOne(claim, "a source", "resourceClaimName", "resourceClaimTemplateName")
		}
	}
}

func (r podRules) container(n podNode, isInit bool) {
	if n.blank() {
		return
	}
	isMain := !isInit && n.get("name").text() == mainContainer
	if image := n.get("image"); !isMain && image.text() == "" && (image.v.data == nil || image.v.data == "") {
		hint := "only the container " + mainContainer + " has one already"
		if !isInit && Closest(n.get("name").text(), []string{mainContainer}) != "" {
			hint = "did you mean the container " + mainContainer + "?"
		}
		r.wrong(n, "needs an image", hint)
	}
	r.ports(n, isInit)
	for _, env := range n.get("env").entries() {
		r.env(env)
	}
	r.repeatedEnv(n.get("env").entries())
	for _, source := range n.get("envFrom").entries() {
		r.exactlyOne(source, "a source", "configMapRef", "secretRef")
	}
	r.mounts(n)
	isSidecar := !isInit || n.get("restartPolicy").text() == "Always"
	for _, key := range []string{"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"} {
		v, ok := n.at(key)
		switch {
		case !ok:
		case !isSidecar:
			r.report(RulePodTemplate, v.v.key, v.path, "must not be set for an init container that ends", "remove it, or set restartPolicy: Always for a sidecar")
		case key == "lifecycle":
			r.lifecycle(v)
		default:
			r.probe(v, key)
		}
	}
	r.restarts(n)
	r.resources(n.get("resources"), false)
	r.security(n.get("securityContext"))
	if mode := n.get("securityContext", "procMount"); mode.text() == "Unmasked" && r.spec.get("hostUsers").v.data != false {
		r.wrong(mode, "must be Default unless the Pod has hostUsers: false", "")
	}
}

func (r podRules) ports(n podNode, isInit bool) {
	list := n.get("ports").entries()
	r.unique(list, "name", map[string]bool{})
	taken := r.hostPorts
	if isInit {
		taken = map[string]bool{}
	}
	for _, port := range list {
		outside, ok := port.get("hostPort").number()
		if !ok || outside == 0 {
			continue
		}
		protocol := port.get("protocol").text()
		if protocol == "" {
			protocol = "TCP"
		}
		label := fmt.Sprintf("%s/%s/%d", protocol, port.get("hostIP").text(), outside)
		if taken[label] {
			r.wrong(port.get("hostPort"), "is used twice", "use each once")
		}
		taken[label] = true
		if inside, ok := port.get("containerPort").number(); ok && !isInit && r.spec.get("hostNetwork").yes() && inside != outside {
			r.wrong(port.get("hostPort"), "must equal containerPort, because of hostNetwork", "")
		}
	}
}

func (r podRules) env(n podNode) {
	from, ok := n.at("valueFrom")
	if !ok {
		return
	}
	if n.get("value").text() != "" {
		r.wrong(n, "must have value or valueFrom, and has both", "keep one of them")
	}
	r.exactlyOne(from, "a source", "configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")
	r.reference(from, false)
	if file, ok := from.at("fileKeyRef"); ok {
		name := file.get("volumeName")
		volume, known := r.volumes[name.text()]
		if name.text() != "" && !known {
			r.wrong(name, "must name a volume of the template", "")
		} else if known && !volume.has("emptyDir") && len(volume.keys(volumeSources...)) > 0 {
			r.wrong(name, "must name a volume of the kind emptyDir", "")
		}
	}
}

// repeatedEnv warns, because the API server takes it and the last one wins.
func (r podRules) repeatedEnv(list []podNode) {
	seen := map[string]bool{}
	for _, env := range list {
		name := env.get("name")
		if word := name.text(); word != "" {
			if seen[word] {
				r.warn(name.v.at, name.path, "is set twice, and only the last one counts", "keep one of the two")
			}
			seen[word] = true
		}
	}
}

// What a variable and a file of a volume may say about the Pod.
var (
	envFields  = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"}
	subscript  = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)
	qualified  = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`)
	divisors   = regexp.MustCompile(`^1([kMGTPE]|[KMGTPE]i)?$`)
)

// reference checks what fieldRef and resourceFieldRef point at.
func (r podRules) reference(n podNode, isFile bool) {
	if field := n.get("fieldRef", "fieldPath"); field.text() != "" {
		fields := envFields
		if isFile {
			fields = fileFields
		}
		key := subscript.FindStringSubmatch(field.text())
		if !slices.Contains(fields, field.text()) && (key == nil || !qualified.MatchString(key[2])) {
			r.wrong(field, "must be one of "+strings.Join(fields, ", ")+", or such as metadata.labels['app']", "")
		}
	}
	if version := n.get("fieldRef", "apiVersion"); version.text() != "" && version.text() != "v1" {
		r.wrong(version, "must be v1", "")
	}
	resource, ok := n.at("resourceFieldRef")
	if !ok {
		return
	}
	if isFile && resource.get("containerName").text() == "" {
		r.wrong(resource, "needs containerName", "")
	}
	divisor := resource.get("divisor")
	amount, known := quantity(divisor.v.data)
	if !known || amount.Sign() == 0 {
		return
	}
	written := fmt.Sprint(divisor.v.data)
	switch isCPU := strings.HasSuffix(resource.get("resource").text(), ".cpu"); {
	case isCPU && amount.Cmp(big.NewRat(1, 1)) != 0 && amount.Cmp(big.NewRat(1, 1000)) != 0:
		r.wrong(divisor, "must be 1 or 1m for cpu", "")
	case !isCPU && !divisors.MatchString(written) && amount.Cmp(big.NewRat(1, 1)) != 0:
		r.wrong(divisor, "must be 1 with or without a unit, such as 1Mi", "")
	}
}

func (r podRules) mounts(n podNode) {
	paths := map[string]bool{}
	names := map[string]bool{}
	for _, mount := range n.get("volumeMounts").entries() {
		if mount.blank() {
			continue
		}
		where, name := mount.get("mountPath"), mount.get("name")
		word := where.text()
		if word != "" {
			if paths[word] {
				r.wrong(where, "is used twice", "use each once")
			}
			paths[word] = true
			if !path.IsAbs(word) || path.Clean(word) != strings.TrimSuffix(word, "/") && word != "/" || strings.Contains(word, ":") {
				r.warn(where.v.at, where.path, "is not a plain absolute path, and is taken from the root", "write a path such as /data")
			}
		}
		r.volumeNamed(name)
		names[name.text()] = true
		if mount.get("subPath").text() != "" && mount.get("subPathExpr").text() != "" {
			r.wrong(mount, "must have subPath or subPathExpr, and has both", "keep one of them")
		}
		if v := mount.get("mountPropagation"); v.text() == "Bidirectional" && !n.get("securityContext", "privileged").yes() {
			r.wrong(v, "must not be Bidirectional unless the container is privileged", "")
		}
		if v := mount.get("recursiveReadOnly"); v.text() == "Enabled" || v.text() == "IfPossible" {
			if !mount.get("readOnly").yes() {
				r.wrong(v, "needs readOnly: true beside it", "")
			}
			if mode := mount.get("mountPropagation").text(); mode != "" && mode != "None" {
				r.wrong(v, "must not stand beside mountPropagation", "")
			}
		}
	}
	devices := map[string]bool{}
	for _, device := range n.get("volumeDevices").entries() {
		where, name := device.get("devicePath"), device.get("name")
		if word := where.text(); word != "" {
			if paths[word] || devices[word] {
				r.wrong(where, "is used twice", "use each once")
			}
			devices[word] = true
		}
		if names[name.text()] && name.text() != "" {
			r.wrong(name, "is used twice", "use a volume as a folder or as a device")
		}
		names[name.text()] = true
		r.volumeNamed(name)
		if volume, ok := r.volumes[name.text()]; ok && !volume.has("persistentVolumeClaim") && !volume.has("ephemeral") {
			r.wrong(name, "must name a volume of the kind persistentVolumeClaim or ephemeral", "")
		}
	}
}

// volumeNamed reports a name that no volume has. The volumes of the agent are
// told apart by their names and not for a template.
func (r podRules) volumeNamed(name podNode) {
	word := name.text()
	if _, ok := r.volumes[word]; ok || word == "" || word == mainContainer || strings.HasPrefix(word, mainContainer+"-") {
		return
	}
	hint := "add it to spec.volumes"
	var known []string
	for name := range r.volumes {
		known = append(known, name)
	}
	if Closest(word, known) != "" {
		hint = "see how it is spelt in spec.volumes"
	}
	r.wrong(name, "must name a volume of the template", hint)
}

func (r podRules) probe(n podNode, key string) {
	r.exactlyOne(n, "a handler", "exec", "grpc", "httpGet", "tcpSocket")

	if v := n.get("successThreshold"); key != "readinessProbe" {
		if count, ok := v.number(); ok && count > 1 {
			r.wrong(v, "must be 1 for this kind of probe", "")
		}
	} else if v, ok := n.at("terminationGracePeriodSeconds"); ok {
		r.wrong(v, "must not be set for a readiness probe", "remove it")
	}
}

func (r podRules) lifecycle(n podNode) {
	for _, key := range []string{"postStart", "preStop"} {
		handler, ok := n.at(key)
		if !ok {
			continue
		}
		r.exactlyOne(handler, "a handler", "exec", "httpGet", "sleep", "tcpSocket")
		pause := handler.get("sleep", "seconds")
		seconds, ok := pause.number()
		grace, set := r.spec.get("terminationGracePeriodSeconds").number()
		if ok && set && seconds > grace {
			r.wrong(pause, fmt.Sprintf("must not be more than terminationGracePeriodSeconds, which is %d", grace), "")
		}
	}
	if v, ok := n.at("stopSignal"); ok && r.spec.get("os", "name").text() == "" {
		r.wrong(v, "needs spec.os.name", "write os: {name: linux}")
	}
}

func (r podRules) restarts(n podNode) {
	rules, ok := n.at("restartPolicyRules")
	if ok && !rules.hollow() && !n.has("restartPolicy") {
		r.wrong(rules, "needs restartPolicy beside it", "")
	}
	if count := len(rules.entries()); count > 20 {
		r.wrong(rules, "must not have more than 20 entries", "")
	}
	resources := map[string]bool{}
	for _, resize := range n.get("resizePolicy").entries() {
		v := resize.get("resourceName")
		if resources[v.text()] {
			r.wrong(v, "is used twice", "use each once")
		}
		resources[v.text()] = true
		if v := resize.get("restartPolicy"); v.text() == "RestartContainer" {
			r.wrong(v, "must be NotRequired, because the Pod is never restarted", "")
		}
	}
}

// quantities with a unit, and what the unit stands for.
var quantityParts = regexp.MustCompile(`^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`)

// quantity reads a quantity. Exponents beyond 60 count as 60, since no amount is
// larger and a longer number would only take time.
func quantity(data any) (*big.Rat, bool) {
	switch data := data.(type) {
	case int:
		return new(big.Rat).SetInt64(int64(data)), true
	case int64:
		return new(big.Rat).SetInt64(data), true
	case float64:
		amount := new(big.Rat).SetFloat64(data)
		return amount, amount != nil
	case string:
		parts := quantityParts.FindStringSubmatch(data)
		if parts == nil || len(data) > 64 {
			return nil, false
		}
		amount, ok := new(big.Rat).SetString(parts[1])
		if !ok {
			return nil, false
		}
		return amount.Mul(amount, unit(parts[2])), true
	default:
		return nil, false
	}
}

func unit(name string) *big.Rat {
	base, exponent := int64(10), 0
	switch {
	case name == "":
	case strings.HasSuffix(name, "i"):
		base, exponent = 1024, strings.Index(" KMGTPE", name[:1])
	case len(name) == 1:
		exponent = map[string]int{"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[name]
	default:
		exponent, _ = strconv.Atoi(name[1:])
		exponent = max(-60, min(60, exponent))
	}
	power := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(max(exponent, -exponent))), nil)
	if exponent < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), power)
	}
	return new(big.Rat).SetInt(power)
}

func (c *podCheck) notNegative(n podNode) {
	if amount, ok := quantity(n.v.data); ok && amount.Sign() < 0 {
		c.wrong(n, "must not be negative", "")
	}
}

// resources checks requests and limits, of a container or of the Pod.
func (r podRules) resources(n podNode, ofPod bool) {
	limits, requests := n.get("limits"), n.get("requests")
	r.amounts(limits, ofPod)
	r.amounts(requests, ofPod)
	r.huge(limits, requests)
	asked, _ := requests.v.data.(table)
	limited, _ := limits.v.data.(table)
	for name, v := range asked {
		request := requests.into(name)
		most, ok := limited[name]
		wanted, known := quantity(v.data)
		limit, alsoKnown := quantity(most.data)
		extended := !strings.HasPrefix(name, "hugepages-") && strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "hugepages-")
		switch {
		case !ok && extended:
			r.wrong(request, "needs a limit of the same amount", "add it under limits")
		case !ok || !known || !alsoKnown:
		case extended && wanted.Cmp(limit) != 0:
			r.wrong(request, "must equal the limit", "")
		case wanted.Cmp(limit) > 0:
			r.wrong(request, "must not be more than the limit", "lower it, or raise the limit")
		}
	}
	if ofPod {
		if v, ok := n.at("claims"); ok {
			r.wrong(v, "must not be set for the Pod as a whole", "write it under resources of a container")
		}
		r.withinPod(n)
		return
	}
	for _, claim := range n.get("claims").entries() {
		if name := claim.get("name"); name.text() != "" && !r.claims[name.text()] {
			r.wrong(name, "must name one of spec.resourceClaims", "")
		}
	}
}

// huge reports huge pages without any of the resources that they come from.
func (r podRules) huge(limits, requests podNode) {
	for _, n := range []podNode{limits, requests} {
		if len(limits.keys("cpu", "memory"))+len(requests.keys("cpu", "memory")) > 0 {
			return
		}
		t, _ := n.v.data.(table)
		for name := range t {
			if strings.HasPrefix(name, "hugepages-") {
				r.wrong(n.into(name), "needs cpu or memory beside it", "")
			}
		}
	}
}

// withinPod compares the containers of the template with what the Pod as a whole
// may use.
func (r podRules) withinPod(pod podNode) {
	for _, kind := range []string{"limits", "requests"} {
		whole, _ := pod.get(kind).v.data.(table)
		for name, v := range whole {
			bound, ok := quantity(v.data)
			if !ok {
				continue
			}
			sum := new(big.Rat)
			for _, container := range r.spec.get("containers").entries() {
				amount := container.get("resources", kind).into(name)
				n, ok := quantity(amount.v.data)
				if !ok && kind == "requests" { // what is not requested is the limit
					n, ok = quantity(container.get("resources", "limits").into(name).v.data)
				}
				if !ok {
					continue
				}
				if kind == "limits" && n.Cmp(bound) > 0 {
					r.wrong(amount, "must not be more than the limit of the Pod", "")
				}
				sum.Add(sum, n)
			}
			if kind == "requests" && sum.Cmp(bound) > 0 {
				r.wrong(pod.get(kind).into(name), "must not be less than the containers request together", "")
			}
		}
	}
}

// amounts checks the names of resources, and how much of each.
func (r podRules) amounts(n podNode, ofPod bool) {
	t, _ := n.v.data.(table)
	for name, v := range t {
		entry := n.into(name)
		amount, known := quantity(v.data)
		own := strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/")
		switch {
		case slices.Contains([]string{"cpu", "memory"}, name) || strings.HasPrefix(name, "hugepages-"):
		case ofPod:
			r.report(RulePodTemplate, v.key, entry.path, "must be cpu, memory or hugepages- with a size", "")
		case name == "ephemeral-storage":
		case !strings.Contains(name, "/"):
			hint := ""
			if best := Closest(name, []string{"cpu", "memory", "ephemeral-storage"}); name == "mem" {
				hint = "did you mean \"memory\"?"
			} else if best != "" && name != "gpu" {
				hint = fmt.Sprintf("did you mean %q?", best)
			}
			r.report(RulePodTemplate, v.key, entry.path, "must be cpu, memory, ephemeral-storage, hugepages- with a size, or a name such as nvidia.com/gpu", hint)
		case own && strings.HasPrefix(name, "requests."):
			r.report(RulePodTemplate, v.key, entry.path, "must not begin with requests.", "")
		}
		if !known {
			continue
		}
		r.notNegative(entry)
		if size, ok := quantity(strings.TrimPrefix(name, "hugepages-")); ok && strings.HasPrefix(name, "hugepages-") && size.Sign() > 0 && !new(big.Rat).Quo(amount, size).IsInt() {
			r.wrong(entry, "must be a multiple of the size of a page", "")
		}
		if own && !amount.IsInt() {
			r.wrong(entry, "must be a whole number", "")
		}
		word, _ := v.data.(string)
		if (name == "memory" || name == "ephemeral-storage") && strings.HasSuffix(word, "m") {
			r.warn(v.at, entry.path, "is less than it seems: m stands for thousandths of a byte", "write Mi for mebibytes")
		}
	}
}

// security checks a security context, of a container or of the Pod.
func (c *podCheck) security(n podNode) {
	for _, key := range []string{"seccompProfile", "appArmorProfile"} {
		profile, ok := n.at(key)
		if !ok {
			continue
		}
		local, set := profile.at("localhostProfile")
		switch kind := profile.get("type").text(); {
		case kind == "Localhost" && !set, kind == "Localhost" && key == "appArmorProfile" && local.v.data == "":
			c.wrong(profile, "needs localhostProfile beside type: Localhost", "")
		case kind != "Localhost" && kind != "" && set:
			c.wrong(local, "must not be set unless type is Localhost", "")
		case key == "seccompProfile" && (path.IsAbs(local.text()) || slices.Contains(strings.Split(local.text(), "/"), "..")):
			c.wrong(local, "must be a relative path without ..", "")
		}
	}
	c.unique(n.get("sysctls").entries(), "name", map[string]bool{})
	if v, ok := n.at("allowPrivilegeEscalation"); ok && v.v.data == false {
		if n.get("privileged").yes() {
			c.wrong(v, "must not be false for a privileged container", "")
		}
		for _, added := range n.get("capabilities", "add").entries() {
			if added.text() == "CAP_SYS_ADMIN" {
				c.wrong(v, "must not be false for a container with CAP_SYS_ADMIN", "")
			}
		}
	}
}

// host checks what a Pod shares with its node.
func (r podRules) host() {
	spec := r.spec
	if spec.get("hostPID").yes() && spec.get("shareProcessNamespace").yes() {
		r.wrong(spec.get("shareProcessNamespace"), "must not be true together with hostPID", "")
	}
	if spec.get("hostUsers").v.data == false {
		for _, key := range []string{"hostPID", "hostIPC", "hostNetwork"} {
			if v := spec.get(key); v.yes() {
				r.wrong(v, "must not be true together with hostUsers: false", "")
			}
		}
	}
	for _, sysctl := range spec.get("securityContext", "sysctls").entries() {
		name := strings.ReplaceAll(sysctl.get("name").text(), "/", ".")
		if spec.get("hostNetwork").yes() && strings.HasPrefix(name, "net.") {
			r.wrong(sysctl.get("name"), "must not be set together with hostNetwork", "")
		}
		if spec.get("hostIPC").yes() && (strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")) {
			r.wrong(sysctl.get("name"), "must not be set together with hostIPC", "")
		}
	}
	if v, ok := spec.at("hostnameOverride"); ok {
		for _, key := range []string{"setHostnameAsFQDN", "hostNetwork"} {
			if spec.get(key).yes() {
				r.wrong(v, "must not be set together with "+key, "")
			}
		}
	}
	for _, alias := range spec.get("hostAliases").entries() {
		r.address(alias.get("ip"))
	}
}

func (r podRules) address(n podNode) {
	if n.text() == "" {
		return
	}
	if _, err := netip.ParseAddr(n.text()); err != nil || strings.Contains(n.text(), "%") {
		r.wrong(n, "must be an IP address", "")
	}
}

func (r podRules) dns() {
	config := r.spec.get("dnsConfig")
	servers := config.get("nameservers")
	if v := r.spec.get("dnsPolicy"); v.text() == "None" && len(servers.entries()) == 0 {
		r.wrong(v, "needs at least one of dnsConfig.nameservers when it is None", "")
	}
	if len(servers.entries()) > 3 {
		r.wrong(servers, "must not have more than 3 entries", "")
	}
	for _, server := range servers.entries() {
		if server.text() == "" {
			r.wrong(server, "must be an IP address", "")
		}
		r.address(server)
	}
	searches := config.get("searches")
	length := 0
	for _, search := range searches.entries() {
		word := strings.TrimSuffix(search.text(), ".")
		length += len(search.text()) + 1
		if search.text() != "." && !searchPath.MatchString(word) {
			r.wrong(search, "must be a domain of small letters, digits, dashes, underscores and dots", "")
		}
	}
	if len(searches.entries()) > 32 || length > 2049 {
		r.wrong(searches, "must not have more than 32 entries or 2048 characters", "")
	}
}

var searchPath = regexp.MustCompile(`^[a-z0-9_]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9])?)*$`)

// scheduling checks where a Pod may run.
func (r podRules) scheduling() {
	for _, toleration := range r.spec.get("tolerations").entries() {
		r.toleration(toleration)
	}
	gates := r.spec.get("schedulingGates").entries()
	r.unique(gates, "name", map[string]bool{})
	if v := r.spec.get("nodeName"); v.text() != "" && len(gates) > 0 {
		r.wrong(v, "must not be set together with schedulingGates", "")
	}
	seen := map[string]bool{}
	for _, spread := range r.spec.get("topologySpreadConstraints").entries() {
		key, when := spread.get("topologyKey"), spread.get("whenUnsatisfiable").text()
		if seen[key.text()+" "+when] {
			r.wrong(key, "is used twice with the same whenUnsatisfiable", "use each once")
		}
		seen[key.text()+" "+when] = true
		if v, ok := spread.at("minDomains"); ok && when != "DoNotSchedule" {
			r.wrong(v, "needs whenUnsatisfiable: DoNotSchedule", "")
		}
		r.selector(spread.get("labelSelector"))
		r.labelKeys(spread, "matchLabelKeys")
	}
	node := r.spec.get("affinity", "nodeAffinity")
	if must, ok := node.at("requiredDuringSchedulingIgnoredDuringExecution"); ok {
		for _, term := range must.get("nodeSelectorTerms").entries() {
			r.nodeTerm(term, true)
		}
	}
	for _, term := range node.get("preferredDuringSchedulingIgnoredDuringExecution").entries() {
		r.nodeTerm(term.get("preference"), false)
	}
	for _, kind := range []string{"podAffinity", "podAntiAffinity"} {
		pods := r.spec.get("affinity", kind)
		for _, term := range pods.get("requiredDuringSchedulingIgnoredDuringExecution").entries() {
			r.podTerm(term)
		}
		for _, term := range pods.get("preferredDuringSchedulingIgnoredDuringExecution").entries() {
			r.podTerm(term.get("podAffinityTerm"))
		}
	}
}

func (r podRules) podTerm(n podNode) {
	r.selector(n.get("labelSelector"))
	r.selector(n.get("namespaceSelector"))
	r.labelKeys(n, "matchLabelKeys")
	r.labelKeys(n, "mismatchLabelKeys")
	first := map[string]bool{}
	for _, v := range n.get("matchLabelKeys").entries() {
		first[v.text()] = true
	}
	for _, v := range n.get("mismatchLabelKeys").entries() {
		if first[v.text()] {
			r.wrong(v, "must not stand in matchLabelKeys too", "")
		}
	}
}

func (r podRules) labelKeys(n podNode, key string) {
	v, ok := n.at(key)
	if ok && len(v.entries()) > 0 && !n.has("labelSelector") {
		r.wrong(v, "needs labelSelector beside it", "")
	}
}

func (r podRules) toleration(n podNode) {
	key, operator, effect := n.get("key").text(), n.get("operator"), n.get("effect").text()
	switch {
	case key == "" && operator.text() != "Exists":
		r.wrong(n, "needs a key, or operator: Exists", "")
	case operator.text() == "Exists" && n.get("value").text() != "":
		r.wrong(n.get("value"), "must not be set with operator: Exists", "remove it")
	case operator.text() != "Exists" && !labelValue.MatchString(n.get("value").text()):
		r.wrong(n.get("value"), "must be at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends", "")
	}
	if v, ok := n.at("tolerationSeconds"); ok && effect != "NoExecute" {
		r.wrong(v, "needs effect: NoExecute", "")
	}
}

var labelValue = regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?$`)

// nodeTerm checks one term of a node affinity.
func (r podRules) nodeTerm(n podNode, strict bool) {
	for _, requirement := range n.get("matchExpressions").entries() {
		r.requirement(requirement)
		if operator := requirement.get("operator").text(); (operator == "Gt" || operator == "Lt") && len(requirement.get("values").entries()) != 1 {
			r.wrong(requirement, "needs exactly one of values for Gt and Lt", "")
		}
		for _, v := range requirement.get("values").entries() {
			if strict && !labelValue.MatchString(v.text()) {
				r.wrong(v, "must be at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends", "")
			}
		}
	}
	for _, requirement := range n.get("matchFields").entries() {
		if v := requirement.get("key"); v.text() != "" && v.text() != "metadata.name" {
			r.wrong(v, "must be metadata.name", "use matchExpressions for labels")
		}
		if v := requirement.get("operator"); v.text() != "" && v.text() != "In" && v.text() != "NotIn" {
			r.wrong(v, "must be one of In, NotIn", "")
		} else if len(requirement.get("values").entries()) != 1 {
			r.wrong(requirement, "needs exactly one of values", "")
		}
		for _, v := range requirement.get("values").entries() {
			if !nodeName.MatchString(v.text()) {
				r.wrong(v, "must be the name of a node", "")
			}
		}
	}
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// requirement checks that an operator has the values that it works on.
func (r podRules) requirement(n podNode) {
	count := len(n.get("values").entries())
	switch n.get("operator").text() {
	case "In", "NotIn":
		if count == 0 {
			r.wrong(n, "needs values for In and NotIn", "")
		}
	case "Exists", "DoesNotExist":
		if count > 0 {
			r.wrong(n.get("values"), "must be empty for Exists and DoesNotExist", "remove it")
		}
	}
}

func (r podRules) selector(n podNode) {
	for _, requirement := range n.get("matchExpressions").entries() {
		r.requirement(requirement)
	}
}
