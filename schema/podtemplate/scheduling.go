package podtemplate

import "regexp"

// scheduling checks the fields that determine on which node a Pod may run.
func (r rules) scheduling() {
	for _, toleration := range r.spec.get("tolerations").entries() {
		r.toleration(toleration)
	}
	gates := r.spec.get("schedulingGates").entries()
	r.unique(gates, "name", map[string]bool{})
	if v := r.spec.get("nodeName"); v.text() != "" && len(gates) > 0 {
		r.invalid(v, "must not be set together with schedulingGates", "")
	}

	seen := map[string]bool{}
	for _, spread := range r.spec.get("topologySpreadConstraints").entries() {
		key, when := spread.get("topologyKey"), spread.get("whenUnsatisfiable").text()
		if seen[key.text()+" "+when] {
			r.invalid(key, "is used twice with the same whenUnsatisfiable", "use each once")
		}
		seen[key.text()+" "+when] = true
		if v, ok := spread.field("minDomains"); ok && when != "DoNotSchedule" {
			r.invalid(v, "needs whenUnsatisfiable: DoNotSchedule", "")
		}
		r.selector(spread.get("labelSelector"))
		r.labelKeys(spread, "matchLabelKeys")
	}

	node := r.spec.get("affinity", "nodeAffinity")
	if must, ok := node.field("requiredDuringSchedulingIgnoredDuringExecution"); ok {
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

func (r rules) toleration(n node) {
	key, operator, effect := n.get("key").text(), n.get("operator"), n.get("effect").text()
	switch {
	case key == "" && operator.text() != "Exists":
		r.invalid(n, "needs a key, or operator: Exists", "")
	case operator.text() == "Exists" && n.get("value").text() != "":
		r.invalid(n.get("value"), "must not be set with operator: Exists", "remove it")
	case operator.text() != "Exists" && !labelValue.MatchString(n.get("value").text()):
		r.invalid(n.get("value"), "must be "+labelValueText, "")
	}
	if v, ok := n.field("tolerationSeconds"); ok && effect != "NoExecute" {
		r.invalid(v, "needs effect: NoExecute", "")
	}
}

// labelValueText describes the texts that labelValue matches.
const labelValueText = "at most 63 letters, digits, dashes, underscores and dots, " +
	"starting and ending with a letter or digit"

var labelValue = regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?$`)

// nodeTerm checks one term of a node affinity. If strict is true, the values must be valid
// values of labels.
func (r rules) nodeTerm(n node, strict bool) {
	// Labels of nodes.
	for _, requirement := range n.get("matchExpressions").entries() {
		r.requirement(requirement)
		if operator := requirement.get("operator").text(); (operator == "Gt" || operator == "Lt") &&
			len(requirement.get("values").entries()) != 1 {
			r.invalid(requirement, "needs exactly one value for Gt and Lt", "")
		}
		for _, v := range requirement.get("values").entries() {
			if strict && !labelValue.MatchString(v.text()) {
				r.invalid(v, "must be "+labelValueText, "")
			}
		}
	}

	// Fields of nodes: only the name.
	for _, requirement := range n.get("matchFields").entries() {
		if v := requirement.get("key"); v.text() != "" && v.text() != "metadata.name" {
			r.invalid(v, "must be metadata.name", "use matchExpressions for labels")
		}
		if v := requirement.get("operator"); v.text() != "" && v.text() != "In" && v.text() != "NotIn" {
			r.invalid(v, "must be one of In, NotIn", "")
		} else if len(requirement.get("values").entries()) != 1 {
			r.invalid(requirement, "needs exactly one value", "")
		}
		for _, v := range requirement.get("values").entries() {
			if !nodeName.MatchString(v.text()) {
				r.invalid(v, "must be the name of a node", "")
			}
		}
	}
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func (r rules) podTerm(n node) {
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
			r.invalid(v, "must not be in matchLabelKeys too", "")
		}
	}
}

func (r rules) labelKeys(n node, key string) {
	v, ok := n.field(key)
	if ok && len(v.entries()) > 0 && !n.has("labelSelector") {
		r.invalid(v, "needs labelSelector too", "")
	}
}

// requirement checks that In and NotIn have values, and that Exists and DoesNotExist have
// no values.
func (r rules) requirement(n node) {
	count := len(n.get("values").entries())
	switch n.get("operator").text() {
	case "In", "NotIn":
		if count == 0 {
			r.invalid(n, "needs values for In and NotIn", "")
		}
	case "Exists", "DoesNotExist":
		if count > 0 {
			r.invalid(n.get("values"), "must be empty for Exists and DoesNotExist", "remove it")
		}
	}
}

func (r rules) selector(n node) {
	for _, requirement := range n.get("matchExpressions").entries() {
		r.requirement(requirement)
	}
}
