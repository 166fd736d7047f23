package cloud

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestReadDefinition(t *testing.T) {
	for text, want := range map[string]string{
		`{"image":"debian","steps":[{"name":"a","run":"true","new":1}],"new":{},"env":null,"timeout":null,` +
			`"shell":null}`: "",
		`{"steps":[]}`:        "no steps",
		`null`:                "no steps",
		`[]`:                  "the definition of the job is invalid",
		``:                    "not JSON",
		`{"steps":[{"name":1`: "not JSON",
		`{"steps":[7]}`:       "the definition of the job is invalid",
	} {
		synctest.Test(t, func(t *testing.T) {
			definition, err := newScript(answer{status: 200, text: text}).jobs(io.Discard).Definition(t.Context())
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", text, err)
			case want == "" && (definition.Image.Reference != "debian" || definition.Steps != 1):
				t.Errorf("%s is read as %+v", text, definition)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		})
	}

	// The agent does not decode steps and variables, and leaves their errors to the runner.
	const text = `{"steps":[{}],"env":{"A":{"secret":7}}}`
	if _, err := ReadDefinition([]byte(text)); err != nil {
		t.Errorf("the agent refuses %s: %v", text, err)
	}
	if _, err := ParseDefinition([]byte(text)); err == nil {
		t.Errorf("the runner accepts %s", text)
	}
}

// TestDefinitionWork checks the names that users see on a Pod. The variables come from users.
func TestDefinitionWork(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for text, want := range map[string]runtime.Work{
		`{}`: {},
		`{"PULUMI_CI_ORGANIZATION": "acme", "PULUMI_CI_PROJECT": "website", "PULUMI_CI_STACK": "production",
			"PULUMI_CI_OPERATION": "update", "PULUMI_CI_BUILD_NUMBER": "12",
			"PULUMI_CI_BUILD_URL": "https://app.pulumi.com/acme/website/1"}`: {
			Organization: "acme", Project: "website", Stack: "production", Operation: "update", Version: "12",
			URL: "https://app.pulumi.com/acme/website/1",
		},
		`{"PULUMI_CI_STACK": {"secret": "hidden"}, "PULUMI_CI_PROJECT": {"ciphertext": "hidden"}}`: {},
		`{"PULUMI_CI_STACK": "two\n lines\u0000\u001b[1m"}`: {
			Stack: "two lines??[1m",
		},
		`{"PULUMI_CI_STACK": "` + long + `", "PULUMI_CI_BUILD_URL": "https://a.example/` + long + `"}`: {
			Stack: long[:1020] + " …",
		},
		`{"PULUMI_CI_BUILD_URL": "https://user:hidden@a.example:8443/x%2fy?token=hidden#hidden"}`: {
			URL: "https://a.example:8443/x%2fy",
		},
		`{"PULUMI_CI_STACK": "hidden", "PULUMI_CI_PROJECT": "shown"},
			"cmwaSecretVariables": ["A", "PULUMI_CI_STACK"]`: {Project: "shown"},
		`{"PULUMI_CI_STACK": 7, "PULUMI_CI_PROJECT": {"a": 1}}, "cmwaSecretVariables": [7]`: {},
		`{"PULUMI_CI_BUILD_URL": "javascript:alert(1)"}`:                                    {},
		`{"PULUMI_CI_BUILD_URL": "/only/a/path"}`:                                           {},
	} {
		d, err := ReadDefinition([]byte(`{"steps": [{}], "env": ` + text + `}`))
		noError(t, err)
		if d.Work != want {
			t.Errorf("%.100s is read as %+v, want %+v", text, d.Work, want)
		}
	}
}
