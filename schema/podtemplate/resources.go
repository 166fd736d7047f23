package podtemplate

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// quantityParts matches a quantity: a number, which a unit or an exponent may follow.
var quantityParts = regexp.MustCompile(
	`^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`)

// maxExponent limits exponents, because larger exponents take long to compute and do not
// occur in practice.
const maxExponent = 1_000

// Quantity parses a quantity of Kubernetes, such as 2, 0.5, 500m or 4Gi: a number, or a text of at
// most 64 bytes. It returns false if the value is not a quantity.
func Quantity(data any) (*big.Rat, bool) {
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

// milli parses a quantity and returns it in thousandths, rounded up. The API server compares
// quantities in this form.
func milli(data any) (*big.Int, bool) {
	amount, ok := Quantity(data)
	if !ok {
		return nil, false
	}
	amount.Mul(amount, big.NewRat(1000, 1))
	whole, remainder := new(big.Int).DivMod(amount.Num(), amount.Denom(), new(big.Int))
	if remainder.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole, true
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
		exponent = max(-maxExponent, min(maxExponent, exponent))
	}
	power := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(max(exponent, -exponent))), nil)
	if exponent < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), power)
	}
	return new(big.Rat).SetInt(power)
}

func (c *checker) notNegative(n node) {
	if amount, ok := Quantity(n.v.Data); ok && amount.Sign() < 0 {
		c.invalid(n, "must not be negative", "")
	}
}

// resources checks requests and limits, of a container or of the Pod.
func (r rules) resources(n node, ofPod bool) {
	limits, requests := n.get("limits"), n.get("requests")
	r.amounts(limits, ofPod)
	r.amounts(requests, ofPod)
	r.hugePages(limits, requests)

	for name, v := range requests.mapping() {
		request := requests.userKey(name)
		limitValue, ok := limits.mapping()[name]
		amount, known := milli(v.Data)
		limit, limitKnown := milli(limitValue.Data)
		extended := strings.HasPrefix(name, "hugepages-") ||
			strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/")
		switch {
		case !ok && extended:
			r.invalid(request, "needs a limit of the same amount", "add it under limits")
		case !ok || !known || !limitKnown:
		case extended && amount.Cmp(limit) != 0:
			r.invalid(request, "must equal the limit", "")
		case amount.Cmp(limit) > 0:
			r.invalid(request, "must not be more than the limit", "lower it, or raise the limit")
		}
	}

	// For the Pod, compare it with its containers. For a container, check its claims.
	if ofPod {
		if v, ok := n.field("claims"); ok {
			r.invalid(v, "must not be set for the Pod as a whole", "write it under resources of a container")
		}
		r.podBounds(n)
		return
	}
	claimed := map[string]bool{}
	for _, claim := range n.get("claims").entries() {
		label := claim.get("name").text() + "/" + claim.get("request").text()
		if claimed[label] {
			r.invalid(claim, "is written twice", "write each once")
		}
		claimed[label] = true
		if name := claim.get("name"); name.text() != "" && !r.claims[name.text()] {
			r.invalid(name, "must name one of spec.resourceClaims", "")
		}
	}
}

// hugePages reports huge pages if neither cpu nor memory is set.
func (r rules) hugePages(limits, requests node) {
	for _, n := range []node{limits, requests} {
		if len(limits.present("cpu", "memory"))+len(requests.present("cpu", "memory")) > 0 {
			return
		}
		for name := range n.mapping() {
			if strings.HasPrefix(name, "hugepages-") {
				r.invalid(n.userKey(name), "needs cpu or memory too", "")
			}
		}
	}
}

// podBounds compares the resources of the containers with those of the whole Pod.
func (r rules) podBounds(pod node) {
	for _, kind := range []string{"limits", "requests"} {
		for name, v := range pod.get(kind).mapping() {
			bound, ok := milli(v.Data)
			if !ok {
				continue
			}
			sum := new(big.Int)
			for _, container := range r.spec.get("containers").entries() {
				amount := container.get("resources", kind).userKey(name)
				n, ok := milli(amount.v.Data)
				if !ok && kind == "requests" { // a missing request defaults to the limit
					n, ok = milli(container.get("resources", "limits").userKey(name).v.Data)
				}
				if !ok {
					continue
				}
				if kind == "limits" && n.Cmp(bound) > 0 {
					r.invalid(amount, "must not be more than the limit of the Pod", "")
				}
				sum.Add(sum, n)
			}
			if kind == "requests" && sum.Cmp(bound) > 0 {
				r.invalid(pod.get(kind).userKey(name),
					"must not be less than the requests of all containers together", "")
			}
		}
	}
}

// amounts checks the names and the amounts of resources.
func (r rules) amounts(n node, ofPod bool) {
	for name, v := range n.mapping() {
		entry := n.userKey(name)
		amount, known := Quantity(v.Data)
		qualified := strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/")
		switch {
		case name == "cpu", name == "memory", strings.HasPrefix(name, "hugepages-"):
		case ofPod:
			r.report(position.RulePodTemplate, v.Key, entry.path, "must be cpu, memory or hugepages- with a size", "")
		case name == "ephemeral-storage":
		case !strings.Contains(name, "/"):
			hint := ""
			if best := position.Closest(name, []string{"cpu", "memory", "ephemeral-storage"}); name == "mem" {
				hint = "did you mean \"memory\"?"
			} else if best != "" && name != "gpu" {
				hint = fmt.Sprintf("did you mean %q?", best)
			}
			r.report(position.RulePodTemplate, v.Key, entry.path,
				"must be cpu, memory, ephemeral-storage, hugepages- with a size, or a name such as nvidia.com/gpu",
				hint)
		case qualified && strings.HasPrefix(name, "requests."):
			r.report(position.RulePodTemplate, v.Key, entry.path, "must not begin with requests.", "")
		}

		if !known {
			continue
		}
		r.notNegative(entry)
		if size, ok := Quantity(strings.TrimPrefix(name, "hugepages-")); ok && strings.HasPrefix(name, "hugepages-") &&
			size.Sign() > 0 && !new(big.Rat).Quo(amount, size).IsInt() {
			r.invalid(entry, "must be a multiple of the size of a page", "")
		}
		if qualified && !amount.IsInt() {
			r.invalid(entry, "must be a whole number", "")
		}
		text, _ := v.Data.(string)
		if (name == "memory" || name == "ephemeral-storage") && strings.HasSuffix(text, "m") {
			r.warn(v.At, entry.path, "is very small: the unit m means thousandths of a byte",
				"write Mi for mebibytes")
		}
	}
}
