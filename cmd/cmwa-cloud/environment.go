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

// effect is what a variable does.
type effect int

const (
	honoured effect = iota
	accepted        // the service needs nothing of it
	ignored         // has no effect yet, which changes neither data nor protection
	refused         // ignoring it would lose data or protection
)

// variable is an environment variable of Pulumi's self-hosted service.
type variable struct {
	name   string
	effect effect
	secret bool                     // the value can also be in the file that NAME_FILE names
	check  func(value string) error // nil accepts every value; the error follows the name and contains no value
	note   string                   // why the variable has no effect, or is refused
}

// Notes of more than one variable.
const (
	noMySQL    = "MySQL is not supported yet: unset it, and the database is SQLite in --data"
	noMigrator = "the service migrates its own database at the start"
	noBucket   = "buckets are not supported yet: unset it, and use PULUMI_LOCAL_OBJECTS or --data"
	noKeys     = "key services are not supported yet: unset it, and use PULUMI_LOCAL_KEYS or --data"
	noCloud    = "no bucket and no key service is configured"
	noExport   = "traces are not exported yet"
	noMail     = "the service sends no mail"
	noSignIn   = "people sign in with tokens"
	noSearch   = "there is no search yet"
	noRegistry = "there are no registry and no environments"
	ofScript   = "only a start script reads it: use --data"
	anyEvents  = "the service has one form of events"
)

