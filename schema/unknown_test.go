package schema_test

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestLoadUnknownKeys(t *testing.T) {
	const pool = "pools:\n- name: a\n  token: pul-a\n"
	for name, test := range map[string]struct {
		file    string
		refused bool // by an agent that is not strict
		hint    string
	}{
		"a misspelt key is refused": {"servce_url: https://pulumi.example.com\n", true, `did you mean "service_url"?`},
		"capitals are refused": {"Service_URL: https://pulumi.example.com\n", true,
			`did you mean "service_url"?`},
		"a misspelt key of docker of a pool is refused": {pool + "  docker:\n    memry: 1g\n", true,
			`did you mean "pools.0.docker.memory"?`},
		"a key one level too high is refused": {"lables: [a=b]\n", true, `did you mean "docker.labels"?`},
		"a key with dots is refused":          {"docker.memory: 1g\n", true, "write memory: within docker:"},
		"a variable in place of a key is refused": {"PULUMI_AGENT_SERVICE_URL: https://a\n", true,
			`did you mean "service_url"?`},
		"a key of the whole agent in a pool is refused": {pool + "  http_server_port: 1\n", true,
			"it is for the whole agent: write it at the top level"},
		"a key that resembles no key is ignored":             {"owner: platform\n", false, ""},
		"a key that resembles no key, in docker, is ignored": {"docker:\n  flavour: a\n", false, ""},
		"a key that resembles no key, in a pool, is ignored": {pool + "  owner: platform\n", false, ""},
		"a key x-docker with an anchor is ignored":           {"x-docker: &d {network: a}\ndocker: *d\n", false, ""},
		"a key .docker with an anchor is ignored":            {".docker: &d {network: a}\ndocker: *d\n", false, ""},
		"a variable without its prefix is ignored": {"image_pull_policy: Always\n", false,
			"write image_pull_policy: within kubernetes:"},
		"a setting without a key is ignored": {"debug_pod: true\n", false,
			"no key sets this; set the variable PULUMI_AGENT_DEBUG_POD"},
		"config of the Helm chart is ignored": {"config:\n  deploy_target: kubernetes\n", false,
			"are these values of the Helm chart? check its output: helm template … | cmwa vet -"},
		"the name of an agent is ignored": {"name: builder\n", false, ""},
		"a key that resembles no key, beside a wrong value, is ignored": {
			"owner: platform\nlog_level: loud\n", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := test.file
			if file[:4] != "pool" {
				file = "token: pul-x\n" + file
			}
			for reader, read := range map[string]struct {
				problems position.Problems
				refused  bool
			}{
				"an agent":            {loadOf(file), test.refused},
				"with strict":         {loadOf(file + "strict: true\n"), true},
				"with strict: false":  {loadOf(file + "strict: false\n"), test.refused},
				"vet":                 {schema.Vet(source(file)), true},
				"PULUMI_AGENT_STRICT": {loadWith(file, map[string]string{"PULUMI_AGENT_STRICT": "true"}), true},
			} {
				var unknown position.Problems
				for _, p := range read.problems {
					if p.Rule == position.RuleUnknownKey {
						unknown = append(unknown, p)
					}
				}
				if len(unknown) != 1 || (unknown[0].Severity == position.Error) != read.refused ||
					unknown[0].Hint != test.hint {
					t.Errorf("%s: want an unknown key, as an error: %t, with the hint %q; got %v",
						reader, read.refused, test.hint, read.problems)
				}
			}
		})
	}
}

func loadOf(file string) position.Problems { return loadWith(file, nil) }

func loadWith(file string, environ map[string]string) position.Problems {
	src := source(file)
	src.Environ = environ
	_, problems := schema.Load(src)
	return problems
}

func TestLoad(t *testing.T) {
	t.Run("keys of files of Pulumi's own agent are known", func(t *testing.T) {
		file := "token: pul-x\nversion: 2.1.0\nworkflow_runners_directory: /opt\n" +
			"workflow_runners_embeddable: /opt/e\nstrict: true\n"
		config, problems := schema.Load(source(file))
		if config == nil || !config.Strict {
			t.Errorf("%v", problems)
		}
		for _, p := range problems {
			if p.Rule == position.RuleUnknownKey {
				t.Error(p)
			}
		}
	})
	t.Run("the address of the HTTP server must not have a port", func(t *testing.T) {
		for address, good := range map[string]bool{
			"127.0.0.1": true, "0.0.0.0": true, `"::1"`: true, `"::"`: true, "fe80::1%eth0": true,
			"localhost": true, "agent.internal": true, `""`: true,
			"127.0.0.1:8080": false, `"[::1]"`: false, "127.0.0": false, "256.0.0.1": false, `":8080"`: false,
			"a b": false, "http://a": false, "8080": false,
		} {
			config, problems := schema.Load(source("token: pul-x\nhttp_server_address: " + address + "\n"))
			if (config != nil) != good ||
				!good && (len(problems) != 1 || problems[0].Line != 2 || problems[0].Column != 22) {
				t.Errorf("%s: %v", address, problems)
			}
		}
	})
}

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

