package podtemplate

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// quantities with a unit, and what the unit stands for.
var quantityParts = regexp.MustCompile(`^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`)

// mostExponent bounds exponents: no amount is larger, and a longer number would
// only take time.
const mostExponent = 1_000

// quantity reads a quantity.
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

// milli is a quantity as the API server compares it: in thousandths, rounded up.
func milli(data any) (*big.Int, bool) {
	amount, ok := quantity(data)
	if !ok {
		return nil, false
	}
	amount.Mul(amount, big.NewRat(1000, 1))
	whole, rest := new(big.Int).DivMod(amount.Num(), amount.Denom(), new(big.Int))
	if rest.Sign() > 0 {
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
		exponent = max(-mostExponent, min(mostExponent, exponent))
	}
	power := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(max(exponent, -exponent))), nil)
	if exponent < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), power)
	}
	return new(big.Rat).SetInt(power)
}

func (c *checker) notNegative(n node) {
	if amount, ok := quantity(n.v.Data); ok && amount.Sign() < 0 {
		c.wrong(n, "must not be negative", "")
	}
}

// resources checks requests and limits, of a container or of the Pod.
func (r rules) resources(n node, ofPod bool) {
	limits, requests := n.get("limits"), n.get("requests")
	r.amounts(limits, ofPod)
	r.amounts(requests, ofPod)
	r.huge(limits, requests)
	asked, _ := requests.v.Data.(position.Mapping)
	limited, _ := limits.v.Data.(position.Mapping)
	for name, v := range asked {
		request := requests.into(name)
		most, ok := limited[name]
		wanted, known := milli(v.Data)
		limit, alsoKnown := milli(most.Data)
		extended := !strings.HasPrefix(name, "hugepages-") && strings.Contains(name, "/") &&
			!strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "hugepages-")
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
	claimed := map[string]bool{}
	for _, claim := range n.get("claims").entries() {
		label := claim.get("name").text() + "/" + claim.get("request").text()
		if claimed[label] {
			r.wrong(claim, "is written twice", "write each once")
		}
		claimed[label] = true
		if name := claim.get("name"); name.text() != "" && !r.claims[name.text()] {
			r.wrong(name, "must name one of spec.resourceClaims", "")
		}
	}
}

// huge reports huge pages without any of the resources that they come from.
func (r rules) huge(limits, requests node) {
	for _, n := range []node{limits, requests} {
		if len(limits.keys("cpu", "memory"))+len(requests.keys("cpu", "memory")) > 0 {
			return
		}
		t, _ := n.v.Data.(position.Mapping)
		for name := range t {
			if strings.HasPrefix(name, "hugepages-") {
				r.wrong(n.into(name), "needs cpu or memory beside it", "")
			}
		}
	}
}

// withinPod compares the containers of the template with what the Pod as a whole
// may use.
func (r rules) withinPod(pod node) {
	for _, kind := range []string{"limits", "requests"} {
		whole, _ := pod.get(kind).v.Data.(position.Mapping)
		for name, v := range whole {
			bound, ok := milli(v.Data)
			if !ok {
				continue
			}
			sum := new(big.Int)
			for _, container := range r.spec.get("containers").entries() {
				amount := container.get("resources", kind).into(name)
				n, ok := milli(amount.v.Data)
				if !ok && kind == "requests" { // what is not requested is the limit
					n, ok = milli(container.get("resources", "limits").into(name).v.Data)
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
func (r rules) amounts(n node, ofPod bool) {
	t, _ := n.v.Data.(position.Mapping)
	for name, v := range t {
		entry := n.into(name)
		amount, known := quantity(v.Data)
		own := strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/")
		switch {
		case slices.Contains([]string{"cpu", "memory"}, name) || strings.HasPrefix(name, "hugepages-"):
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
		case own && strings.HasPrefix(name, "requests."):
			r.report(position.RulePodTemplate, v.Key, entry.path, "must not begin with requests.", "")
		}
		if !known {
			continue
		}
		r.notNegative(entry)
		if size, ok := quantity(strings.TrimPrefix(name, "hugepages-")); ok && strings.HasPrefix(name, "hugepages-") &&
			size.Sign() > 0 && !new(big.Rat).Quo(amount, size).IsInt() {
			r.wrong(entry, "must be a multiple of the size of a page", "")
		}
		if own && !amount.IsInt() {
			r.wrong(entry, "must be a whole number", "")
		}
		word, _ := v.Data.(string)
		if (name == "memory" || name == "ephemeral-storage") && strings.HasSuffix(word, "m") {
			r.warn(v.At, entry.path, "is less than it seems: m stands for thousandths of a byte",
				"write Mi for mebibytes")
		}
	}
}
