package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// readFrom reads an environment, and returns the lines of its error and its notices.
func readFrom(vars map[string]string) (env environment, notices, problems []string) {
	names := []string{}
	for name := range vars {
		names = append(names, name)
	}
	slices.Sort(names)
	env, notices, err := readEnvironment(names, func(name string) (string, bool) {
		value, found := vars[name]
		return value, found
	})
	if err != nil {
		problems = strings.Split(err.Error(), "\n")
		if cli.Code(err) != cli.ExitUsage {
			problems = append(problems, "the exit code is not 2")
		}
	}
	return env, notices, problems
}

// TestReadEnvironment tests every variable with values that are missing, empty, good and bad.
func TestReadEnvironment(t *testing.T) {
	const (
		fine    = iota // is stored
		noted          // is stored, and the log gets a line
		refusal        // ends the start
	)
	const some = "zq7" // a value that is in no message
	cases := map[string]struct {
		outcome int
		good    string
		bad     []string
		problem string // of the bad values
	}{
		"PULUMI_API_CONTAINER_MODE": {fine, "fUlL", []string{"API", "jobs"}, "must be FULL: one process"},
		"PULUMI_LICENSE_KEY":        {noted, some, nil, "the service needs no licence"},
		"PULUMI_ENTERPRISE":         {noted, "true", nil, "the service needs no licence"},
		"PULUMI_API_DOMAIN": {fine, "zq7.example:8443", []string{
			"https://zq7", "zq7/x", "zq7:99999", "zq7:x", "u@zq7", ":80", "z q7", "zq7?x",
		}, "must be HOST or HOST:PORT"},
		"PULUMI_CONSOLE_DOMAIN": {fine, "[::1]:3000", []string{"http://zq7:3000"}, "must be HOST"},
		"PORT":                  {fine, "65535", []string{"0", "65536", "-1", "8o80", "80 80"}, "from 1 to 65535"},

		"PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE": {fine, "zq7/zq7:3", []string{"ZQ7", "a b"}, "reference of an image"},

		"PULUMI_DATA_PATH":           {noted, some, nil, "use --data"},
		"PULUMI_LOCAL_DATABASE_NAME": {noted, some, nil, "start script"},
		"PULUMI_LOCAL_DATABASE_PORT": {noted, some, nil, "start script"},

		"PULUMI_DATABASE_ENDPOINT":      {refusal, some, nil, "MySQL is not supported yet"},
		"PULUMI_DATABASE_NAME":          {refusal, some, nil, "MySQL is not supported yet"},
		"PULUMI_DATABASE_USER_NAME":     {refusal, some, nil, "MySQL is not supported yet"},
		"PULUMI_DATABASE_USER_PASSWORD": {refusal, some, nil, "MySQL is not supported yet"},
		"DATABASE_CA_CERTIFICATE":       {refusal, some, nil, "MySQL is not supported yet"},
		"DATABASE_MIN_TLS_VERSION":      {refusal, some, nil, "MySQL is not supported yet"},
		"MYSQL_ROOT_USERNAME":           {noted, some, nil, "migrates its own database"},
		"MYSQL_ROOT_PASSWORD":           {noted, some, nil, "migrates its own database"},
		"MYSQL_ROOT_CREDENTIALS":        {noted, some, nil, "migrates its own database"},
		"MYSQL_ALLOW_EMPTY_PASSWORD":    {noted, some, nil, "migrates its own database"},
		"MYSQL_PORT":                    {noted, some, nil, "migrates its own database"},
		"PULUMI_DATABASE_PING_ENDPOINT": {noted, some, nil, "migrates its own database"},
		"RUN_MIGRATIONS_EXTERNALLY":     {noted, some, nil, "migrates its own database"},
		"SKIP_CREATE_DB_USER":           {noted, some, nil, "migrates its own database"},
		"METADATA_LOCK_WAIT_TIMEOUT":    {noted, some, nil, "migrates its own database"},
		"METADATA_LOCK_RETRIES":         {noted, some, nil, "migrates its own database"},
		"MIGRATIONS_TABLE_NAME":         {noted, some, nil, "migrates its own database"},

		"PULUMI_LOCAL_OBJECTS":                          {fine, "/zq7", []string{"zq7"}, "must be an absolute path"},
		"PULUMI_POLICY_PACK_LOCAL_HTTP_OBJECTS":         {noted, "/zq7", []string{"./zq7"}, "must be an absolute path"},
		"PULUMI_CHECKPOINT_BLOB_STORAGE_ENDPOINT":       {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_ENGINE_EVENTS_BLOB_STORAGE_ENDPOINT":    {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_SERVICE_METADATA_BLOB_STORAGE_ENDPOINT": {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_POLICY_PACK_BLOB_STORAGE_ENDPOINT":      {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_OBJECTS_BUCKET":                         {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_POLICY_PACK_BUCKET":                     {refusal, some, nil, "buckets are not supported yet"},
		"PULUMI_REGISTRY_PUBLIC_BLOB_STORAGE_ENDPOINT":  {noted, some, nil, "no registry"},
		"PULUMI_REGISTRY_PRIVATE_BLOB_STORAGE_ENDPOINT": {noted, some, nil, "no registry"},
		"AZURE_STORAGE_ACCOUNT":                         {noted, some, nil, "no bucket"},
		"AZURE_STORAGE_KEY":                             {noted, some, nil, "no bucket"},
		"AZURE_STORAGE_DOMAIN":                          {noted, some, nil, "no bucket"},

		"PULUMI_LOCAL_KEYS":           {fine, "/zq7", []string{"zq7"}, "must be an absolute path"},
		"PULUMI_KMS_KEY":              {refusal, some, nil, "key services are not supported yet"},
		"PULUMI_AZURE_KV_URI":         {refusal, some, nil, "key services are not supported yet"},
		"PULUMI_AZURE_KV_KEY_NAME":    {refusal, some, nil, "key services are not supported yet"},
		"PULUMI_AZURE_KV_KEY_VERSION": {refusal, some, nil, "key services are not supported yet"},

		"AWS_REGION":            {noted, some, nil, "no bucket"},
		"AWS_ACCESS_KEY_ID":     {noted, some, nil, "no bucket"},
		"AWS_SECRET_ACCESS_KEY": {noted, some, nil, "no bucket"},
		"AWS_SESSION_TOKEN":     {noted, some, nil, "no bucket"},
		"AWS_PROFILE":           {noted, some, nil, "no bucket"},
		"AWS_ROLE_ARN":          {noted, some, nil, "no bucket"},
		"AZURE_CLIENT_ID":       {noted, some, nil, "no bucket"},
		"AZURE_CLIENT_SECRET":   {noted, some, nil, "no bucket"},
		"AZURE_TENANT_ID":       {noted, some, nil, "no bucket"},
		"AZURE_SUBSCRIPTION_ID": {noted, some, nil, "no bucket"},

		"API_TLS_CERTIFICATE": {fine, some, nil, ""},
		"API_TLS_PRIVATE_KEY": {fine, some, nil, ""},
		"API_MIN_TLS_VERSION": {fine, "1.3", []string{"1.1", "TLSv1.2"}, "must be one of 1.2, 1.3"},

		"METRICS_WEBHOOK_SECRET":      {fine, some, nil, ""},
		"OTEL_EXPORTER_OTLP_ENDPOINT": {noted, "http://zq7:4317", []string{"zq7:4317", "ftp://zq7"}, "must be a URL"},
		"OTEL_EXPORTER_OTLP_PROTOCOL": {noted, "http/protobuf", []string{"udp"}, "must be one of grpc, http"},
		"PULUMI_ENABLE_DEPRECATED_METRICS": {
			noted, "false", []string{"yes"}, "must be one of true, false",
		},

		"PULUMI_AUDIT_LOGS_DYNAMO_TABLE": {refusal, some, nil, "DynamoDB are not supported yet"},
		"SMTP_SERVER":                    {noted, "zq7:25", []string{"zq7", ":25", "zq7:0"}, "must be HOST:PORT"},
		"SMTP_USERNAME":                  {noted, some, nil, "sends no mail"},
		"SMTP_PASSWORD":                  {noted, some, nil, "sends no mail"},
		"SMTP_GENERIC_SENDER":            {noted, some, nil, "sends no mail"},
		"PULUMI_DISABLE_EMAIL_LOGIN":     {noted, "true", nil, "sign in with tokens"},
		"PULUMI_DISABLE_EMAIL_SIGNUP":    {noted, "true", nil, "sign in with tokens"},
		"RECAPTCHA_SECRET_KEY":           {noted, some, nil, "sign in with tokens"},
		"GITHUB_OAUTH_ENDPOINT":          {noted, "https://zq7", []string{"zq7"}, "must be a URL"},
		"GITHUB_API_ENDPOINT":            {noted, "https://zq7/", []string{"zq7"}, "must be a URL"},
		"GITLAB_OAUTH_ID":                {noted, some, nil, "sign in with tokens"},
		"GITLAB_OAUTH_SECRET":            {noted, some, nil, "sign in with tokens"},
		"GITLAB_OAUTH_ENDPOINT":          {noted, "https://zq7", []string{"zq7"}, "must be a URL"},
		"SAML_CERTIFICATE_PUBLIC_KEY":    {noted, some, nil, "sign in with tokens"},
		"SAML_CERTIFICATE_PRIVATE_KEY":   {noted, some, nil, "sign in with tokens"},
		"PULUMI_SEARCH_DOMAIN":           {noted, some, nil, "no search"},
		"PULUMI_SEARCH_USER":             {noted, some, nil, "no search"},
		"PULUMI_SEARCH_PASSWORD":         {noted, some, nil, "no search"},

		"PULUMI_DISABLE_ESC_SSRF_PROTECTION":          {noted, "true", nil, "no registry"},
		"PULUMI_ENGINE_EVENTS_SCHEMA_V2":              {noted, "true", nil, "one form of events"},
		"PULUMI_ENGINE_EVENTS_SCHEMA_V2_LEGACY_WRITE": {noted, "true", nil, "one form of events"},
	}

	// partners returns the values of the variables that must be set together with a variable.
	partners := func(name string) map[string]string {
		vars := map[string]string{}
		for _, group := range together() {
			if slices.Contains(group, name) {
				for _, other := range group {
					vars[other] = cases[other].good
				}
			}
		}
		return vars
	}
	// about returns the lines for a variable, and checks that no line contains a value.
	about := func(t *testing.T, name string, lines []string) (found []string) {
		t.Helper()
		for _, line := range lines {
			if strings.Contains(strings.ToLower(line), some) {
				t.Errorf("%q contains a value", line)
			}
			if strings.HasPrefix(line, name+" ") {
				found = append(found, line)
			}
		}
		return found
	}

	for _, v := range variables() {
		c, found := cases[v.name]
		if !found {
			t.Errorf("no case for %s", v.name)
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			for name, vars := range map[string]map[string]string{
				"missing": {}, "empty": {v.name: ""}, "white space": {v.name: " \t\n"},
			} {
				env, notices, problems := readFrom(vars)
				if len(env)+len(notices)+len(problems) > 0 {
					t.Errorf("%s: got %v, %q, %q", name, env, notices, problems)
				}
			}

			forms := []string{v.name}
			vars := partners(v.name)
			vars[v.name] = " " + c.good + "\n"
			sets := []map[string]string{vars}
			if v.secret {
				file := filepath.Join(t.TempDir(), "secret")
				if err := os.WriteFile(file, []byte(c.good+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				vars := partners(v.name)
				delete(vars, v.name)
				vars[v.name+"_FILE"] = file
				forms, sets = append(forms, v.name+"_FILE"), append(sets, vars)
			}
			for i, vars := range sets {
				env, notices, problems := readFrom(vars)
				notes, refusals := about(t, v.name, notices), about(t, v.name, problems)
				ok := map[int]bool{
					fine:    env.get(v.name) == c.good && len(notes) == 0 && len(problems) == 0,
					noted:   env.get(v.name) == c.good && len(notes) == 1 && len(problems) == 0,
					refusal: env == nil && len(problems) == 1 && len(refusals) == 1,
				}[c.outcome]
				if !ok {
					t.Errorf("%s with a good value: got %q, %q, %q", forms[i], env.get(v.name), notices, problems)
				}
				reason := strings.Join(append(notes, refusals...), "")
				if c.bad == nil && c.problem != "" && !strings.Contains(reason, c.problem) {
					t.Errorf("%s: got %q, %q, want %q", forms[i], notes, refusals, c.problem)
				}
			}
			for _, bad := range c.bad {
				vars := partners(v.name)
				vars[v.name] = bad
				_, _, problems := readFrom(vars)
				if lines := about(t, v.name, problems); len(lines) != 1 || !strings.Contains(lines[0], c.problem) {
					t.Errorf("%q: got %q, want %q", bad, problems, c.problem)
				}
			}
		})
	}
}

func TestReadEnvironmentConflicts(t *testing.T) {
	directory := t.TempDir()
	empty, large := filepath.Join(directory, "empty"), filepath.Join(directory, "large")
	for file, size := range map[string]int{empty: 0, large: maxSecretFile + 1} {
		if err := os.WriteFile(file, []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const secretName, secretFile = "METRICS_WEBHOOK_SECRET", "METRICS_WEBHOOK_SECRET_FILE"
	const group = "API_TLS_CERTIFICATE, API_TLS_PRIVATE_KEY, API_MIN_TLS_VERSION: " +
		"set all of them, or unset them; not set: "
	for name, c := range map[string]struct {
		vars map[string]string
		want []string
	}{
		"a secret and its file": {
			map[string]string{secretName: "a", secretFile: empty},
			[]string{secretName + " and " + secretFile + " are both set: unset one of them"},
		},
		"a file that is missing": {
			map[string]string{secretFile: filepath.Join(directory, "none")},
			[]string{secretName + " cannot be read from the file of " + secretFile + ": no such file or directory"},
		},
		"a file that is empty": {
			map[string]string{secretFile: empty},
			[]string{secretName + " cannot be read from the file of " + secretFile + ": it is empty"},
		},
		"a file that is too large": {
			map[string]string{secretFile: large},
			[]string{secretName + " cannot be read from the file of " + secretFile + ": it is larger than 64 KiB"},
		},
		"a directory": {
			map[string]string{secretFile: directory},
			[]string{secretName + " cannot be read from the file of " + secretFile + ": not a regular file"},
		},
		"a certificate without its key": {
			map[string]string{"API_TLS_CERTIFICATE": "a"},
			[]string{group + "API_TLS_PRIVATE_KEY, API_MIN_TLS_VERSION"},
		},
		"half of a key of AWS": {
			map[string]string{"AWS_SECRET_ACCESS_KEY": "a"},
			[]string{"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY: set all of them, or unset them; " +
				"not set: AWS_ACCESS_KEY_ID"},
		},
		"all problems at once": {
			map[string]string{"PORT": "x", "PULUMI_KMS_KEY": "a", "PULUMI_API_DOMAIN": "http://a"},
			[]string{
				"PORT must be a number from 1 to 65535",
				"PULUMI_API_DOMAIN must be HOST or HOST:PORT, without a scheme and without a path",
				"PULUMI_KMS_KEY is set, but key services are not supported yet: unset it, " +
					"and use PULUMI_LOCAL_KEYS or --data",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, problems := readFrom(c.vars); !slices.Equal(problems, c.want) {
				t.Errorf("got %q, want %q", problems, c.want)
			}
		})
	}
}

func TestReadEnvironmentNotices(t *testing.T) {
	const unknown = " is not a variable of this service"
	for name, want := range map[string]string{
		"PULUMI_API_DOMIAN":        "PULUMI_API_DOMIAN" + unknown + ": did you mean PULUMI_API_DOMAIN?",
		"PULUMI_SOMETHING_ELSE":    "PULUMI_SOMETHING_ELSE" + unknown,
		"PULUMI_LICENSE_KEY_FILES": "PULUMI_LICENSE_KEY_FILES" + unknown + ": did you mean PULUMI_LICENSE_KEY_FILE?",
		"PULUMI_ACCESS_TOKEN":      "", "PULUMI_CONFIG_PASSPHRASE_FILE": "", "PULUMI_AGENT_TOKEN": "", "HOME": "",
	} {
		_, notices, problems := readFrom(map[string]string{name: "zq7"})
		if got := strings.Join(append(notices, problems...), "\n"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	_, notices, _ := readFrom(map[string]string{"PULUMI_API_CONTAINER_MODE": "HALF"})
	want := "PULUMI_API_CONTAINER_MODE is not FULL, API or JOBS: the mode is FULL"
	if !slices.Equal(notices, []string{want}) {
		t.Errorf("an unknown mode: got %q, want %q", notices, want)
	}
}
