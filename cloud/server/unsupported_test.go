package server

import (
	"strings"
	"testing"
)

func TestCheckSupported(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "", `{"agentPoolID":null,"gitHub":null,"cacheOptions":{"enable":false}}`: "",
		`{"gitHub":{"repository":"","paths":[],"deployCommits":false}}`:                    "",
		`{"executorContext":{"executorImage":{"reference":"a","later":1}},"tag":"5"}`:      "",
		`{"operationContext":{"environmentVariables":{"A":"b"},"options":{"shell":"sh"}}}`: "",

		`{"gitHub":{"repository":"a/b"}}`:                   "gitHub is not supported: no push starts a deployment",
		`{"GITHUB":{"deployCommits":true}}`:                 "gitHub is not supported",
		`{"vcs":{"provider":"gitlab"}}`:                     "vcs is not supported",
		`{"cacheOptions":{"enable":true}}`:                  "cacheOptions is not supported: jobs on",
		`{"sourceContext":{"template":{"sourceUrl":"x"}}}`:  "sourceContext.template is not supported",
		`{"sourceContext":{"git":{"repoUrl":"x","lfs":1}}}`: "sourceContext.git.lfs is unknown",
		`{"operationContext":{"role":{"id":"a"}}}`:          "operationContext.role is not supported",
		`{"operationContext":{"options":{"parallel":4}}}`:   "operationContext.options.parallel is unknown",
		`{"operationContext":{"oidc":{"vault":{"a":1}}}}`:   "operationContext.oidc.vault is unknown",
		`{"operationContext":[1]}`:                          "operationContext must be a JSON object",
		`{"schedule":"@daily"}`:                             "schedule is unknown, so it would have no effect",
	} {
		sent, err := decodeTree([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		err = checkSupported(sent)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
