package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sh runs a script in a POSIX shell, as a runner does, and returns its output and errors.
func sh(t testing.TB, script string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// repository creates a git repository with a program in hostileDir, two branches and a tag.
// It returns its path, which has special characters too, and the commit of the tag.
func repository(t testing.TB) (path, commit string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a 'repo' $(x)")
	script := `set -e
git init -q -b main "$R" && cd "$R"
git config user.name t && git config user.email t@example.com
mkdir "$D" && echo 'runtime: yaml' >"$D/Pulumi.yaml" && git add . && git commit -q -m one
git tag v1 && git rev-parse HEAD >"$R/.git/first"
git checkout -q -b "side/it's" && echo two >two && git add . && git commit -q -m two
git update-ref refs/pull/3/head HEAD && git checkout -q main && git update-server-info`
	if out, err := sh(t, script, "R="+path, "D="+hostileDir); err != nil {
		t.Fatalf("create a repository (git is required: install it): %v\n%s", err, out)
	}
	first, err := os.ReadFile(filepath.Join(path, ".git", "first"))
	if err != nil {
		t.Fatal(err)
	}
	return path, strings.TrimSpace(string(first))
}

// hostileDir is the name of a directory with characters that are special in sh.
const hostileDir = `it's "the" $(dir)`

// runJob compiles a job and runs its steps except the last, the Pulumi operation, in a new
// root directory. It returns the output of each step by name, and the root directory.
func runJob(t testing.TB, spec jobSpec, path string) (output map[string]string, root string) {
	t.Helper()
	d, err := compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	root, output = t.TempDir(), map[string]string{}
	env := []string{"PULUMI_WORKFLOW_ROOT=" + root, "TMPDIR=" + t.TempDir(), "SSH_LOG=" + filepath.Join(root,
		"ssh.log")}
	if path != "" {
		env = append(env, "PATH="+path+":"+os.Getenv("PATH"))
	}
	for name, value := range d.Env {
		env = append(env, name+"="+value.Value.Reveal())
	}
	for _, step := range d.Steps[:len(d.Steps)-1] {
		out, err := sh(t, step.Run, env...)
		if err != nil {
			t.Errorf("step %s: %v\n%s\n%s", step.Name, err, step.Run, out)
		}
		output[step.Name] = out
	}
	leftovers, err := filepath.Glob(filepath.Join(strings.TrimPrefix(env[1], "TMPDIR="), "*"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("temporary files remain: %v %v", leftovers, err)
	}
	return output, root
}

func TestFetch(t *testing.T) {
	t.Run("checks out the branch, the tag or the commit", func(t *testing.T) {
		path, commit := repository(t)
		for name, c := range map[string]struct {
			git  gitSource
			side bool // the checkout is the side branch
		}{
			"path":           {gitSource{URL: path}, false},
			"file URL":       {gitSource{URL: "file://" + path}, false},
			"branch":         {gitSource{URL: path, Branch: "refs/heads/side/it's"}, true},
			"reference":      {gitSource{URL: path, Branch: "refs/pull/3/head"}, true},
			"tag":            {gitSource{URL: path, Tag: "v1"}, false},
			"commit":         {gitSource{URL: path, Commit: commit}, false},
			"tag and commit": {gitSource{URL: path, Commit: commit, Tag: "v1"}, false},
		} {
			t.Run(name, func(t *testing.T) {
				c.git.Dir = hostileDir
				spec := newJobSpec(t, "update", `{"operationContext":{"preRunCommands":["pwd; cat Pulumi.yaml"]}}`)
				spec.settings.Source = &sourceContext{Git: &c.git}
				output, root := runJob(t, spec, "")
				checkout := filepath.Join(root, "deployment")
				got, want := output["Pre-run command 1"], filepath.Join(checkout, hostileDir)+"\nruntime: yaml\n"
				if got != want {
					t.Errorf("the command printed %q, want %q", got, want)
				}
				if _, err := os.Stat(filepath.Join(checkout, "two")); (err == nil) != c.side {
					t.Errorf("the side branch is checked out: %v, want %v", err == nil, c.side)
				}
				if got := output[stepInstall]; !strings.Contains(got, "no dependencies") {
					t.Errorf("the install step printed %q", got)
				}
			})
		}
	})

	t.Run("uses passwords and tokens without showing them", func(t *testing.T) {
		path, _ := repository(t)
		files := http.FileServer(http.Dir(filepath.Join(path, ".git")))
		for name, c := range map[string]struct{ auth, user, password string }{
			"token": {`{"accessToken":{"secret":"t'0$ken"}}`, tokenUser, "t'0$ken"},
			"basic": {`{"basicAuth":{"userName":"it's","password":{"secret":"p w\"d"}}}`, "it's", `p w"d`},
		} {
			t.Run(name, func(t *testing.T) {
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if user, password, _ := r.BasicAuth(); user != c.user || password != c.password {
						w.Header().Set("WWW-Authenticate", "Basic")
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					files.ServeHTTP(w, r)
				}))
				defer web.Close()
				spec := newJobSpec(t, "update", `{"sourceContext":{"git":{"repoUrl":"`+web.URL+`/","gitAuth":`+c.auth+
					`}},"operationContext":{"preRunCommands":["env; cat .git/config"],"options":{`+
					`"skipInstallDependencies":true}}}`)
				output, _ := runJob(t, spec, "")
				for step, text := range output {
					if strings.Contains(text, c.password) {
						t.Errorf("step %s shows the password:\n%s", step, text)
					}
				}
			})
		}
	})

	t.Run("keeps the SSH key in a file during one step", func(t *testing.T) {
		path, _ := repository(t)
		bin := t.TempDir()
		// This ssh logs the mode and the content of the key file and the passphrase, and then
		// runs the command of git.
		fake := `#!/bin/sh
key=$(printf '%s\n' "$@" | sed -n '/^-i$/{n;p}')
{ stat -c %a "$key"; cat "$key"; "$SSH_ASKPASS"; } >"$SSH_LOG"
for last; do :; done
eval "exec $last"
`
		if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		spec := newJobSpec(t, "update", `{"sourceContext":{"git":{"gitAuth":{"sshAuth":{"sshPrivateKey":{`+
			`"secret":"-----KEY\nline"},"password":{"secret":"pass 'phrase"}}}}},"operationContext":{`+
			`"preRunCommands":["env"],"options":{"skipInstallDependencies":true}}}`)
		spec.settings.Source.Git.URL = "ssh://git@git.example.com" + path
		output, root := runJob(t, spec, bin)
		log, err := os.ReadFile(filepath.Join(root, "ssh.log"))
		if want := "600\n-----KEY\nline\npass 'phrase\n"; err != nil || string(log) != want {
			t.Errorf("ssh received %q (%v), want %q", log, err, want)
		}
		if strings.Contains(output["Pre-run command 1"], "KEY") {
			t.Errorf("the key is still in a variable:\n%s", output["Pre-run command 1"])
		}
	})
}

