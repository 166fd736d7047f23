package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fetchCredentials runs the step that gets credentials, and returns its output, the variables that it sets, and its
// error.
func fetchCredentials(t *testing.T, settings string, env ...string) (output string, set map[string]string, err error) {
	t.Helper()
	spec := newJobSpec(t, "update", `{"operationContext":{"oidc":`+settings+`}}`)
	d, err := compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	if d.Steps[1].Name != stepCredentials {
		t.Fatalf("step 1 is %s, want %s", d.Steps[1].Name, stepCredentials)
	}
	file := filepath.Join(t.TempDir(), "PULUMI_ENV")
	output, err = sh(t, d.Steps[1].Run, append(env, "PULUMI_ENV_FILE="+file, "TMPDIR="+t.TempDir())...)
	text, _ := os.ReadFile(file)
	set = map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		set[name] = value
	}
	return output, set, err
}

// TestCredentialsScriptAWS exchanges the token at a server that takes the place of AWS STS.
func TestCredentialsScriptAWS(t *testing.T) {
	const token = "header.body+/=.signature"
	var mu sync.Mutex // of the following
	var form map[string][]string
	code, answer := 200, `{"AssumeRoleWithWebIdentityResponse": {"AssumeRoleWithWebIdentityResult": {"Credentials": {
		"AccessKeyId": "AKIA1", "SecretAccessKey": "se/cr+et=", "SessionToken": "session=="}}}}`
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.ParseForm() == nil {
			form = r.PostForm
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	defer sts.Close()
	env := []string{"PULUMI_OIDC_TOKEN=" + token, "AWS_ENDPOINT_URL_STS=" + sts.URL}
	settings := `{"aws":{"roleArn":"arn:aws:iam::1:role/it's","sessionName":"s-1","policyArns":["arn:p"],
		"duration":"1h"}}`

	output, set, err := fetchCredentials(t, settings, env...)
	if err != nil {
		t.Fatalf("the step failed: %v\n%s", err, output)
	}
	want := map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "se/cr+et=", "AWS_SESSION_TOKEN": "session==",
	}
	if diff := cmp.Diff(want, set); diff != "" {
		t.Errorf("the step sets other variables:\n%s", diff)
	}
	wantForm := map[string][]string{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "WebIdentityToken": {token},
		"RoleArn": {"arn:aws:iam::1:role/it's"}, "RoleSessionName": {"s-1"}, "DurationSeconds": {"3600"},
		"PolicyArns.member.1.arn": {"arn:p"},
	}
	mu.Lock()
	if diff := cmp.Diff(wantForm, form); diff != "" {
		t.Errorf("the step sends another form:\n%s", diff)
	}
	mu.Unlock()
	if strings.Contains(output, "se/cr") || strings.Contains(output, token) {
		t.Errorf("the log shows a secret:\n%s", output)
	}

	mu.Lock()
	code, answer = 400, `{"Error": {"Code": "InvalidIdentityToken", "Message": "No OpenIDConnect provider found"}}`
	mu.Unlock()
	output, set, err = fetchCredentials(t, settings, env...)
	if err == nil || len(set) > 0 || !strings.Contains(output, "status 400: No OpenIDConnect provider found") {
		t.Errorf("the refusal of AWS gives error %v, variables %v, log %q", err, set, output)
	}
}

func TestCredentialsScriptOthers(t *testing.T) {
	settings := `{"azure":{"clientId":"c","tenantId":"t","subscriptionId":"s"},
		"gcp":{"projectId":"123","region":"eu","workloadPoolId":"w","providerId":"p","serviceAccount":"a@b",
			"tokenLifetime":"90s"}}`
	output, set, err := fetchCredentials(t, settings, "PULUMI_OIDC_TOKEN=the.token")
	if err != nil {
		t.Fatalf("the step failed: %v\n%s", err, output)
	}
	var google struct {
		Audience      string `json:"audience"`
		Impersonation struct {
			Seconds int `json:"token_lifetime_seconds"`
		} `json:"service_account_impersonation"`
		Source struct{ File string } `json:"credential_source"`
	}
	if err := json.Unmarshal([]byte(set["GOOGLE_CREDENTIALS"]), &google); err != nil {
		t.Fatalf("GOOGLE_CREDENTIALS is no JSON: %v: %s", err, set["GOOGLE_CREDENTIALS"])
	}
	const audience = "//iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/w/providers/p"
	token, err := os.ReadFile(google.Source.File)
	if err != nil || string(token) != "the.token" || google.Audience != audience || google.Impersonation.Seconds != 90 {
		t.Errorf("credentials %+v with the token %q, %v", google, token, err)
	}
	delete(set, "GOOGLE_CREDENTIALS")
	want := map[string]string{
		"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t", "ARM_SUBSCRIPTION_ID": "s", "ARM_USE_OIDC": "true",
		"ARM_OIDC_TOKEN": "the.token", "GOOGLE_REGION": "eu",
	}
	if diff := cmp.Diff(want, set); diff != "" {
		t.Errorf("the step sets other variables:\n%s", diff)
	}

	output, _, err = fetchCredentials(t, settings)
	if err == nil || !strings.Contains(output, "the job has no OIDC token") {
		t.Errorf("without a token: %v, %q", err, output)
	}
}
