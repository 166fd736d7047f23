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

// oneLetterOff returns every form of a name with one typo: a letter omitted, added, replaced,
// or swapped with its neighbour. It omits the name itself and the empty text.
func oneLetterOff(name, letters string) []string {
	var all []string
	for i := range len(name) + 1 {
		for _, letter := range letters {
			all = append(all, name[:i]+string(letter)+name[i:])
			if i < len(name) {
				all = append(all, name[:i]+string(letter)+name[i+1:])
			}
		}
		if i < len(name) {
			all = append(all, name[:i]+name[i+1:])
		}
		if i+1 < len(name) {
			all = append(all, name[:i]+name[i+1:i+2]+name[i:i+1]+name[i+2:])
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(other string) bool { return other == name || other == "" })
}

// typo is a misspelt name, and the names that may be meant.
type typo struct {
	wrong string
	meant []string
}

// typosAmong returns all typos of the names, except those that are another name of the list.
// If two names have the same typo, both may be meant.
func typosAmong(names []string, letters string) []typo {
	meant := map[string][]string{}
	var order []string
	for _, name := range names {
		for _, wrong := range oneLetterOff(name, letters) {
			if slices.Contains(names, wrong) {
				continue
			}
			if meant[wrong] == nil {
				order = append(order, wrong)
			}
			meant[wrong] = append(meant[wrong], name)
		}
	}
	all := make([]typo, len(order))
	for i, wrong := range order {
		all[i] = typo{wrong, meant[wrong]}
	}
	return all
}

// mapping is a mapping of a file in which the test misspells keys.
type mapping struct {
	name   string // prefix of the keys in suggestions, with a dot at its end
	before string // lines above the keys
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
	for _, f := range schema.Fields() {
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

func TestLoadAllTypos(t *testing.T) {
	t.Run("in keys", func(t *testing.T) {
		const batch = 1000
		tried := 0
		for _, m := range mappings(t) {
			typos := typosAmong(m.keys, small)
			tried += len(typos)
			wrong := map[string]int{}
			for some := range slices.Chunk(typos, batch) {
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
						t.Errorf("within %q, the problem is only a warning: %v", m.name, p)
					}
					if !slices.ContainsFunc(
						meant[p.Line],
						func(key string) bool { return p.Hint == fmt.Sprintf("did you mean %q?", m.name+key) },
					) {
						wrong[fmt.Sprint(meant[p.Line])]++
						if wrong[fmt.Sprint(meant[p.Line])] <= 3 {
							t.Errorf("the hint names no key of %s%v: %v", m.name, meant[p.Line], p)
						}
					}
				}
				if answered != len(some) {
					t.Errorf("within %q: got %d problems for %d typos", m.name, answered, len(some))
				}
			}
		}
		t.Logf("%d typos", tried)
		if tried < 50_000 {
			t.Errorf("only %d typos were tried", tried)
		}
	})

	t.Run("in variables", func(t *testing.T) {
		const prefix = "PULUMI_AGENT_"
		var names []string
		for _, f := range schema.Fields() {
			if name, ok := strings.CutPrefix(f.Variable, prefix); ok {
				names = append(names, name)
			}
		}
		typos := typosAmong(names, capital)
		for some := range slices.Chunk(typos, 1000) {
			src := source("")
			src.Environ = map[string]string{"PULUMI_AGENT_TOKEN": "pul-x"}
			meant := map[string][]string{}
			for _, s := range some {
				src.Environ[prefix+s.wrong] = "x"
				meant[prefix+s.wrong] = s.meant
			}
			_, problems := schema.Load(src)
			if len(problems) != len(some) {
				t.Errorf("got %d problems for %d typos", len(problems), len(some))
			}
			for _, p := range problems {
				if !slices.ContainsFunc(
					meant[p.Path],
					func(name string) bool { return p.Hint == "did you mean "+prefix+name+"?" },
				) {
					t.Errorf("the hint names no variable of %v: %v", meant[p.Path], p)
				}
			}
		}
		t.Logf("%d typos", len(typos))
		if len(typos) < 40_000 {
			t.Errorf("only %d typos were tried", len(typos))
		}
	})
}