func TestInstallScript(t *testing.T) {
	bin := t.TempDir()
	err := os.WriteFile(filepath.Join(bin, "pulumi"), []byte("#!/bin/sh\necho ran pulumi \"$@\"\n"), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	for project, installs := range map[string]bool{
		"name: a\nruntime: yaml\n":                                   false,
		"name: a\nruntime: yaml":                                     false,
		"runtime: \"yaml\" # simple\r\n":                             false,
		"name: nodejs\nruntime:\n  name: yaml\n  options: {}\n":      false,
		"name: a\nruntime:\n\tname: 'yaml'\n":                        false,
		"runtime: nodejs\nconfig:\n  name: yaml\n":                   true,
		"name: yaml\nruntime:\n  name: python\n  options:\n    a: 1": true,
		"runtime: yaml\nresources:\n  b:\n    name: go\n":            false,
		"runtime: go\n": true,
		"# runtime: yaml\nname: a\nruntime: $(touch pwned)\n": true,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(project), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", workspace{}.inside(installScript))
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if ran := bytes.Contains(out, []byte("ran pulumi install")); err != nil || ran != installs {
			t.Errorf("%q: installed %v, want %v (%v)\n%s", project, ran, installs, err, out)
		}
		if names, _ := os.ReadDir(dir); len(names) != 1 {
			t.Errorf("%q: the directory has %d entries, want only Pulumi.yaml", project, len(names))
		}
	}
}

func TestInside(t *testing.T) {
	w := workspace{source: true, root: filepath.Join(t.TempDir(), "none")}
	if out, err := sh(t, w.inside("echo went on")); err == nil || strings.Contains(out, "went on") {
		t.Errorf("the step printed %q and returned %v, want an error before its command", out, err)
	}
}

func TestOperationScript(t *testing.T) {
	bin := t.TempDir()
	const fake = "#!/bin/sh\necho pulumi \"$@\"\ncase \"$*\" in *expect-no-changes*) exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "pulumi"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	const flags = " --non-interactive --stack="
	for _, c := range []struct {
		operation  string
		ownBackend bool
		options    operationOptions
		want       string
	}{
		{"update", false, operationOptions{}, "pulumi up --yes --skip-preview" + flags + "o/p/s\n"},
		{"preview", true, operationOptions{}, "pulumi stack select --create" + flags + "s\npulumi preview" + flags +
			"s\n"},
		{"destroy", false, operationOptions{DeleteAfter: true}, "pulumi destroy --yes --skip-preview" + flags +
			"o/p/s\npulumi stack rm --yes" + flags + "o/p/s\n"},
		{"detect-drift", false, operationOptions{RemediateIfDrifts: true}, "pulumi refresh --preview-only" + flags +
			"o/p/s --expect-no-changes\npulumi up --refresh --yes --skip-preview" + flags + "o/p/s\n"},
	} {
		stack := "o/p/s"
		if c.ownBackend {
			stack = "s"
		}
		script, err := operationScript(c.operation, stack, c.ownBackend, c.options)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := sh(t, script, "PATH="+bin+":"+os.Getenv("PATH")); err != nil || got != c.want {
			t.Errorf("%s ran\n%s(%v), want\n%s", c.operation, got, err, c.want)
		}
	}
}