// typosAmong returns all typos of the names, except those that are another name of the list,
// with the names that may be meant. If two names have the same typo, both may be meant.
func typosAmong(names []string, letters string) map[string][]string {
	meant := map[string][]string{}
	for _, name := range names {
		for _, wrong := range oneLetterOff(name, letters) {
			if !slices.Contains(names, wrong) {
				meant[wrong] = append(meant[wrong], name)
			}
		}
	}
	return meant
}

// batches returns the typos in slices that are short enough for one file, because Load reports
// at most a thousand problems.
func batches(typos map[string][]string) iter.Seq[[]string] {
	return slices.Chunk(slices.Sorted(maps.Keys(typos)), 1000)
}

// mapping is a mapping of a file in which the test misspells keys.
type mapping struct {
	name   string // prefix of the keys in suggestions, with a dot at its end
	before string // lines above the keys
	indent string
	keys   []string
}

// mappings returns every mapping of a file with the keys that it may have.
func mappings() []*mapping {
	var all []*mapping
	add := func(name, before, indent, key string) {
		at := slices.IndexFunc(all, func(m *mapping) bool { return m.name == name })
		if at < 0 {
			at = len(all)
			all = append(all, &mapping{name: name, before: before, indent: indent})
		}
		all[at].keys = append(all[at].keys, key)
	}
	const pools = "pools:\n- name: a\n  token: pul-a\n"
	for _, f := range schema.Fields() {
		if f.OnlyVariable || !current(f) {
			continue
		}
		outer, inner, nested := strings.Cut(f.Key, ".")
		switch {
		case outer == "pools" && nested:
			add("pools.0.", pools, "  ", inner)
		case nested:
			add(outer+".", "token: pul-x\n"+outer+":\n", "  ", inner)
			if f.Pool {
				add("pools.0."+outer+".", pools+"  "+outer+":\n", "    ", inner)
			}
		default:
			add("", "token: pul-x\n", "", f.Key)
			if f.Pool {
				add("pools.0.", pools, "  ", f.Key)
			}
		}
	}
	return all
}

func TestLoadAllTypos(t *testing.T) {
	t.Run("in keys", func(t *testing.T) {
		tried := 0
		for _, m := range mappings() {
			typos := typosAmong(m.keys, small)
			tried += len(typos)
			failed := map[string]int{} // number of typos with a wrong hint, by the keys that are meant
			for some := range batches(typos) {
				file := m.before
				meant := map[int][]string{} // by line
				for i, wrong := range some {
					file += m.indent + wrong + ": x\n"
					meant[strings.Count(m.before, "\n")+i+1] = typos[wrong]
				}
				unknown := 0
				for _, p := range loadOf(file) {
					if p.Rule != position.RuleUnknownKey {
						t.Errorf("within %q: %v", m.name, p)
						continue
					}
					unknown++
					if p.Severity != position.Error {
						t.Errorf("within %q, the problem is only a warning: %v", m.name, p)
					}
					keys := meant[p.Line]
					if !slices.ContainsFunc(keys, func(key string) bool {
						return p.Hint == fmt.Sprintf("did you mean %q?", m.name+key)
					}) {
						failed[fmt.Sprint(keys)]++
						if failed[fmt.Sprint(keys)] <= 3 {
							t.Errorf("the hint names no key of %s%v: %v", m.name, keys, p)
						}
					}
				}
				if unknown != len(some) {
					t.Errorf("within %q: got %d problems for %d typos", m.name, unknown, len(some))
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
		for some := range batches(typos) {
			environ := map[string]string{prefix + "TOKEN": "pul-x"}
			for _, wrong := range some {
				environ[prefix+wrong] = "x"
			}
			problems := loadWith("", environ)
			if len(problems) != len(some) {
				t.Errorf("got %d problems for %d typos", len(problems), len(some))
			}
			for _, p := range problems {
				meant := typos[strings.TrimPrefix(p.Path, prefix)]
				if !slices.ContainsFunc(meant, func(name string) bool {
					return p.Hint == "did you mean "+prefix+name+"?"
				}) {
					t.Errorf("the hint names no variable of %v: %v", meant, p)
				}
			}
		}
		t.Logf("%d typos", len(typos))
		if len(typos) < 40_000 {
			t.Errorf("only %d typos were tried", len(typos))
		}
	})
}
