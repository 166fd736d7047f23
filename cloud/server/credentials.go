package server

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// oidcSettings is how a job gets credentials of cloud providers for its OIDC token.
type oidcSettings struct {
	AWS *struct {
		Role     string         `json:"roleArn"`
		Session  string         `json:"sessionName"`
		Policies []string       `json:"policyArns"`
		Duration cloud.Duration `json:"duration"`
	} `json:"aws"`
	Azure *struct {
		Client       string `json:"clientId"`
		Tenant       string `json:"tenantId"`
		Subscription string `json:"subscriptionId"`
	} `json:"azure"`
	GCP *struct {
		Project  string         `json:"projectId"`
		Region   string         `json:"region"`
		Pool     string         `json:"workloadPoolId"`
		Provider string         `json:"providerId"`
		Account  string         `json:"serviceAccount"`
		Lifetime cloud.Duration `json:"tokenLifetime"`
	} `json:"gcp"`
}

func (o oidcSettings) empty() bool { return o.AWS == nil && o.Azure == nil && o.GCP == nil }

// credentialsPrologue fails without a token, and defines set, which sets a variable of the later steps. The token is
// passed to programs by their standard input or by a file, never as an argument.
const credentialsPrologue = `set -e
umask 077
[ -n "$PULUMI_OIDC_TOKEN" ] || { echo 'the job has no OIDC token' >&2; exit 1; }
set_variable() { printf '%s=%s\n' "$1" "$2" >>"${PULUMI_ENV_FILE:-${PULUMI_WORKFLOW_ROOT%/}/PULUMI_ENV}"; }
`

// awsScript exchanges the token for credentials of a role (AWS STS API reference, AssumeRoleWithWebIdentity).
// AWS_ENDPOINT_URL_STS is the variable of the AWS SDKs for another endpoint. The arguments of curl follow it.
const awsScript = `answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
status=$(printf '%%s' "$PULUMI_OIDC_TOKEN" | curl --silent --show-error --max-time 60 --retry 3 \
  --output "$answer" --write-out '%%{http_code}' --header 'Accept: application/json' \
  --data-urlencode Action=AssumeRoleWithWebIdentity --data-urlencode Version=2011-06-15 \
  --data-urlencode WebIdentityToken@- %s \
  "${AWS_ENDPOINT_URL_STS:-https://sts.amazonaws.com}/")
field() { tr -d '\n' <"$answer" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"; }
[ "$status" = 200 ] || { echo "AWS refuses the OIDC token with status $status: $(field Message)" >&2; exit 1; }
set_variable AWS_ACCESS_KEY_ID "$(field AccessKeyId)"
set_variable AWS_SECRET_ACCESS_KEY "$(field SecretAccessKey)"
set_variable AWS_SESSION_TOKEN "$(field SessionToken)"
echo 'The job has credentials of the AWS role.'
`

// credentialsScript returns the script of the step that gets the credentials. Its errors name the setting.
func credentialsScript(o oidcSettings) (string, error) {
	script := credentialsPrologue
	if o.AWS != nil {
		arguments, err := o.awsArguments()
		if err != nil {
			return "", err
		}
		script += fmt.Sprintf(awsScript, arguments)
	}
	if azure := o.Azure; azure != nil {
		if err := required("azure", map[string]string{
			"clientId": azure.Client, "tenantId": azure.Tenant, "subscriptionId": azure.Subscription,
		}); err != nil {
			return "", err
		}
		script += "set_variable ARM_CLIENT_ID " + printable.QuoteShell(azure.Client) + "\n" +
			"set_variable ARM_TENANT_ID " + printable.QuoteShell(azure.Tenant) + "\n" +
			"set_variable ARM_SUBSCRIPTION_ID " + printable.QuoteShell(azure.Subscription) + "\n" +
			"set_variable ARM_USE_OIDC true\n" +
			`set_variable ARM_OIDC_TOKEN "$PULUMI_OIDC_TOKEN"` + "\n" +
			"echo 'The job has the identity of the Azure application.'\n"
	}
	if o.GCP != nil {
		part, err := o.gcpScript()
		if err != nil {
			return "", err
		}
		script += part
	}
	return script, nil
}

