package runner

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// account is the key file of a Google service account, with an invented key.
const account = `{
  "type": "service_account",
  "project_id": "my-project-123456",
  "private_key_id": "0123456789abcdef0123456789abcdef01234567",
  "private_key": "-----BEGIN PRIVATE KEY-----\n` +
	`MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n` +
	`MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu\n` +
	`NMoSfm76oqFvAp8Gy0iz5sxjZmSnXyCdPEovGhLa0VzMaQ8s+CLOyS56YyCFGeJZ\n` +
	`-----END PRIVATE KEY-----\n",
  "client_email": "robot@my-project-123456.iam.gserviceaccount.com",
  "client_id": "123456789012345678901",
  "auth_uri": "https://accounts.google.com/o/oauth2/auth",
  "token_uri": "https://oauth2.googleapis.com/token",
  "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs",
  "universe_domain": "googleapis.com"
}`

// redacted redacts the secrets of a job with the given environment.
func redacted(t *testing.T, env environ, text string) string {
	t.Helper()
	h := &runtime.Handoff{Token: "token-of-the-job"}
	return newMatcher(patterns(secretsOf(h, &cloud.Definition{}, env))).redact(text)
}

func TestSecretsOf(t *testing.T) {
	var key struct {
		ID    string `json:"private_key_id"`
		Key   string `json:"private_key"`
		Email string `json:"client_email"`
	}
	if err := json.Unmarshal([]byte(account), &key); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(key.Key, "\n")
	oneLine, err := json.Marshal(json.RawMessage(account))
	if err != nil {
		t.Fatal(err)
	}
	nested, err := json.Marshal(map[string]any{"inner": map[string]any{"list": []any{account}}})
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		env    environ
		hidden []string
		shown  []string
	}{
		"private key inside JSON is hidden once it is decoded": {
			env:    environ{"GOOGLE_CREDENTIALS": account},
			hidden: []string{key.Key, lines[1], lines[3], key.ID, base64.StdEncoding.EncodeToString([]byte(key.Key))},
			shown: []string{
				"service_account", "my-project-123456", key.Email, "123456789012345678901", "googleapis.com",
				"https://accounts.google.com/o/oauth2/auth", "https://oauth2.googleapis.com/token",
			},
		},
		"private key inside JSON of one line is hidden": {
			env:    environ{"GOOGLE_CREDENTIALS": string(oneLine)},
			hidden: []string{key.Key, lines[2]}, shown: []string{"service_account", "my-project-123456"},
		},
		"private key inside JSON inside JSON is hidden": {
			env:    environ{"CLOUD_SECRET": string(nested)},
			hidden: []string{key.Key, lines[2]}, shown: []string{"my-project-123456"},
		},
		"values of keys that look secret are hidden, others are not": {
			env: environ{"AZURE_CREDENTIALS": `{"clientId":"7a1b0c6e-1111-2222-3333-444455556666",
				"clientSecret":"hunter2-of-azure",
				"tenantId":"tenant-of-the-company","pin_token":1234567890,"secretName":"name-of-it",
				"db":{"password":{"sensitive":true,"value":"hunter2-inside"}},
				"tokens":["hunter2-first","hunter2-second"],"enabled":true,"none":null,"short_token":"abc"}`},
			hidden: []string{"hunter2-of-azure", "1234567890", "hunter2-inside", "hunter2-first", "hunter2-second"},
			shown: []string{
				"7a1b0c6e-1111-2222-3333-444455556666", "tenant-of-the-company", "name-of-it",
				"sensitive", "abc", "true",
			},
		},
		"random text inside JSON is hidden under any key": {
			env: environ{"APP_SECRET": `{"blob":"Zk8Qw2nV7xLr5TbYp0JdHs4GmA",
				"cluster":"MyCompany-Production-Cluster-Europe1",
				"note":"see the README of my-app"}`},
			hidden: []string{"Zk8Qw2nV7xLr5TbYp0JdHs4GmA"},
			shown:  []string{"MyCompany-Production-Cluster-Europe1", "see the README of my-app"},
		},
		"elements of a secret list are hidden": {
			env:    environ{"DEPLOY_KEYS_SECRET": `["hunter2-\"one\"","hunter2-two"]`},
			hidden: []string{`hunter2-"one"`, "hunter2-two"},
		},
		"text that only looks like JSON is one secret": {
			env:    environ{"A_SECRET": `{"a": hunter2`},
			hidden: []string{`{"a": hunter2`}, shown: []string{"hunter2"},
		},
		"JSON in a variable that is no secret is shown": {
			env:   environ{"SETTINGS": `{"color":"dark-blue"}`},
			shown: []string{"dark-blue", `{"color":"dark-blue"}`},
		},
		"password of a URL is hidden": {
			env:    environ{"DATABASE_URL": "postgres://admin:hunter2pw@db.example.com:5432/app?sslmode=require"},
			hidden: []string{"hunter2pw"}, shown: []string{"admin", "db.example.com:5432/app", "postgres"},
		},
		"password of a URL is hidden, percent-encoded and decoded": {
			env:    environ{"AMQP": "amqp://me:p%40ss%2Fw0rd%21@queue/vhost"},
			hidden: []string{"p%40ss%2Fw0rd%21", "p@ss/w0rd!"}, shown: []string{"queue/vhost"},
		},
		"password with signs that a URL may not have is hidden": {
			env:    environ{"DSN": "postgres://admin:hun#ter@2?pw@db.example.com/app"},
			hidden: []string{"hun#ter@2?pw"}, shown: []string{"db.example.com/app"},
		},
		"password with a slash that is not escaped is hidden": {
			env:    environ{"DSN": "postgres://admin:hun/ter2/pw@db.example.com/app"},
			hidden: []string{"hun/ter2/pw"}, shown: []string{"db.example.com/app"},
		},
		"short password of a URL is hidden together with its user": {
			env:    environ{"DATABASE_URL": "postgres://u:pass@h"},
			hidden: []string{"u:pass@"}, shown: []string{"pass", "compass"},
		},
		"password that equals the user is hidden together with the user": {
			env:    environ{"DATABASE_URL": "postgres://postgres:postgres@localhost/app"},
			hidden: []string{"postgres:postgres@"}, shown: []string{"postgres is ready"},
		},
		"token in the place of a user is hidden": {
			env: environ{
				"REMOTE": "git clone https://ghp_Zk8Qw2nV7xLr5TbYp0JdHs4GmA:x-oauth-basic@github.com/me/app.git",
			},
			hidden: []string{"ghp_Zk8Qw2nV7xLr5TbYp0JdHs4GmA"}, shown: []string{"github.com/me/app.git"},
		},
		"passwords of all URLs of a list are hidden": {
			env:    environ{"SERVERS": "nats://a:hunter2-a@one:4222,nats://b:hunter2-b@two:4222"},
			hidden: []string{"hunter2-a", "hunter2-b"}, shown: []string{"one:4222", "two:4222"},
		},
		"password of a URL inside JSON is hidden": {
			env:    environ{"APP_SECRET": `{"dsn":"mysql://root:hunter2-db@host/app"}`},
			hidden: []string{"hunter2-db"}, shown: []string{"host/app"},
		},
		"key of a storage account is hidden": {
			env: environ{"AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=https;AccountName=mystorage;" +
				"AccountKey=Zm9vYmFyLWZvb2Jhci1mb29iYXI=;EndpointSuffix=core.windows.net"},
			hidden: []string{"Zm9vYmFyLWZvb2Jhci1mb29iYXI="},
			shown:  []string{"mystorage", "core.windows.net", "https"},
		},
		"key of a service bus is hidden": {
			env: environ{"BUS": "Endpoint=sb://bus.example.net/;SharedAccessKeyName=RootManage;" +
				"SharedAccessKey=hunter2+of/bus=;EntityPath=queue"},
			hidden: []string{"hunter2+of/bus="}, shown: []string{"RootManage", "bus.example.net", "queue-1"},
		},
		"passwords in connection strings and DSNs are hidden": {
			env: environ{
				"DB":     "Server=tcp:db.example.com,1433;User ID=admin;Password=hunter2 with space;Encrypt=True",
				"PG":     "host=db.example.com user=app password=hunter2pg dbname=orders",
				"QUOTED": "host=db user=app password='hunter2 quoted' dbname=orders",
				"REDIS":  "cache.example.com:6380,password=hunter2redis,ssl=True,abortConnect=False",
				"ODBC":   "Driver={x};Uid=sa;Pwd=hunter2odbc;",
				"JVM":    "-Xmx1g -Djavax.net.ssl.trustStorePassword=hunter2jvm -Dfile.encoding=UTF-8",
			},
			hidden: []string{
				"hunter2 with space", "hunter2pg", "hunter2 quoted", "hunter2redis", "hunter2odbc", "hunter2jvm",
			},
			shown: []string{"db.example.com", "orders", "admin", "Encrypt=True", "cache.example.com:6380", "UTF-8"},
		},
		"passwords and signatures in queries are hidden": {
			env: environ{
				"JDBC": "jdbc:postgresql://db.example.com/app?user=me&password=hunter2%2Fjdbc&ssl=true",
				"SAS": "https://mystorage.blob.core.windows.net/c/b?sv=2023-11-03&se=2026-01-01&sp=r&" +
					"sig=hunter2%2Bsas%3D",
				"PRESIGNED": "https://b.s3.amazonaws.com/k?X-Amz-Expires=300&X-Amz-Signature=0123456789abcdef",
			},
			hidden: []string{"hunter2%2Fjdbc", "hunter2/jdbc", "hunter2%2Bsas%3D", "hunter2+sas=", "0123456789abcdef"},
			shown:  []string{"db.example.com/app", "2023-11-03", "2026-01-01", "mystorage.blob", "X-Amz-Expires=300"},
		},
		"tokens of known shapes are hidden under any name": {
			env: environ{
				"GH": "ghp_0123456789abcdefghij0123456789abcdef", "HEADER": "Authorization: Bearer eyJ" +
					"hbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
				"HOOK": "https://hooks.slack.com/services/T00000000/B00000000/Zk8Qw2nV7xLr5TbYp0JdHs4G",
			},
			hidden: []string{
				"ghp_0123456789abcdefghij0123456789abcdef", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
				"Zk8Qw2nV7xLr5TbYp0JdHs4G",
			},
			shown: []string{"Bearer of news", "hooks.slack.com/services", "ghp_short"},
		},
		"private key is hidden under any name": {
			env: environ{
				"PEM": key.Key, "FLAT": strings.ReplaceAll(strings.ReplaceAll(key.Key, "Mz", "Nz"), "\n", `\n`),
				"PUBLIC": "-----BEGIN CERTIFICATE-----\nMIIBxTCCAWugAwIBAgIRAJ\n-----END CERTIFICATE-----",
			},
			hidden: []string{lines[1], lines[2], strings.Replace(lines[2], "Mz", "Nz", 1)},
			shown:  []string{"MIIBxTCCAWugAwIBAgIRAJ"},
		},
		"secrets of a kubeconfig in a variable are hidden": {
			env: environ{"KUBECONFIG": "users:\n- name: admin\n  user:\n    client-key-data: aHVudGVyMi1odW50ZXIy\n" +
				"    token: hunter2-of-kube\n    password: \"hunter2-quoted\"\n  tokenFile: /var/run/token-of-it\n"},
			hidden: []string{"aHVudGVyMi1odW50ZXIy", "hunter2-of-kube", "hunter2-quoted"},
			shown:  []string{"admin", "/var/run/token-of-it"},
		},
		"names that often have no secret are shown": {
			env: environ{"OPTIONS": `key=environment auth: required sort.key.name=created {"key": "production"} ` +
				`secretName: regcred-of-it http://token-host:8080/path password-file=/etc/password`},
			shown: []string{
				"environment", "required", "created", "production", "regcred-of-it", "8080/path", "/etc/password",
			},
		},
		"URL without a password hides nothing": {
			env: environ{
				"PULUMI_BACKEND_URL": "https://api.example.com:8080/@scope/x?mail=me@example.com",
				"REPOSITORY":         "ssh://git@github.com/me/app",
			},
			shown: []string{"api.example.com", "8080", "@scope", "me@example.com", "ssh://git@github.com/me/app"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, text := range c.hidden {
				got := redacted(t, c.env, "<"+text+">")
				if got != "<"+secret.Mark+">" && got != "<"+secret.Mark+"\n>" {
					t.Errorf("%q is shown as %q, want only %q", text, got, secret.Mark)
				}
			}
			for _, text := range c.shown {
				if got := redacted(t, c.env, "<"+text+">"); got != "<"+text+">" {
					t.Errorf("%q is shown as %q, want all of it", text, got)
				}
			}
		})
	}
}

// FuzzShaped checks that a password is found in each format, regardless of its characters.
func FuzzShaped(f *testing.F) {
	f.Add("hunter2-hunter2", "host=db user=app")
	f.Add("hun'ter;2&%41=", "a=b;c=d")
	f.Fuzz(func(t *testing.T, password, before string) {
		if len(password) < minSecret || strings.ContainsAny(password, "; &\t\r\n,\"'})\\") ||
			strings.TrimSpace(password) != password || len(password) > maxAssigned || len(before) > 1<<10 {
			return
		}
		before = strings.ReplaceAll(before, "=", "-") // a name before the space would take it as its value
		for _, text := range []string{
			before + " password=" + password + " dbname=x", before + ";Password=" + password + ";Encrypt=True",
			before + "?user=me&password=" + password + "&ssl=true", before + `\n"password": "` + password + `"`,
		} {
			if found := shaped(text); !slices.Contains(found, password) && len(found) < maxContents {
				t.Errorf("the secrets of %q are %q, want %q among them", text, found, password)
			}
		}
	})
}
