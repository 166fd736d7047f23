package podtemplate

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

func (r rules) container(n node, isInit bool) {
	if n.hasNoKeys() {
		return
	}
	// The image: every container of the template needs one, except the agent's containers.
	list := "containers"
	if isInit {
		list = "initContainers"
	}
	if image := n.get("image"); !isAgentContainer(list, n.get("name").text()) && image.text() == "" &&
		(image.v.Data == nil || image.v.Data == "") {
		hint := "only the container " + mainContainer + " has one already"
		if !isInit && position.Closest(n.get("name").text(), []string{mainContainer}) != "" {
			hint = "did you mean the container " + mainContainer + "?"
		}
		r.invalid(n, "needs an image", hint)
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

	// Probes and lifecycle handlers. An init container must not have them, unless it is a
	// sidecar.
	isSidecar := !isInit || n.get("restartPolicy").text() == "Always"
	for _, key := range []string{"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"} {
		v, ok := n.field(key)
		switch {
		case !ok:
		case !isSidecar:
			r.report(position.RulePodTemplate, v.v.Key, v.path,
				"must not be set for an init container that is not a sidecar",
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
		r.invalid(mode, "must be Default unless the Pod has hostUsers: false", "")
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
		hostPort, ok := port.get("hostPort").number()
		if !ok || hostPort == 0 {
			continue
		}
		protocol := cmp.Or(port.get("protocol").text(), "TCP")
		label := fmt.Sprintf("%s/%s/%d", protocol, port.get("hostIP").text(), hostPort)
		if taken[label] {
			r.invalid(port.get("hostPort"), "is used twice", "use each once")
		}
		taken[label] = true
		containerPort, ok := port.get("containerPort").number()
		if ok && !isInit && r.spec.get("hostNetwork").isTrue() && containerPort != hostPort {
			r.invalid(port.get("hostPort"), "must equal containerPort, because of hostNetwork", "")
		}
	}
}

func (r rules) env(n node) {
	from, ok := n.field("valueFrom")
	if !ok {
		return
	}
	if n.get("value").text() != "" {
		r.invalid(n, "must have value or valueFrom, and has both", "keep one of them")
	}
	r.exactlyOne(from, "a source", "configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")
	r.reference(from, false)
	if file, ok := from.field("fileKeyRef"); ok {
		name := file.get("volumeName")
		volume, known := r.volumes[name.text()]
		if name.text() != "" && !known {
			r.invalid(name, "must name a volume of the template", "")
		} else if known && !volume.has("emptyDir") && len(volume.present(volumeSources...)) > 0 {
			r.invalid(name, "must name a volume of type emptyDir", "")
		}
	}
}

// repeatedEnv warns of variables that are set twice. The API server accepts them and
// uses the last one.
func (r rules) repeatedEnv(list []node) {
	seen := map[string]bool{}
	for _, env := range list {
		name := env.get("name")
		if text := name.text(); text != "" {
			if seen[text] {
				r.warn(name.v.At, name.path, "is set twice, and only the last one counts", "keep one of the two")
			}
			seen[text] = true
		}
	}
}

// envFields and fileFields are the values of fieldPath that a variable and a file of a volume
// may have. They may also have a value that subscript matches, with a key that qualified
// matches. divisors matches the divisors of all resources except cpu.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
		"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels",
		"metadata.annotations"}
	subscript = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)
	qualified = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`)
	divisors  = regexp.MustCompile(`^1([kMGTPE]|[KMGTPE]i)?$`)
)

// reference checks fieldRef and resourceFieldRef. isFile is true for a file of a volume, and
// false for a variable.
func (r rules) reference(n node, isFile bool) {
	if field := n.get("fieldRef", "fieldPath"); field.text() != "" {
		fields := envFields
		if isFile {
			fields = fileFields
		}
		key := subscript.FindStringSubmatch(field.text())
		if !slices.Contains(fields, field.text()) && (key == nil || !qualified.MatchString(key[2])) {
			r.invalid(field, "must be one of "+strings.Join(fields, ", ")+", or such as metadata.labels['app']", "")
		}
	}
	if version := n.get("fieldRef", "apiVersion"); version.text() != "" && version.text() != "v1" {
		r.invalid(version, "must be v1", "")
	}

	// resourceFieldRef: a file needs containerName, and the divisor must fit the resource.
	resource, ok := n.field("resourceFieldRef")
	if !ok {
		return
	}
	if isFile && resource.get("containerName").text() == "" {
		r.invalid(resource, "needs containerName", "")
	}
	divisor := resource.get("divisor")
	amount, known := Quantity(divisor.v.Data)
	if !known || amount.Sign() == 0 {
		return
	}
	text := fmt.Sprint(divisor.v.Data)
	switch isCPU := strings.HasSuffix(resource.get("resource").text(), ".cpu"); {
	case isCPU && amount.Cmp(big.NewRat(1, 1)) != 0 && amount.Cmp(big.NewRat(1, 1000)) != 0:
		r.invalid(divisor, "must be 1 or 1m for cpu", "")
	case !isCPU && !divisors.MatchString(text) && amount.Cmp(big.NewRat(1, 1)) != 0:
		r.invalid(divisor, "must be 1 with or without a unit, such as 1Mi", "")
	}
}

// mounts checks the volumes that a container mounts or uses as devices.
func (r rules) mounts(n node) {
	// Mounts: paths, names, and fields that exclude each other.
	paths := map[string]bool{}
	names := map[string]bool{}
	for _, mount := range n.get("volumeMounts").entries() {
		if mount.hasNoKeys() {
			continue
		}
		target, name := mount.get("mountPath"), mount.get("name")
		text := target.text()
		if text != "" {
			if paths[text] {
				r.invalid(target, "is used twice", "use each once")
			}
			paths[text] = true
			if !path.IsAbs(text) || path.Clean(text) != strings.TrimSuffix(text, "/") && text != "/" ||
				strings.Contains(text, ":") {
				r.warn(target.v.At, target.path, "is not a clean absolute path, and is interpreted from the root",
					"write a path such as /data")
			}
		}
		r.volumeReference(name)
		names[name.text()] = true
		if mount.get("subPath").text() != "" && mount.get("subPathExpr").text() != "" {
			r.invalid(mount, "must have subPath or subPathExpr, and has both", "keep one of them")
		}
		if v := mount.get("mountPropagation"); v.text() == "Bidirectional" &&
			!n.get("securityContext", "privileged").isTrue() {
			r.invalid(v, "must not be Bidirectional unless the container is privileged", "")
		}
		if v := mount.get("recursiveReadOnly"); v.text() == "Enabled" || v.text() == "IfPossible" {
			if !mount.get("readOnly").isTrue() {
				r.invalid(v, "needs readOnly: true too", "")
			}
			if mode := mount.get("mountPropagation").text(); mode != "" && mode != "None" {
				r.invalid(v, "must not be set together with mountPropagation", "")
			}
		}
	}

	// Devices: a device must not have the path or the volume of a mount or of another device,
	// and its volume must have a type that can be a device.
	devices := map[string]bool{}
	for _, device := range n.get("volumeDevices").entries() {
		target, name := device.get("devicePath"), device.get("name")
		if text := target.text(); text != "" {
			if paths[text] || devices[text] {
				r.invalid(target, "is used twice", "use each once")
			}
			devices[text] = true
		}
		if names[name.text()] && name.text() != "" {
			r.invalid(name, "is used twice", "use a volume as a directory or as a device")
		}
		names[name.text()] = true
		r.volumeReference(name)
		if volume, ok := r.volumes[name.text()]; ok && !volume.has("persistentVolumeClaim") &&
			!volume.has("ephemeral") {
			r.invalid(name, "must name a volume of type persistentVolumeClaim or ephemeral", "")
		}
	}
}

// volumeReference reports a name that no volume has. It accepts the names of the agent's
// volumes, because protectEntry reports mounts of these volumes.
func (r rules) volumeReference(name node) {
	text := name.text()
	if _, ok := r.volumes[text]; ok || text == "" || isReserved(text) {
		return
	}
	hint := "add it to spec.volumes"
	if position.Closest(text, slices.Collect(maps.Keys(r.volumes))) != "" {
		hint = "check the spelling in spec.volumes"
	}
	r.invalid(name, "must name a volume of the template", hint)
}

func (r rules) probe(n node, key string) {
	r.exactlyOne(n, "a handler", "exec", "grpc", "httpGet", "tcpSocket")

	if v := n.get("successThreshold"); key != "readinessProbe" {
		if count, ok := v.number(); ok && count > 1 {
			r.invalid(v, "must be 1 for this kind of probe", "")
		}
	} else if v, ok := n.field("terminationGracePeriodSeconds"); ok {
		r.invalid(v, "must not be set for a readiness probe", "remove it")
	}
}

func (r rules) lifecycle(n node) {
	for _, key := range []string{"postStart", "preStop"} {
		handler, ok := n.field(key)
		if !ok {
			continue
		}
		r.exactlyOne(handler, "a handler", "exec", "httpGet", "sleep", "tcpSocket")
		sleep := handler.get("sleep", "seconds")
		seconds, ok := sleep.number()
		grace, set := r.spec.get("terminationGracePeriodSeconds").number()
		if ok && set && seconds > grace {
			r.invalid(sleep, fmt.Sprintf("must not be more than terminationGracePeriodSeconds, which is %d", grace), "")
		}
	}
	if v, ok := n.field("stopSignal"); ok && r.spec.get("os", "name").text() == "" {
		r.invalid(v, "needs spec.os.name", "write os: {name: linux}")
	}
}

func (r rules) restarts(n node) {
	rules, ok := n.field("restartPolicyRules")
	if ok && !rules.isEmptyCollection() && !n.has("restartPolicy") {
		r.invalid(rules, "needs restartPolicy too", "")
	}
	if count := len(rules.entries()); count > 20 {
		r.invalid(rules, "must not have more than 20 entries", "")
	}
	resizes := n.get("resizePolicy").entries()
	r.unique(resizes, "resourceName", map[string]bool{})
	for _, resize := range resizes {
		if v := resize.get("restartPolicy"); v.text() == "RestartContainer" {
			r.invalid(v, "must be NotRequired, because the restart policy of the Pod is Never", "")
		}
	}
}