// awsSession is the form of the name of a session (AWS STS API reference, RoleSessionName).
var awsSession = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

func (o oidcSettings) awsArguments() (string, error) {
	aws := *o.AWS
	if aws.Session == "" {
		aws.Session = "pulumi-deploy"
	}
	lines := map[string]string{"roleArn": aws.Role, "sessionName": aws.Session}
	for i, policy := range aws.Policies {
		lines[fmt.Sprintf("policyArns[%d]", i)] = policy
	}
	if err := required("aws", lines); err != nil {
		return "", err
	}
	if !awsSession.MatchString(aws.Session) {
		return "", badRequest("operationContext.oidc.aws.sessionName must have 2 to 64 letters, digits or +=,.@_-")
	}
	arguments := []string{"RoleArn=" + aws.Role, "RoleSessionName=" + aws.Session}
	for i, policy := range aws.Policies {
		arguments = append(arguments, fmt.Sprintf("PolicyArns.member.%d.arn=%s", i+1, policy))
	}
	if aws.Duration != 0 {
		seconds, err := wholeSeconds("aws.duration", aws.Duration)
		if err != nil {
			return "", err
		}
		arguments = append(arguments, "DurationSeconds="+strconv.FormatInt(seconds, 10))
	}
	for i, argument := range arguments {
		arguments[i] = "--data-urlencode " + printable.QuoteShell(argument)
	}
	return strings.Join(arguments, " "), nil
}

// gcpScript writes the configuration of an external account (Google Cloud documentation, "Workload Identity
// Federation"), with which Google's libraries exchange the token in a file.
func (o oidcSettings) gcpScript() (string, error) {
	gcp := *o.GCP
	if err := required("gcp", map[string]string{
		"projectId": gcp.Project, "workloadPoolId": gcp.Pool, "providerId": gcp.Provider, "serviceAccount": gcp.Account,
	}); err != nil {
		return "", err
	}
	account := map[string]any{
		"type": "external_account",
		"audience": "//iam.googleapis.com/projects/" + gcp.Project + "/locations/global/workloadIdentityPools/" +
			gcp.Pool + "/providers/" + gcp.Provider,
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url":          "https://sts.googleapis.com/v1/token",
		"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" +
			gcp.Account + ":generateAccessToken",
		"credential_source": map[string]string{"file": "TOKEN_FILE"},
	}
	if gcp.Lifetime != 0 {
		seconds, err := wholeSeconds("gcp.tokenLifetime", gcp.Lifetime)
		if err != nil {
			return "", err
		}
		account["service_account_impersonation"] = map[string]int64{"token_lifetime_seconds": seconds}
	}
	text, err := json.Marshal(account)
	if err != nil {
		return "", fmt.Errorf("write credentials: %w", err)
	}
	before, after, _ := strings.Cut(string(text), "TOKEN_FILE")
	script := "token_file=$(mktemp)\n" + `printf '%s' "$PULUMI_OIDC_TOKEN" >"$token_file"` + "\n" +
		"set_variable GOOGLE_CREDENTIALS " + printable.QuoteShell(before) + `"$token_file"` +
		printable.QuoteShell(after) + "\n"
	if gcp.Region != "" {
		if err := required("gcp", map[string]string{"region": gcp.Region}); err != nil {
			return "", err
		}
		script += "set_variable GOOGLE_REGION " + printable.QuoteShell(gcp.Region) + "\n"
	}
	return script + "echo 'The job has the identity of the Google Cloud service account.'\n", nil
}

// required refuses values that are empty, or that cannot be a line of PULUMI_ENV or a part of a URL.
func required(provider string, values map[string]string) error {
	for name, value := range values {
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return badRequest("operationContext.oidc.%s.%s must be a text without spaces", provider, name)
		}
	}
	return nil
}

func wholeSeconds(name string, d cloud.Duration) (int64, error) {
	if seconds := int64(time.Duration(d) / time.Second); seconds > 0 && time.Duration(d)%time.Second == 0 {
		return seconds, nil
	}
	return 0, badRequest("operationContext.oidc.%s must be a number of whole seconds, such as 1h", name)
}
