package schema_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

const (
	small   = "abcdefghijklmnopqrstuvwxyz_"
	capital = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
)

// oneLetterOff returns every word that one slip makes of a word: a letter left
// out, put in, replaced, or swapped with its neighbour. The word itself and what
// is empty are not among them.
func oneLetterOff(word, letters string) []string {
	var all []string
	for i := range len(word) + 1 {
		for _, letter := range letters {
			all = append(all, word[:i]+string(letter)+word[i:])
			if i < len(word) {
				all = append(all, word[:i]+string(letter)+word[i+1:])
			}
		}
		if i < len(word) {
			all = append(all, word[:i]+word[i+1:])
		}
		if i+1 < len(word) {
			all = append(all, word[:i]+word[i+1:i+2]+word[i:i+1]+word[i+2:])
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(other string) bool { return other == word || other == "" })
}

// slip is a word that is written wrong, and the words that may have been meant.
type slip struct {
	wrong string
	meant []string
}

// slipsAmong returns all slips in the words that are no other word of them.
// Where two words are one slip from the same wrong one, both may be meant.
func slipsAmong(words []string, letters string) []slip {
	meant := map[string][]string{}
	var order []string
	for _, word := range words {
		for _, wrong := range oneLetterOff(word, letters) {
			if slices.Contains(words, wrong) {
				continue
			}
			if meant[wrong] == nil {
				order = append(order, wrong)
			}
			meant[wrong] = append(meant[wrong], word)
		}
	}
	all := make([]slip, len(order))
	for i, wrong := range order {
		all[i] = slip{wrong, meant[wrong]}
	}
	return all
}

// mapping is a mapping of the file in which keys are written wrong.
type mapping struct {
	name   string // of the keys in suggestions, with a dot at its end
	before string // what stands above the keys
	indent string
	keys   []string
}

// mappings returns every mapping of a file with the keys that it may have.
func mappings(t *testing.T) []*mapping {
	t.Helper()
	var all []*mapping
	of := func(name, before, indent string) *mapping {
		for _, m := range all {
			if m.name == name {
				return m
			}
		}
		m := &mapping{name: name, before: before, indent: indent}
		all = append(all, m)
		return m
	}
	const pools = "pools:\n- name: a\n  token: pul-a\n"
	for _, f := range fields(t) {
		if f.OnlyVariable || f.Old != "" || f.Unused != "" || f.Ignored {
			continue
		}
		outer, inner, nested := strings.Cut(f.Key, ".")
		switch {
		case outer == "pools" && nested:
			of("pools.0.", pools, "  ").keys = append(of("pools.0.", pools, "  ").keys, inner)
			continue
		case nested:
			m := of(outer+".", "token: pul-x\n"+outer+":\n", "  ")
			m.keys = append(m.keys, inner)
		default:
			m := of("", "token: pul-x\n", "")
			m.keys = append(m.keys, f.Key)
		}
		if f.Pool && nested {
			m := of("pools.0."+outer+".", pools+"  "+outer+":\n", "    ")
			m.keys = append(m.keys, inner)
		} else if f.Pool {
			m := of("pools.0.", pools, "  ")
			m.keys = append(m.keys, f.Key)
		}
	}
	return all
}

func TestEverySlipInAKeyIsAnsweredWithTheKey(t *testing.T) {
	const batch = 1000
	tried := 0
	for _, m := range mappings(t) {
		slips := slipsAmong(m.keys, small)
		tried += len(slips)
		wrong := map[string]int{}
		for some := range slices.Chunk(slips, batch) {
			file := strings.Builder{}
			file.WriteString(m.before)
			meant := map[int][]string{}
			for i, s := range some {
				fmt.Fprintf(&file, "%s%s: x\n", m.indent, s.wrong)
				meant[strings.Count(m.before, "\n")+i+1] = s.meant
			}
			_, problems := schema.Load(source(file.String()))
			answered := 0
			for _, p := range problems {
				if p.Rule != position.RuleUnknownKey {
					t.Errorf("within %q: %v", m.name, p)
					continue
				}
				answered++
				if p.Severity != position.Error {
					t.Errorf("within %q, only a warning: %v", m.name, p)
				}
				if !slices.ContainsFunc(meant[p.Line], func(key string) bool { return p.Hint == fmt.Sprintf("did you mean %q?", m.name+key) }) {
					wrong[fmt.Sprint(meant[p.Line])]++
					if wrong[fmt.Sprint(meant[p.Line])] <= 3 {
						t.Errorf("for one of %s%v: %v", m.name, meant[p.Line], p)
					}
				}
			}
			if answered != len(some) {
				t.Errorf("within %q: %d slips have %d answers", m.name, len(some), answered)
			}
		}
	}
	t.Logf("%d slips", tried)
	if tried < 50_000 {
		t.Errorf("only %d slips were tried", tried)
	}
}

func TestEverySlipInAVariableIsAnsweredWithTheVariable(t *testing.T) {
	const prefix = "PULUMI_AGENT_"
	var names []string
	for _, f := range fields(t) {
		if name, ok := strings.CutPrefix(f.Variable, prefix); ok {
			names = append(names, name)
		}
	}
	slips := slipsAmong(names, capital)
	for some := range slices.Chunk(slips, 1000) {
		src := source("")
		src.Environ = map[string]string{"PULUMI_AGENT_TOKEN": "pul-x"}
		meant := map[string][]string{}
		for _, s := range some {
			src.Environ[prefix+s.wrong] = "x"
			meant[prefix+s.wrong] = s.meant
		}
		_, problems := schema.Load(src)
		if len(problems) != len(some) {
			t.Errorf("%d slips have %d answers", len(some), len(problems))
		}
		for _, p := range problems {
			if !slices.ContainsFunc(meant[p.Path], func(name string) bool { return p.Hint == "did you mean "+prefix+name+"?" }) {
				t.Errorf("for one of %v: %v", meant[p.Path], p)
			}
		}
	}
	t.Logf("%d slips", len(slips))
	if len(slips) < 40_000 {
		t.Errorf("only %d slips were tried", len(slips))
	}
}
