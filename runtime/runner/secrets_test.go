package runner_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestRunSecrets(t *testing.T) {
	t.Run("log of a job has no secret", func(t *testing.T) {
		values := map[string]string{
			"oidc":      "oidc-token-value-1",
			"agent":     "text-that-the-agent-hides",
			"setting":   "hunter2-of-a-setting",
			"named":     "hunter2-by-its-name",
			"forwarded": "hunter2-forwarded",
			"image":     "hunter2-of-the-image",
			"late":      "hunter2-set-by-a-step",
			"key":       "-----BEGIN-----\nfirst-line-of-it\nsecond-line-of-it\n-----END-----",
		}
		definition := steps(
			`echo "$SETTING" "$NPM_TOKEN" "$CLOUD" "$IMAGE_PASSWORD" "$PULUMI_OIDC_TOKEN" text-that-the-agent-hides
echo "$SSH_KEY"; echo "$SSH_KEY" | tail -n 2; printf 'one line: '; echo "$SSH_KEY" | tr '\n' ' '; echo
printf %s hunter2-of; sleep 0.3; echo -a-setting   # in two pieces
echo "$SHORT" "$GREETING"
printf 'LATE_SECRET=%s%s\n' hunter2-set- by-a-step >> "$PULUMI_ENV_FILE"`,
			`echo "late: $LATE_SECRET"; echo hunter2-of-a-setting in a script; cd "/hunter2-of-a-setting"`,
		)
		definition.Env = map[string]cloud.SecretValue{
			"SETTING":   {Value: secret.New(values["setting"]), Secret: true},
			"SSH_KEY":   {Value: secret.New(values["key"])},
			"NPM_TOKEN": {Value: secret.New(values["named"])},
			"SHORT":     {Value: secret.New("short"), Secret: true},
			"GREETING":  {Value: secret.New("good morning")},
		}
		w := newFixture(t, definition)
		w.options.Environ = append(w.options.Environ, "IMAGE_PASSWORD="+values["image"], "PATH="+os.Getenv("PATH"))
		w.handoff.OIDC = values["oidc"]
		w.handoff.Redact = []string{values["agent"]}
		w.handoff.Forward = map[string]string{"CLOUD": values["forwarded"]}
		w.run(runtime.CodeFailed)

		values["token"] = w.handoff.Token
		values["line"] = "second-line-of-it"
		var all strings.Builder
		for step := range w.record().Steps {
			all.WriteString(w.record().Text(step))
		}
		all.WriteString(w.log.String())
		all.WriteString(w.progress.String())
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if strings.Contains(all.String(), values[name]) {
				t.Errorf("the secret %q is shown:\n%s", name, all.String())
			}
		}
		const mark = secret.Mark
		w.wantLog(1, "\n"+strings.Repeat(mark+" ", 5)+mark+"\n", mark+"\n"+mark+"\n"+mark+"\n",
			"one line: ", mark, "\n"+mark+"\n", "short good morning\n")
		w.wantLog(2, "$ echo \"late: $LATE_SECRET\"; echo "+mark+" in a script",
			"late: "+mark+"\n"+mark+" in a script\n")
	})

	t.Run("token is on no command line and in no environment", func(t *testing.T) {
		w := newFixture(t, steps(`
		for p in /proc/[0-9]*; do tr '\0' '\n' < $p/cmdline 2>/dev/null; done | grep -c "^$(cat token)" > found
		env | grep -c "$(cat token)" >> found
		cat found`))
		if err := os.WriteFile(w.handoff.Root+"/token", []byte(w.handoff.Token), 0o600); err != nil {
			t.Fatal(err)
		}
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "\n0\n0\n")
	})
}

func TestRunRedaction(t *testing.T) {
	token := strings.Repeat("0123456789abcdef-", 6)
	const keyLine = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
	for name, c := range map[string]struct{ variable, value, script, hidden, shown string }{
		"output of base64": {
			"NPM_TOKEN", token, `printf 'user:%s' "$NPM_TOKEN" | base64`, "MDEyMzQ1Njc4OWFiY2RlZi", "dXNlcj",
		},
		"private key that a step takes out of JSON": {
			"GOOGLE_CREDENTIALS",
			`{"type":"service_account","private_key":"-----BEGIN KEY-----\n` + keyLine + `\n-----END KEY-----\n"}`,
			`printf '%b' "$GOOGLE_CREDENTIALS" | tr '\n' ' '; echo
printf '%b' "$GOOGLE_CREDENTIALS" | sed -n 2p; echo service_account`,
			keyLine, "service_account",
		},
		"password that a step takes out of a URL": {
			"DATABASE_URL", "postgres://admin:hunter%402pw@db.example.com/app",
			`echo "$DATABASE_URL"; echo 'password hunter@2pw'; echo 'password hunter%402pw'`,
			"2pw", "@db.example.com/app",
		},
	} {
		t.Run(name, func(t *testing.T) {
			definition := steps(c.script)
			definition.Env = map[string]cloud.SecretValue{c.variable: {Value: secret.New(c.value)}}
			w := newFixture(t, definition)
			w.run(runtime.CodeSucceeded)
			w.wantLog(1, c.shown)
			if text := w.record().Text(1); strings.Contains(text, c.hidden) || !strings.Contains(text, secret.Mark) {
				t.Errorf("%q is in the log:\n%s", c.hidden, text)
			}
		})
	}
}
