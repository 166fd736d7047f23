package podtemplate

import (
	"fmt"
	"math/big"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

func (r rules) container(n node, isInit bool) {
	if n.blank() {
		return
	}
	list := "containers"
	if isInit {
		list = "initContainers"
	}
	if image := n.get("image"); !isOwn(list, n.get("name").text()) && image.text() == "" && (image.v.Data == nil || image.v.Data == "") {
		hint := "only the container " + mainContainer + " has one already"
		if !isInit && position.Closest(n.get("name").text(), []string{mainContainer}) != "" {
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
			r.report(position.RulePodTemplate, v.v.Key, v.path, "must not be set for an init container that ends",
				"remove it, or set restartPolicy: Always for a sidecar")
		case key == "lifecycle":
			r.lifecycle(v)
		default:
			r.probe(v, key)
		}
	}
	r.restarts(n)
	r.resources(n.get("resources"), false)
	r.security(n.get("securityContext"))
	if mode := n.get("securityContext", "procMount"); mode.text() == "Unmasked" &&
		r.spec.get("hostUsers").v.Data != false {
		r.wrong(mode, "must be Default unless the Pod has hostUsers: false", "")
	}
}

func (r rules) ports(n node, isInit bool) {
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
		if inside, ok := port.get("containerPort").number(); ok && !isInit && r.spec.get("hostNetwork").yes() &&
			inside != outside {
			r.wrong(port.get("hostPort"), "must equal containerPort, because of hostNetwork", "")
		}
	}
}

func (r rules) env(n node) {
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
func (r rules) repeatedEnv(list []node) {
	seen := map[string]bool{}
	for _, env := range list {
		name := env.get("name")
		if word := name.text(); word != "" {
			if seen[word] {
				r.warn(name.v.At, name.path, "is set twice, and only the last one counts", "keep one of the two")
			}
			seen[word] = true
		}
	}
}

// What a variable and a file of a volume may say about the Pod.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
		"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels",
		"metadata.annotations"}
	subscript = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)
	qualified = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`)
	divisors  = regexp.MustCompile(`^1([kMGTPE]|[KMGTPE]i)?$`)
)

// reference checks what fieldRef and resourceFieldRef point at.
func (r rules) reference(n node, isFile bool) {
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
	amount, known := quantity(divisor.v.Data)
	if !known || amount.Sign() == 0 {
		return
	}
	written := fmt.Sprint(divisor.v.Data)
	switch isCPU := strings.HasSuffix(resource.get("resource").text(), ".cpu"); {
	case isCPU && amount.Cmp(big.NewRat(1, 1)) != 0 && amount.Cmp(big.NewRat(1, 1000)) != 0:
		r.wrong(divisor, "must be 1 or 1m for cpu", "")
	case !isCPU && !divisors.MatchString(written) && amount.Cmp(big.NewRat(1, 1)) != 0:
		r.wrong(divisor, "must be 1 with or without a unit, such as 1Mi", "")
	}
}

func (r rules) mounts(n node) {
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
			if !path.IsAbs(word) || path.Clean(word) != strings.TrimSuffix(word, "/") && word != "/" ||
				strings.Contains(word, ":") {
				r.warn(where.v.At, where.path, "is not a plain absolute path, and is taken from the root",
					"write a path such as /data")
			}
		}
		r.volumeNamed(name)
		names[name.text()] = true
		if mount.get("subPath").text() != "" && mount.get("subPathExpr").text() != "" {
			r.wrong(mount, "must have subPath or subPathExpr, and has both", "keep one of them")
		}
		if v := mount.get("mountPropagation"); v.text() == "Bidirectional" &&
			!n.get("securityContext", "privileged").yes() {
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
		if volume, ok := r.volumes[name.text()]; ok && !volume.has("persistentVolumeClaim") &&
			!volume.has("ephemeral") {
			r.wrong(name, "must name a volume of the kind persistentVolumeClaim or ephemeral", "")
		}
	}
}

// volumeNamed reports a name that no volume has. The volumes of the agent are
// told apart by their names and not for a template.
func (r rules) volumeNamed(name node) {
	word := name.text()
	if _, ok := r.volumes[word]; ok || word == "" || word == mainContainer ||
		strings.HasPrefix(word, mainContainer+"-") {
		return
	}
	hint := "add it to spec.volumes"
	var known []string
	for name := range r.volumes {
		known = append(known, name)
	}
	if position.Closest(word, known) != "" {
		hint = "see how it is spelt in spec.volumes"
	}
	r.wrong(name, "must name a volume of the template", hint)
}

func (r rules) probe(n node, key string) {
	r.exactlyOne(n, "a handler", "exec", "grpc", "httpGet", "tcpSocket")

	if v := n.get("successThreshold"); key != "readinessProbe" {
		if count, ok := v.number(); ok && count > 1 {
			r.wrong(v, "must be 1 for this kind of probe", "")
		}
	} else if v, ok := n.at("terminationGracePeriodSeconds"); ok {
		r.wrong(v, "must not be set for a readiness probe", "remove it")
	}
}

func (r rules) lifecycle(n node) {
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

func (r rules) restarts(n node) {
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
