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
		noError(t, os.WriteFile(w.handoff.Root+"/token", []byte(w.handoff.Token), 0o600))
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "\n0\n0\n")
	})
}
