package server

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cloud"
)

var update = flag.Bool("update", false, "write the golden files")

// newJobSpec returns a jobSpec with settings in JSON.
func newJobSpec(t testing.TB, operation, text string) jobSpec {
	t.Helper()
	plain, err := decodeTree([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	read, err := readSettings(plain)
	if err != nil {
		t.Fatal(err)
	}
	return jobSpec{
		organization: "org", project: "shop", stack: "prod", id: "0a1b", version: 7,
		operation: operation, settings: read, defaultImage: "pulumi/pulumi",
	}
}

// formatDefinition returns a definition in a readable form.
func formatDefinition(t testing.TB, d cloud.Definition) string {
	t.Helper()
	var b strings.Builder
	for i, s := range d.Steps {
		fmt.Fprintf(&b, "-- step %d: %s --\n%s", i, s.Name, s.Run)
		if s.Run != "" && !strings.HasSuffix(s.Run, "\n") {
			b.WriteString("\n")
		}
	}
	d.Steps = nil
	remaining, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s-- rest --\n%s\n", &b, remaining)
}

func TestCompile(t *testing.T) {
	t.Run("the definitions are those of the golden files", func(t *testing.T) {
		for name, c := range map[string]struct{ operation, settings string }{
			"bare": {"preview", `{}`},
			"update": {"update", `{"sourceContext":{"git":{"repoUrl":"https://git.example.com/shop.git",` +
				`"branch":"refs/heads/main","repoDir":"/infra/web"}},"operationContext":{` +
				`"preRunCommands":["make it's",` +
				`"echo $(date)"],"environmentVariables":{"A":"1","B":{"secret":"two"}}}}`},
			"own-backend": {"update", `{"operationContext":{"environmentVariables":{` +
				`"PULUMI_BACKEND_URL":"file:///state"},"options":{"skipInstallDependencies":true}}}`},
			"commit-token": {"refresh", `{"sourceContext":{"git":{"repoUrl":"https://git.example.com/shop.git",` +
				`"commit":"abcdef12","gitAuth":{"accessToken":{"secret":"s3cret"}}}},"executorContext":{` +
				`"executorImage":{"reference":"img:1","credentials":{"username":"u","password":{"secret":"pw"}}},` +
				`"executorRootPath":"/home/it's me/"}}`},
			"tag-basic": {"destroy", `{"sourceContext":{"git":{"repoUrl":"https://git.example.com/shop.git",` +
				`"tag":"refs/tags/v1","gitAuth":{"basicAuth":{"userName":"u","password":{"secret":"s3cret"}}}}},` +
				`"operationContext":{"options":{"deleteAfterDestroy":true,"skipInstallDependencies":true,` +
				`"shell":"bash"}}}`},
			"pull-ssh": {"detect-drift",
				`{"sourceContext":{"git":{"repoUrl":"git@git.example.com:shop.git","branch":"refs/pull/3/head",` +
					`"gitAuth":{"sshAuth":{"sshPrivateKey":{"secret":"s3cret"}}}}},"operationContext":{"options":{` +
					`"remediateIfDriftDetected":true,"skipInstallDependencies":true}},"executorContext":{` +
					`"executorImage":"img:2"}}`},
			"remediate":     {"remediate-drift", `{"operationContext":{"options":{"skipInstallDependencies":true}}}`},
			"detect-simply": {"detect-drift", `{"operationContext":{"options":{"skipInstallDependencies":true}}}`},
		} {
			t.Run(name, func(t *testing.T) {
				d, err := compile(newJobSpec(t, c.operation, c.settings))
				if err != nil {
					t.Fatal(err)
				}
				got, path := formatDefinition(t, d), filepath.Join("testdata", name+".golden")
				if strings.Contains(strings.Split(got, "-- rest --")[0], "s3cret") {
					t.Errorf("a script shows a secret:\n%s", got)
				}
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("the job differs from %s (-update writes it):\n%s", path, diff)
				}
			})
		}
	})

	t.Run("rejects invalid job specs", func(t *testing.T) {
		for name, c := range map[string]struct{ operation, settings, want string }{
			"no operation":         {"", `{}`, "operation is missing"},
			"an unknown operation": {"up", `{}`, "operation must be one of update"},
			"branch and commit": {"update", `{"sourceContext":{"git":{"repoUrl":"x","branch":"b","commit":"abcd"}}}`,
				"not both"},
			"a commit that is not a hash": {"update", `{"sourceContext":{"git":{"repoUrl":"x","commit":"--help"}}}`,
				"hexadecimal"},
			"a directory outside of the repository": {"update",
				`{"sourceContext":{"git":{"repoUrl":"x","repoDir":"a/../../b"}}}`,
				"inside the repository"},
			"no role": {"update", `{"operationContext":{"oidc":{"aws":{"sessionName":"a"}}}}`, "aws.roleArn must be"},
			"a session with a space": {"update",
				`{"operationContext":{"oidc":{"aws":{"roleArn":"a","sessionName":"a b"}}}}`, "aws.sessionName must be"},
			"half a second": {"update",
				`{"operationContext":{"oidc":{"aws":{"roleArn":"a","duration":"0.5s"}}}}`, "whole seconds"},
			"a line break in Azure's tenant": {"update",
				`{"operationContext":{"oidc":{"azure":{"clientId":"a","tenantId":"b\nc","subscriptionId":"d"}}}}`,
				"azure.tenantId must be"},
			"a zero byte": {"update", "{\"sourceContext\":{\"git\":{\"repoUrl\":\"a\\u0000b\"}}}", "zero byte"},
			"a variable with =": {"update", `{"operationContext":{"environmentVariables":{"A=B":"1"}}}`,
				"cannot be a variable"},
			"a zero byte in a value": {"update",
				"{\"operationContext\":{\"environmentVariables\":{\"A\":\"x\\u0000\"}}}",
				"zero byte"},
		} {
			if _, err := compile(newJobSpec(t, c.operation, c.settings)); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got error %v, want %q", name, err, c.want)
			}
		}
	})

	t.Run("custom steps replace the compiled ones", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		w.deploy(at, object{
			"cmwaTimeout": "1h",
			"cmwaSteps": []object{{"name": "one", "run": "echo $(date)", "workingDir": "/tmp", "timeout": "5s"},
				{"run": "x"}},
			"executorContext": object{"executorImage": object{"reference": "img", "credentials": object{"username": "u",
				"password": object{"secret": "pw"}}}},
			"operationContext": object{"environmentVariables": object{"A": object{"secret": "1"}},
				"options": object{"shell": "sh"}},
		})
		c := w.mustClaim(p)
		raw := w.want(200, c.job.JobToken, "GET", "/api/workflow/jobs/"+c.job.JobID, nil, nil)
		var d struct {
			Env            map[string]string // plain strings: some runners refuse other forms
			Image          object
			Shell, Timeout string
			Steps          []struct{ Name, Run, WorkingDir, Timeout string }
		}
		if err := json.Unmarshal([]byte(raw.body), &d); err != nil {
			t.Fatal(err)
		}
		type step = struct{ Name, Run, WorkingDir, Timeout string }
		want := []step{{Name: "Setup"}, {"one", "echo $(date)", "/tmp", "5s"}, {Name: "Step 2", Run: "x"}}
		if diff := cmp.Diff(want, d.Steps); diff != "" || d.Shell != "sh" || d.Timeout != "1h0m0s" ||
			d.Env["A"] != "1" {
			t.Errorf("the definition is %s:\n%s", raw.body, diff)
		}
		diff := cmp.Diff(object{"reference": "img", "credentials": object{"username": "u",
			"password": object{"secret": "pw"}}}, d.Image)
		if diff != "" {
			t.Errorf("the image differs (-want +got):\n%s", diff)
		}
		for _, bad := range []object{{"cmwaSteps": []object{}}, {"cmwaSteps": "x"},
			{"cmwaSteps": []object{{"timeout": "-1s"}}}, steps(1, object{"cmwaTimeout": "1000h"}),
			steps(1, object{"operation": "up"}), {}} {
			w.want(400, w.user, "POST", at, bad, nil)
		}
	})
}
