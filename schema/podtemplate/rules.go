package podtemplate

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rules checks the remaining rules of the API server. Most of them depend on several values.
func (c *checker) rules(n node) {
	c.metadata(n.get("metadata"))
	spec := n.get("spec")
	pod := rules{checker: c, spec: spec, volumes: map[string]node{}, claims: map[string]bool{},
		hostPorts: map[string]bool{}}
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

// rules is a [checker] with the parts of the template to which other parts refer, such as
// the volumes by name.
type rules struct {
	*checker
	spec      node
	volumes   map[string]node
	claims    map[string]bool
	hostPorts map[string]bool
}

func (c *checker) metadata(n node) {
	for _, v := range n.get("finalizers").entries() {
		if text := v.text(); text != "" && !strings.Contains(text, "/") &&
			!slices.Contains([]string{"kubernetes", "orphan", "foregroundDeletion"}, text) {
			c.invalid(v, "must be a name such as example.com/name", "")
		}
	}
	if v := n.get("annotations").userKey("controller.kubernetes.io/pod-deletion-cost"); v.v.Data != nil {
		if _, err := strconv.ParseInt(v.text(), 10, 32); err != nil {
			c.invalid(v, "must be a whole number in quotes", "")
		}
	}
	size := 0
	for key, v := range n.get("annotations").mapping() {
		text, _ := v.Data.(string)
		size += len(key) + len(text)
	}
	if size > 256<<10 {
		c.invalid(n.get("annotations"), "must not have more than 262144 bytes in total",
			"put large content into a ConfigMap")
	}
}

func (r rules) claimRules() {
	list := r.spec.get("resourceClaims").entries()
	r.unique(list, "name", r.claims)
	for _, claim := range list {
		if !claim.hasNoKeys() {
			r.exactlyOne(claim, "a source", "resourceClaimName", "resourceClaimTemplateName")
		}
	}
}

// security checks a security context, of a container or of the Pod.
func (c *checker) security(n node) {
	// Profiles: only a profile of type Localhost has a file. For seccomp, the node resolves
	// the path of the file relative to a fixed directory.
	for _, key := range []string{"seccompProfile", "appArmorProfile"} {
		profile, ok := n.field(key)
		if !ok {
			continue
		}
		local, set := profile.field("localhostProfile")
		switch kind := profile.get("type").text(); {
		case kind == "Localhost" && !set, kind == "Localhost" && key == "appArmorProfile" && local.v.Data == "":
			c.invalid(profile, "needs localhostProfile if type is Localhost", "")
		case kind != "Localhost" && kind != "" && set:
			c.invalid(local, "must not be set unless type is Localhost", "")
		case key == "seccompProfile" &&
			(path.IsAbs(local.text()) || slices.Contains(strings.Split(local.text(), "/"), "..")):
			c.invalid(local, "must be a relative path without ..", "")
		}
	}

	// Kernel parameters and privileges.
	c.unique(n.get("sysctls").entries(), "name", map[string]bool{})
	if v, ok := n.field("allowPrivilegeEscalation"); ok && v.v.Data == false {
		if n.get("privileged").isTrue() {
			c.invalid(v, "must not be false for a privileged container", "")
		}
		for _, added := range n.get("capabilities", "add").entries() {
			if added.text() == "CAP_SYS_ADMIN" {
				c.invalid(v, "must not be false for a container with CAP_SYS_ADMIN", "")
			}
		}
	}
}

// host checks which namespaces the Pod shares with its node, the kernel parameters of these
// namespaces, the override of the host name, and the host aliases.
func (r rules) host() {
	spec := r.spec
	if spec.get("hostPID").isTrue() && spec.get("shareProcessNamespace").isTrue() {
		r.invalid(spec.get("shareProcessNamespace"), "must not be true together with hostPID", "")
	}
	if spec.get("hostUsers").v.Data == false {
		for _, key := range []string{"hostPID", "hostIPC", "hostNetwork"} {
			if v := spec.get(key); v.isTrue() {
				r.invalid(v, "must not be true together with hostUsers: false", "")
			}
		}
	}

	// Kernel parameters of namespaces that the Pod shares with the node.
	for _, sysctl := range spec.get("securityContext", "sysctls").entries() {
		name := strings.ReplaceAll(sysctl.get("name").text(), "/", ".")
		if spec.get("hostNetwork").isTrue() && strings.HasPrefix(name, "net.") {
			r.invalid(sysctl.get("name"), "must not be set together with hostNetwork", "")
		}
		if spec.get("hostIPC").isTrue() &&
			(strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" ||
				strings.HasPrefix(name, "fs.mqueue.")) {
			r.invalid(sysctl.get("name"), "must not be set together with hostIPC", "")
		}
	}

	if v, ok := spec.field("hostnameOverride"); ok {
		for _, key := range []string{"setHostnameAsFQDN", "hostNetwork"} {
			if spec.get(key).isTrue() {
				r.invalid(v, "must not be set together with "+key, "")
			}
		}
	}
	for _, alias := range spec.get("hostAliases").entries() {
		r.address(alias.get("ip"))
	}
}

func (r rules) address(n node) {
	if n.text() == "" {
		return
	}
	if _, err := netip.ParseAddr(n.text()); err != nil || strings.Contains(n.text(), "%") {
		r.invalid(n, "must be an IP address", "")
	}
}

func (r rules) dns() {
	config := r.spec.get("dnsConfig")
	servers := config.get("nameservers")
	if v := r.spec.get("dnsPolicy"); v.text() == "None" && len(servers.entries()) == 0 {
		r.invalid(v, "needs at least one entry of dnsConfig.nameservers if it is None", "")
	}
	if len(servers.entries()) > 3 {
		r.invalid(servers, "must not have more than 3 entries", "")
	}
	for _, server := range servers.entries() {
		if server.text() == "" {
			r.invalid(server, "must be an IP address", "")
		}
		r.address(server)
	}

	searches := config.get("searches")
	length := 0
	for _, search := range searches.entries() {
		domain := strings.TrimSuffix(search.text(), ".")
		length += len(search.text()) + 1
		if search.text() != "." && !searchPath.MatchString(domain) {
			r.invalid(search, "must be a domain of lowercase letters, digits, dashes, underscores and dots", "")
		}
	}
	if len(searches.entries()) > 32 || length > 2049 {
		r.invalid(searches, "must not have more than 32 entries or 2048 characters", "")
	}
}

var searchPath = regexp.MustCompile(`^[a-z0-9_]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9])?)*$`)
