package schema_test

import (
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
		"a limit that is misspelt is refused": {"max_concurent_workflows: 8\n", true, `did you ` +
			`mean "max_concurrent_workflows"?`},
		"capitals are refused": {"Service_URL: https://pulumi.example.com\n", true, `did you mean "service_url"?`},
		"a misspelt key of docker is refused": {"docker:\n  netwrk: a\n", true, `did you mean ` +
			`"docker.network"?`},
		"a misspelt key of a pool is refused": {pool + "  servce_url: https://a\n", true, `did you ` +
			`mean "pools.0.service_url"?`},
		"a misspelt key of docker of a pool is refused": {pool + "  docker:\n    memry: 1g\n", true,
			`did you mean "pools.0.docker.memory"?`},
		"a key one level too high is refused": {"lables: [a=b]\n", true, `did you mean "docker.labels"?`},
		"a key with dots is refused": {"docker.memory: 1g\n", true, "write memory: " +
			"within docker:"},
		"a variable in place of a key is refused": {"PULUMI_AGENT_SERVICE_URL: https://a\n", true,
			`did you mean "service_url"?`},
		"a key of the whole agent in a pool is refused": {pool + "  http_server_port: 1\n", true, "it is for " +
			"the whole agent: write it at the top level"},
		"a key that resembles no key is ignored":             {"owner: platform\n", false, ""},
		"a key that resembles no key, in docker, is ignored": {"docker:\n  flavour: a\n", false, ""},
		"a key that resembles no key, in a pool, is ignored": {pool + "  owner: platform\n", false, ""},
		"a key x-docker with an anchor is ignored":           {"x-docker: &d {network: a}\ndocker: *d\n", false, ""},
		"a key .docker with an anchor is ignored":            {".docker: &d {network: a}\ndocker: *d\n", false, ""},
		"a variable without its prefix is ignored": {"image_pull_policy: Always\n", false, "write " +
			"image_pull_policy: within kubernetes:"},
		"a setting without a key is ignored": {"debug_pod: true\n", false, "no key sets this; " +
			"set the variable PULUMI_AGENT_DEBUG_POD"},
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
					t.Errorf(
						"%s: want an unknown key, as an error: %t, with the hint %q; got %v",
						reader,
						read.refused,
						test.hint,
						read.problems,
					)
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
