package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestEnvFile(t *testing.T) {
	t.Run("steps set variables for later steps", func(t *testing.T) {
		w := newFixture(t, steps(
			`printf 'A=1\r\n\n# nothing\nB=two = "2" \nno name\n=x\nC D=3\n' >> "$PULUMI_ENV_FILE"`,
			`echo "[$A][$B]"; echo A=changed >> "$PULUMI_ENV_FILE"`,
			`echo "[$A][$B]"`,
		))
		w.run(runtime.CodeSucceeded)
		file := filepath.Join(w.handoff.Root, "PULUMI_ENV")
		w.wantLog(1, "Loading PULUMI_ENV from "+file+"\n", "line 5 of PULUMI_ENV is skipped", "line 6", "line 7")
		w.wantLog(2, "\n[1][two = \"2\" ]\n", "Loading PULUMI_ENV from ")
		w.wantLog(3, "\n[changed][two = \"2\" ]\n")
		if strings.Contains(w.record().Text(3), "Loading") {
			t.Error("a file that has not changed is loaded again")
		}
	})

	t.Run("file is created outside of a root of the job that is not writable", func(t *testing.T) {
		w := newFixture(t, steps(`echo "$PULUMI_ENV_FILE"; echo A=1 > "$PULUMI_ENV_FILE"`, `echo "[$A]"`))
		// A directory cannot be opened as a file, not even by root.
		noError(t, os.Mkdir(filepath.Join(w.handoff.Root, "PULUMI_ENV"), 0o700))
		w.run(runtime.CodeSucceeded)
		w.wantLog(2, "[1]\n")
	})

	t.Run("file is created at the path in the variables of the job", func(t *testing.T) {
		named := filepath.Join(t.TempDir(), "named")
		definition := steps(`echo A=1 > "$PULUMI_ENV_FILE"`, `echo "[$A]"`)
		definition.Env = map[string]cloud.SecretValue{"PULUMI_ENV_FILE": {Value: secret.New(named)}}
		w := newFixture(t, definition)
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "Loading PULUMI_ENV from "+named+"\n")
		w.wantLog(2, "[1]\n")
	})

	t.Run("invalid content does not fail the job", func(t *testing.T) {
		for name, c := range map[string]struct{ script, want string }{
			"removed":     {`rm "$PULUMI_ENV_FILE"`, ""},
			"a directory": {`rm "$PULUMI_ENV_FILE"; mkdir "$PULUMI_ENV_FILE"`, "is no longer a regular file"},
			"a pipe":      {`rm "$PULUMI_ENV_FILE"; mkfifo "$PULUMI_ENV_FILE"`, "is no longer a regular file"},
			"endless":     {`ln -sf /dev/zero "$PULUMI_ENV_FILE"`, "is no longer a regular file"},
			"huge":        {`head -c 2000000 /dev/zero | tr '\0' x > "$PULUMI_ENV_FILE"`, "larger than 1 MiB"},
			"long entry": {`{ printf A=; head -c 140000 /dev/zero | tr '\0' x; } > "$PULUMI_ENV_FILE"`,
				"longer than 131071 bytes"},
			"zero byte": {`printf 'A=\0b\n' > "$PULUMI_ENV_FILE"`, "character that no variable may have"},
			"all wrong": {`yes wrong | head -n 10000 > "$PULUMI_ENV_FILE"`, "9990 more lines"},
		} {
			t.Run(name, func(t *testing.T) {
				w := newFixture(t, steps(c.script, "echo goes on"))
				w.run(runtime.CodeSucceeded)
				w.wantLog(1, c.want)
				w.wantLog(2, "\ngoes on\n")
			})
		}
	})
}

func TestWriteOIDC(t *testing.T) {
	t.Run("token is in a variable and in a file", func(t *testing.T) {
		const token = "eyJhbGciOiJSUzI1NiJ9.payload.signature"
		script := `file="$PULUMI_WORKFLOW_ROOT/mnt/pulumi/pulumi.oidc"
[ "$PULUMI_OIDC_TOKEN" = "$(cat "$file")" ] && echo same; ls -l "$file"; echo "$PULUMI_OIDC_TOKEN"`
		w := newFixture(t, steps(script))
		w.handoff.OIDC = token
		w.run(runtime.CodeSucceeded)
		w.wantLog(1, "same\n-rw-------", "[secret]\n")
		file := filepath.Join(w.handoff.Root, "mnt/pulumi/pulumi.oidc")
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left behind", file)
		}
	})

	t.Run("file that cannot be written is a warning", func(t *testing.T) {
		w := newFixture(t, steps(`[ -n "$PULUMI_OIDC_TOKEN" ]`))
		w.handoff.OIDC = "eyJhbGciOiJSUzI1NiJ9"
		noError(t, os.WriteFile(filepath.Join(w.handoff.Root, "mnt"), nil, 0o600))
		w.run(runtime.CodeSucceeded)
		w.wantLog(0, "write the OIDC token's file", "is only in PULUMI_OIDC_TOKEN\n")
	})

	t.Run("job without a token has no variable and no file", func(t *testing.T) {
		w := newFixture(t, steps(`[ -z "${PULUMI_OIDC_TOKEN+set}" ] && [ ! -e "$PULUMI_WORKFLOW_ROOT/mnt" ]`))
		w.run(runtime.CodeSucceeded)
	})
}
