package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// variable is an environment variable of Pulumi's self-hosted service.
type variable struct {
	name    string
	secret  bool                     // the value can also be in the file that NAME_FILE names
	check   func(value string) error // nil accepts every value; the error follows the name and contains no value
	note    string                   // why the variable has no effect, or is refused; empty if it has an effect
	refused bool                     // ignoring it would lose data or protection
}

// withoutEffect contains variables that the service knows, but does not use.
type withoutEffect struct {
	note    string
	refused bool
	check   func(value string) error
	names   string // separated by white space
	secrets string // also names
}

// Notes of more than one group of variables.
const (
	noExport = "traces are not exported yet"
	noMail   = "the service sends no mail"
	noSignIn = "people sign in with tokens"
)

// unused returns the variables without an effect. The names are those of Pulumi's documentation and installers.
func unused() []withoutEffect {
	return []withoutEffect{
		{note: "the service needs no licence", names: "PULUMI_ENTERPRISE", secrets: "PULUMI_LICENSE_KEY"},
		{
			note:  "only a start script reads it: use --data",
			names: "PULUMI_DATA_PATH PULUMI_LOCAL_DATABASE_NAME PULUMI_LOCAL_DATABASE_PORT",
		},
		{
			note: "MySQL is not supported yet: unset it, and the database is SQLite in --data", refused: true,
			names: `PULUMI_DATABASE_ENDPOINT PULUMI_DATABASE_NAME PULUMI_DATABASE_USER_NAME DATABASE_CA_CERTIFICATE
				DATABASE_MIN_TLS_VERSION`,
			secrets: "PULUMI_DATABASE_USER_PASSWORD",
		},
		{
			note: "the service migrates its own database at the start",
			names: `MYSQL_ROOT_USERNAME MYSQL_ALLOW_EMPTY_PASSWORD MYSQL_PORT PULUMI_DATABASE_PING_ENDPOINT
				RUN_MIGRATIONS_EXTERNALLY SKIP_CREATE_DB_USER METADATA_LOCK_WAIT_TIMEOUT METADATA_LOCK_RETRIES
				MIGRATIONS_TABLE_NAME`,
			secrets: "MYSQL_ROOT_PASSWORD MYSQL_ROOT_CREDENTIALS",
		},
		{note: "there are no policy packs", check: checkPath, names: "PULUMI_POLICY_PACK_LOCAL_HTTP_OBJECTS"},
		{
			note: "buckets are not supported yet: unset it, and use PULUMI_LOCAL_OBJECTS or --data", refused: true,
			names: `PULUMI_CHECKPOINT_BLOB_STORAGE_ENDPOINT PULUMI_ENGINE_EVENTS_BLOB_STORAGE_ENDPOINT
				PULUMI_SERVICE_METADATA_BLOB_STORAGE_ENDPOINT PULUMI_POLICY_PACK_BLOB_STORAGE_ENDPOINT
				PULUMI_OBJECTS_BUCKET PULUMI_POLICY_PACK_BUCKET`,
		},
		{
			note: "key services are not supported yet: unset it, and use PULUMI_LOCAL_KEYS or --data", refused: true,
			names: "PULUMI_KMS_KEY PULUMI_AZURE_KV_URI PULUMI_AZURE_KV_KEY_NAME PULUMI_AZURE_KV_KEY_VERSION",
		},
		{
			note: "no bucket and no key service is configured",
			names: `AZURE_STORAGE_ACCOUNT AZURE_STORAGE_DOMAIN AZURE_CLIENT_ID AZURE_TENANT_ID AZURE_SUBSCRIPTION_ID
				AWS_REGION AWS_ACCESS_KEY_ID AWS_PROFILE AWS_ROLE_ARN`,
			secrets: "AZURE_STORAGE_KEY AZURE_CLIENT_SECRET AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN",
		},
		{note: noExport, check: checkURL, names: "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{note: noExport, check: oneOf("grpc", "http", "http/protobuf"), names: "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{note: "metrics are on /metrics", check: oneOf("true", "false"), names: "PULUMI_ENABLE_DEPRECATED_METRICS"},
		{
			note: "audit logs in DynamoDB are not supported yet: unset it", refused: true,
			names: "PULUMI_AUDIT_LOGS_DYNAMO_TABLE",
		},
		{note: noMail, check: checkAddress, names: "SMTP_SERVER"},
		{note: noMail, names: "SMTP_USERNAME SMTP_GENERIC_SENDER", secrets: "SMTP_PASSWORD"},
		{
			note: noSignIn, check: checkURL,
			names: "GITHUB_OAUTH_ENDPOINT GITHUB_API_ENDPOINT GITLAB_OAUTH_ENDPOINT",
		},
		{
			note: noSignIn,
			names: `PULUMI_DISABLE_EMAIL_LOGIN PULUMI_DISABLE_EMAIL_SIGNUP GITLAB_OAUTH_ID
				SAML_CERTIFICATE_PUBLIC_KEY`,
			secrets: "RECAPTCHA_SECRET_KEY GITLAB_OAUTH_SECRET SAML_CERTIFICATE_PRIVATE_KEY",
		},
		{
			note: "there is no search yet", names: "PULUMI_SEARCH_DOMAIN PULUMI_SEARCH_USER",
			secrets: "PULUMI_SEARCH_PASSWORD",
		},
		{
			note: "there are no registry and no environments",
			names: `PULUMI_REGISTRY_PUBLIC_BLOB_STORAGE_ENDPOINT PULUMI_REGISTRY_PRIVATE_BLOB_STORAGE_ENDPOINT
				PULUMI_DISABLE_ESC_SSRF_PROTECTION`,
		},
		{
			note:  "the service has one form of events",
			names: "PULUMI_ENGINE_EVENTS_SCHEMA_V2 PULUMI_ENGINE_EVENTS_SCHEMA_V2_LEGACY_WRITE",
		},
	}
}

// variables returns all variables that the service knows.
func variables() []variable {
	all := []variable{{name: "PULUMI_API_CONTAINER_MODE", check: checkMode}}
	for _, p := range parameters() {
		if p.variable.name != "" {
			all = append(all, p.variable)
		}
	}
	for _, group := range unused() {
		one := variable{check: group.check, note: group.note, refused: group.refused}
		for _, one.name = range strings.Fields(group.names) {
			all = append(all, one)
		}
		one.secret = true
		for _, one.name = range strings.Fields(group.secrets) {
			all = append(all, one)
		}
	}
	return all
}

// together lists variables that must be set together.
func together() [][]string {
	return [][]string{
		{"API_TLS_CERTIFICATE", "API_TLS_PRIVATE_KEY", "API_MIN_TLS_VERSION"},
		{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"},
		{"GITLAB_OAUTH_ID", "GITLAB_OAUTH_SECRET"},
		{"SAML_CERTIFICATE_PUBLIC_KEY", "SAML_CERTIFICATE_PRIVATE_KEY"},
		{"SMTP_SERVER", "SMTP_GENERIC_SENDER"},
	}
}

// ofClients reports whether an unknown variable is for pulumi or an agent, and not for the service.
func ofClients(name string) bool {
	return strings.HasPrefix(name, "PULUMI_AGENT_") || strings.HasPrefix(name, "PULUMI_CONFIG") ||
		slices.Contains([]string{
			"PULUMI_ACCESS_TOKEN", "PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_EXPERIMENTAL",
			"PULUMI_SKIP_UPDATE_CHECK",
		}, name)
}

// environment contains the variables of the service that are set. White space around the values is cut, and an empty
// value counts as not set, because installers pass every variable that they know.
type environment map[string]secret.String

// get returns a value, or an empty text.
func (e environment) get(name string) string { return e[name].Reveal() }

// readEnvironment reads the variables of the service. Names are those of all variables of the process. The error has a
// line for each problem, and notices are lines for the log. Neither contains a value.
func readEnvironment(
	names []string, lookup func(string) (string, bool),
) (env environment, notices []string, err error) {
	env = environment{}
	var problems []string
	known := map[string]bool{}
	for _, v := range variables() {
		known[v.name] = true
		value, problem := readVariable(v, lookup)
		if v.secret {
			known[v.name+"_FILE"] = true
		}
		if problem == "" && value != "" && v.check != nil {
			if err := v.check(value); err != nil {
				problem = err.Error()
			}
		}
		switch {
		case problem != "":
			problems = append(problems, v.name+" "+problem)
		case value == "":
		case v.refused:
			problems = append(problems, v.name+" is set, but "+v.note)
		default:
			env[v.name] = secret.New(value)
			if v.note != "" {
				notices = append(notices, v.name+" has no effect: "+v.note)
			}
		}
	}

	for _, group := range together() {
		missing := slices.DeleteFunc(slices.Clone(group), func(name string) bool { return env.get(name) != "" })
		if len(missing) > 0 && len(missing) < len(group) {
			problems = append(problems, fmt.Sprintf("%s: set all of them, or unset them; not set: %s",
				strings.Join(group, ", "), strings.Join(missing, ", ")))
		}
	}
	if objects := env.get("PULUMI_LOCAL_OBJECTS"); objects != "" &&
		filepath.Clean(objects) == filepath.Clean(env.get("PULUMI_POLICY_PACK_LOCAL_HTTP_OBJECTS")) {
		problems = append(problems, "PULUMI_LOCAL_OBJECTS and PULUMI_POLICY_PACK_LOCAL_HTTP_OBJECTS must differ")
	}
	if mode := env.get("PULUMI_API_CONTAINER_MODE"); mode != "" && !strings.EqualFold(mode, "FULL") {
		notices = append(notices, "PULUMI_API_CONTAINER_MODE is not FULL, API or JOBS: the mode is FULL")
	}

	for _, name := range names {
		if value, _ := lookup(name); strings.TrimSpace(value) == "" || !strings.HasPrefix(name, "PULUMI_") ||
			known[name] || ofClients(name) {
			continue
		}
		notice := name + " is not a variable of this service"
		if best := command.Closest(name, slices.Collect(maps.Keys(known))); best != "" {
			notice += ": did you mean " + best + "?"
		}
		notices = append(notices, notice)
	}
	if len(problems) > 0 {
		return nil, nil, cli.Usage(errors.New(strings.Join(problems, "\n")))
	}
	return env, notices, nil
}

// maxSecretFile limits the file that a NAME_FILE names, in bytes.
const maxSecretFile = 64 << 10

// readVariable returns the value of a variable, or of the file that NAME_FILE names. A problem follows the name.
func readVariable(v variable, lookup func(string) (string, bool)) (value, problem string) {
	get := func(name string) string {
		text, _ := lookup(name)
		return strings.TrimSpace(text)
	}
	value = get(v.name)
	if !v.secret {
		return value, ""
	}
	path := get(v.name + "_FILE")
	switch {
	case path == "":
		return value, ""
	case value != "":
		return "", "and " + v.name + "_FILE are both set: unset one of them"
	}
	content, err := readLimited(path, maxSecretFile)
	var failure *fs.PathError
	switch {
	case errors.As(err, &failure):
		return "", "cannot be read from the file of " + v.name + "_FILE: " + failure.Err.Error()
	case err != nil:
		return "", fmt.Sprintf("cannot be read from the file of %s_FILE: it is larger than %d KiB", v.name,
			maxSecretFile>>10)
	case strings.TrimSpace(string(content)) == "":
		return "", "cannot be read from the file of " + v.name + "_FILE: it is empty"
	}
	return strings.TrimSpace(string(content)), ""
}

// isPEM reports whether a value is PEM text and not the path of a file.
func isPEM(value string) bool { return strings.Contains(value, "-----BEGIN") }

func checkMode(value string) error {
	if strings.EqualFold(value, "API") || strings.EqualFold(value, "JOBS") {
		return errors.New("must be FULL: one process serves a data directory")
	}
	return nil
}

// checkDomain accepts HOST and HOST:PORT.
func checkDomain(value string) error {
	parsed, err := url.Parse("//" + value)
	if err != nil || parsed.Host != value || parsed.Hostname() == "" ||
		parsed.Port() != "" && checkPort(parsed.Port()) != nil {
		return errors.New("must be HOST or HOST:PORT, without a scheme and without a path")
	}
	return nil
}

func checkPort(value string) error {
	if port, err := strconv.ParseUint(value, 10, 16); err != nil || port == 0 {
		return errors.New("must be a number from 1 to 65535")
	}
	return nil
}

// checkAddress accepts HOST:PORT.
func checkAddress(value string) error {
	if host, port, err := net.SplitHostPort(value); err != nil || host == "" || checkPort(port) != nil {
		return errors.New("must be HOST:PORT")
	}
	return nil
}

func checkImage(value string) error {
	if _, err := reference.ParseNormalizedNamed(value); err != nil {
		return errors.New("must be the reference of an image, such as pulumi/pulumi:3")
	}
	return nil
}

func checkPath(value string) error {
	if !filepath.IsAbs(value) {
		return errors.New("must be an absolute path")
	}
	return nil
}

func checkURL(value string) error {
	if parsed, err := url.Parse(value); err != nil || parsed.Host == "" ||
		parsed.Scheme != "http" && parsed.Scheme != "https" {
		return errors.New("must be a URL that begins with http:// or https://")
	}
	return nil
}

func oneOf(choices ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(choices, value) {
			return fmt.Errorf("must be one of %s", strings.Join(choices, ", "))
		}
		return nil
	}
}