// variables returns all variables that the service knows. The names are those of Pulumi's documentation and installers.
func variables() []variable {
	return []variable{
		{name: "PULUMI_API_CONTAINER_MODE", check: checkMode},
		{name: "PULUMI_LICENSE_KEY", effect: accepted, secret: true, note: "the service needs no licence"},
		{name: "PULUMI_ENTERPRISE", effect: accepted, note: "the service needs no licence"},
		{name: "PULUMI_API_DOMAIN", check: checkDomain},
		{name: "PULUMI_CONSOLE_DOMAIN", check: checkDomain},
		{name: "PORT", check: checkPort},
		{name: "PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE", check: checkImage},
		{name: "PULUMI_DATA_PATH", effect: ignored, note: ofScript},
		{name: "PULUMI_LOCAL_DATABASE_NAME", effect: ignored, note: ofScript},
		{name: "PULUMI_LOCAL_DATABASE_PORT", effect: ignored, note: ofScript},

		{name: "PULUMI_DATABASE_ENDPOINT", effect: refused, note: noMySQL},
		{name: "PULUMI_DATABASE_NAME", effect: refused, note: noMySQL},
		{name: "PULUMI_DATABASE_USER_NAME", effect: refused, note: noMySQL},
		{name: "PULUMI_DATABASE_USER_PASSWORD", effect: refused, secret: true, note: noMySQL},
		{name: "DATABASE_CA_CERTIFICATE", effect: refused, note: noMySQL},
		{name: "DATABASE_MIN_TLS_VERSION", effect: refused, note: noMySQL},
		{name: "MYSQL_ROOT_USERNAME", effect: ignored, note: noMigrator},
		{name: "MYSQL_ROOT_PASSWORD", effect: ignored, secret: true, note: noMigrator},
		{name: "MYSQL_ROOT_CREDENTIALS", effect: ignored, secret: true, note: noMigrator},
		{name: "MYSQL_ALLOW_EMPTY_PASSWORD", effect: ignored, note: noMigrator},
		{name: "MYSQL_PORT", effect: ignored, note: noMigrator},
		{name: "PULUMI_DATABASE_PING_ENDPOINT", effect: ignored, note: noMigrator},
		{name: "RUN_MIGRATIONS_EXTERNALLY", effect: ignored, note: noMigrator},
		{name: "SKIP_CREATE_DB_USER", effect: ignored, note: noMigrator},
		{name: "METADATA_LOCK_WAIT_TIMEOUT", effect: ignored, note: noMigrator},
		{name: "METADATA_LOCK_RETRIES", effect: ignored, note: noMigrator},
		{name: "MIGRATIONS_TABLE_NAME", effect: ignored, note: noMigrator},

		{name: "PULUMI_LOCAL_OBJECTS", check: checkPath},
		{
			name: "PULUMI_POLICY_PACK_LOCAL_HTTP_OBJECTS", effect: ignored, check: checkPath,
			note: "there are no policy packs",
		},
		{name: "PULUMI_CHECKPOINT_BLOB_STORAGE_ENDPOINT", effect: refused, note: noBucket},
		{name: "PULUMI_ENGINE_EVENTS_BLOB_STORAGE_ENDPOINT", effect: refused, note: noBucket},
		{name: "PULUMI_SERVICE_METADATA_BLOB_STORAGE_ENDPOINT", effect: refused, note: noBucket},
		{name: "PULUMI_POLICY_PACK_BLOB_STORAGE_ENDPOINT", effect: refused, note: noBucket},
		{name: "PULUMI_OBJECTS_BUCKET", effect: refused, note: noBucket},
		{name: "PULUMI_POLICY_PACK_BUCKET", effect: refused, note: noBucket},
		{name: "PULUMI_REGISTRY_PUBLIC_BLOB_STORAGE_ENDPOINT", effect: ignored, note: noRegistry},
		{name: "PULUMI_REGISTRY_PRIVATE_BLOB_STORAGE_ENDPOINT", effect: ignored, note: noRegistry},
		{name: "AZURE_STORAGE_ACCOUNT", effect: ignored, note: noCloud},
		{name: "AZURE_STORAGE_KEY", effect: ignored, secret: true, note: noCloud},
		{name: "AZURE_STORAGE_DOMAIN", effect: ignored, note: noCloud},

		{name: "PULUMI_LOCAL_KEYS", check: checkPath},
		{name: "PULUMI_KMS_KEY", effect: refused, note: noKeys},
		{name: "PULUMI_AZURE_KV_URI", effect: refused, note: noKeys},
		{name: "PULUMI_AZURE_KV_KEY_NAME", effect: refused, note: noKeys},
		{name: "PULUMI_AZURE_KV_KEY_VERSION", effect: refused, note: noKeys},

		{name: "AWS_REGION", effect: ignored, note: noCloud},
		{name: "AWS_ACCESS_KEY_ID", effect: ignored, note: noCloud},
		{name: "AWS_SECRET_ACCESS_KEY", effect: ignored, secret: true, note: noCloud},
		{name: "AWS_SESSION_TOKEN", effect: ignored, secret: true, note: noCloud},
		{name: "AWS_PROFILE", effect: ignored, note: noCloud},
		{name: "AWS_ROLE_ARN", effect: ignored, note: noCloud},
		{name: "AZURE_CLIENT_ID", effect: ignored, note: noCloud},
		{name: "AZURE_CLIENT_SECRET", effect: ignored, secret: true, note: noCloud},
		{name: "AZURE_TENANT_ID", effect: ignored, note: noCloud},
		{name: "AZURE_SUBSCRIPTION_ID", effect: ignored, note: noCloud},

		{name: "API_TLS_CERTIFICATE"},
		{name: "API_TLS_PRIVATE_KEY", secret: true},
		{name: "API_MIN_TLS_VERSION", check: oneOf("1.2", "1.3")},

		{name: "METRICS_WEBHOOK_SECRET", secret: true},
		{name: "OTEL_EXPORTER_OTLP_ENDPOINT", effect: ignored, check: checkURL, note: noExport},
		{
			name: "OTEL_EXPORTER_OTLP_PROTOCOL", effect: ignored, check: oneOf("grpc", "http", "http/protobuf"),
			note: noExport,
		},
		{
			name: "PULUMI_ENABLE_DEPRECATED_METRICS", effect: ignored, check: oneOf("true", "false"),
			note: "metrics are on /metrics",
		},

		{
			name: "PULUMI_AUDIT_LOGS_DYNAMO_TABLE", effect: refused,
			note: "audit logs in DynamoDB are not supported yet: unset it",
		},
		{name: "SMTP_SERVER", effect: ignored, check: checkAddress, note: noMail},
		{name: "SMTP_USERNAME", effect: ignored, note: noMail},
		{name: "SMTP_PASSWORD", effect: ignored, secret: true, note: noMail},
		{name: "SMTP_GENERIC_SENDER", effect: ignored, note: noMail},
		{name: "PULUMI_DISABLE_EMAIL_LOGIN", effect: accepted, note: noSignIn},
		{name: "PULUMI_DISABLE_EMAIL_SIGNUP", effect: accepted, note: noSignIn},
		{name: "RECAPTCHA_SECRET_KEY", effect: ignored, secret: true, note: noSignIn},
		{name: "GITHUB_OAUTH_ENDPOINT", effect: ignored, check: checkURL, note: noSignIn},
		{name: "GITHUB_API_ENDPOINT", effect: ignored, check: checkURL, note: noSignIn},
		{name: "GITLAB_OAUTH_ID", effect: ignored, note: noSignIn},
		{name: "GITLAB_OAUTH_SECRET", effect: ignored, secret: true, note: noSignIn},
		{name: "GITLAB_OAUTH_ENDPOINT", effect: ignored, check: checkURL, note: noSignIn},
		{name: "SAML_CERTIFICATE_PUBLIC_KEY", effect: ignored, note: noSignIn},
		{name: "SAML_CERTIFICATE_PRIVATE_KEY", effect: ignored, secret: true, note: noSignIn},
		{name: "PULUMI_SEARCH_DOMAIN", effect: ignored, note: noSearch},
		{name: "PULUMI_SEARCH_USER", effect: ignored, note: noSearch},
		{name: "PULUMI_SEARCH_PASSWORD", effect: ignored, secret: true, note: noSearch},
		{name: "PULUMI_DISABLE_ESC_SSRF_PROTECTION", effect: ignored, note: noRegistry},
		{name: "PULUMI_ENGINE_EVENTS_SCHEMA_V2", effect: ignored, note: anyEvents},
		{name: "PULUMI_ENGINE_EVENTS_SCHEMA_V2_LEGACY_WRITE", effect: ignored, note: anyEvents},
	}
}

// together lists variables of which either all or none must be set.
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
		case v.effect == refused:
			problems = append(problems, v.name+" is set, but "+v.note)
		case v.effect == honoured:
			env[v.name] = secret.New(value)
		default:
			env[v.name] = secret.New(value)
			notices = append(notices, v.name+" has no effect: "+v.note)
		}
	}

	for _, group := range together() {
		missing := slices.DeleteFunc(slices.Clone(group), func(name string) bool { return env.get(name) != "" })
		if len(missing) > 0 && len(missing) < len(group) {
			problems = append(problems, fmt.Sprintf("%s: set all of them or none; %s is not set",
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
