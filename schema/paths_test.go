package schema_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// directories returns an empty directory for a configuration, and the working directory of the
// test, which is another empty directory.
func directories(t *testing.T) (directory, working string) {
	t.Helper()
	directory, working = t.TempDir(), t.TempDir()
	t.Chdir(working)
	return directory, working
}

// writeFile writes a private file, and creates its directory. It returns the path.
func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// inDirectory returns a source whose file is in a directory.
func inDirectory(directory, content string) schema.Source {
	s := source(content)
	s.Path = filepath.Join(directory, "agent.yaml")
	return s
}

func TestLoadRelativePaths(t *testing.T) {
	t.Run("start at the directory of the file", func(t *testing.T) {
		directory, working := directories(t)
		path := writeFile(t, filepath.Join(directory, "pool.token"), "pul-"+filepath.Base(directory))
		writeFile(t, filepath.Join(working, "pool.token"), "pul-"+filepath.Base(working))
		config := must(t, inDirectory(directory, "token_file: pool.token\n"))
		pool := config.Pools[0]
		if pool.TokenFile != path || pool.Token.Reveal() != "pul-"+filepath.Base(directory) {
			t.Errorf("the token file is %s, want %s", pool.TokenFile, path)
		}
		if !slices.Contains(config.Files, path) {
			t.Errorf("the watched files are %q, want %s among them", config.Files, path)
		}
	})

	t.Run("a file that is only in the working directory is not used", func(t *testing.T) {
		directory, working := directories(t)
		writeFile(t, filepath.Join(working, "pool.token"), "pul-a")
		_, problems := schema.Load(inDirectory(directory, "token_file: pool.token\n"))
		want := "there is no file " + filepath.Join(directory, "pool.token")
		if !strings.Contains(problems.Error(), want) {
			t.Errorf("got %v, want %s", problems, want)
		}
	})

	t.Run("a file that appears in the directory changes the digest", func(t *testing.T) {
		directory, _ := directories(t)
		src := inDirectory(directory, "oidc_token_file: oidc\norganization_name: acme\nrunner_pool_id: p\n")
		before := schema.Evaluate(src)
		path := filepath.Join(directory, "oidc")
		if !slices.Contains(before.Files, path) {
			t.Errorf("the watched files are %q, want %s among them", before.Files, path)
		}
		writeFile(t, path, "a.b.c")
		after := schema.Evaluate(src)
		if before.Digest == after.Digest {
			t.Error("the digest is the same")
		}
		if got := after.Config.Pools[0].OIDCTokenFile; got != path {
			t.Errorf("got %s, want %s", got, path)
		}
	})

	t.Run("the digest does not depend on how the configuration is named", func(t *testing.T) {
		directory, working := directories(t)
		writeFile(t, filepath.Join(directory, "pool.token"), "pul-a")
		writeFile(t, filepath.Join(directory, "ca.pem"), "x")
		for _, src := range []schema.Source{
			inDirectory(directory, "token_file: pool.token\nca_file: ca.pem\n"),
			inDirectory(working, "ca_file: ca.pem\n"),
		} {
			want := schema.Evaluate(src).Digest
			var err error
			if src.Path, err = filepath.Rel(working, src.Path); err != nil {
				t.Fatal(err)
			}
			if got := schema.Evaluate(src).Digest; got != want {
				t.Errorf("got %s for %s, want %s", got, src.Path, want)
			}
		}
	})

	t.Run("are resolved in each key that has a path", func(t *testing.T) {
		directory, _ := directories(t)
		writeFile(t, filepath.Join(directory, "template.yaml"), "spec: {priority: 1}\n")
		config, problems := schema.Load(inDirectory(directory, "oidc_token_file: sub/oidc\norganization_name: acme\n"+
			"runner_pool_id: p\nworking_directory: bin\npod_template_file: template.yaml\ndeploy_target: kubernetes\n"+
			"ecs: {task_definition_template_file: task.json}\n"))
		if config == nil {
			t.Fatal(problems)
		}
		pool := config.Pools[0]
		for got, want := range map[string]string{
			pool.OIDCTokenFile: "sub/oidc", pool.WorkingDirectory: "bin", pool.PodTemplateFile: "template.yaml",
			pool.ECS.TaskDefinitionTemplateFile: "task.json",
		} {
			if want = filepath.Join(directory, want); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if pool.PodTemplate == nil {
			t.Error("the Pod template is not read")
		}
	})

	t.Run("of a variable start at the working directory", func(t *testing.T) {
		directory, working := directories(t)
		writeFile(t, filepath.Join(directory, "pool.token"), "pul-a")
		writeFile(t, filepath.Join(working, "pool.token"), "pul-b")
		src := inDirectory(directory, "log_level: info\n")
		src.Environ = map[string]string{"PULUMI_AGENT_TOKEN_FILE": "pool.token"}
		if got := must(t, src).Pools[0].Token.Reveal(); got != "pul-b" {
			t.Errorf("the token is %s, want that of the working directory", got)
		}
	})

	t.Run("of a configuration for another machine stay as they are", func(t *testing.T) {
		directory, working := directories(t)
		writeFile(t, filepath.Join(working, "pool.token"), "pul-b")
		src := inDirectory(directory, "token_file: pool.token\n")
		src.Elsewhere = true
		if got := must(t, src).Pools[0].TokenFile; got != "pool.token" {
			t.Errorf("got %s, want pool.token", got)
		}
	})
}

func TestLoadMissingFile(t *testing.T) {
	directory, _ := directories(t)
	for name, test := range map[string]struct{ file, want string }{
		"names an absolute path": {"token_file: /etc/none/pool.token",
			"token_file: there is no file /etc/none/pool.token\n  hint: put the token into it, or correct the name"},
		"names the resolved path": {"token: pul-a\nca_file: none.pem", "there is no file " + directory + "/none.pem\n"},
		"explains that ~ is not expanded": {"token_file: ~/pool.token",
			"/~/pool.token\n  hint: ~ is not expanded here: write the absolute path"},
		"explains that $ is not expanded": {"token_file: $HOME/pool.token",
			"/$HOME/pool.token\n  hint: $ is not expanded here: write the absolute path"},
		"explains it for the OIDC token too": {"oidc_token_file: ~/oidc\norganization_name: acme\nrunner_pool_id: p",
			"hint: ~ is not expanded here"},
		"shows the directory and not the name, which may be a secret": {"token_file: hunter2",
			"there is no file of this name in " + directory + "\n"},
		"hides a possible secret":  {"token_file: a/c4n4ry1234567890123", "token_file: there is no such file\n"},
		"hides special characters": {"token_file: 'c4n4ry/+=='", "token_file: there is no such file\n"},
		"names a device":           {"token_file: /dev/null", "cannot read the file /dev/null\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := schema.Load(inDirectory(directory, test.file+"\n"))
			text := problems.Error()
			if len(problems) != 1 || !strings.Contains(text, test.want) {
				t.Errorf("got\n%s\nwant\n%s", text, test.want)
			}
			if strings.Contains(text, "hunter2") || strings.Contains(text, "c4n4ry") {
				t.Errorf("the message shows the name:\n%s", text)
			}
		})
	}
	t.Run("names a file that this user cannot read", func(t *testing.T) {
		src := inDirectory(directory, "token_file: ./private\n")
		src.ReadFile = func(name string) ([]byte, error) {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
		}
		_, problems := schema.Load(src)
		want := fmt.Sprintf("user %d cannot read the file %s/private", os.Geteuid(), directory)
		if !strings.Contains(problems.Error(), want) {
			t.Errorf("got %v, want %s", problems, want)
		}
	})
}

func TestVetLocal(t *testing.T) {
	const oidc = "organization_name: acme\nrunner_pool_id: p\noidc_token_file: oidc\n"
	const task = "token: pul-a\ndeploy_target: ecs\necs: {task_definition_template_file: task}\n"
	for name, test := range map[string]struct {
		file  string
		files map[string]string
		want  string // beginning of the only problem; empty if there is none
	}{
		"good files": {"token_file: pool.token\npod_template_file: pod.yaml\ndeploy_target: kubernetes\n",
			map[string]string{"pool.token": "pul-0123456789", "pod.yaml": "spec: {priority: 1}\n"}, ""},
		"missing token": {"token_file: pool.token\n", nil, "error missing-file token_file: there is no file"},
		"text that is no token": {"token_file: pool.token\n", map[string]string{"pool.token": "secret"},
			"warning placeholder token_file: is not a pool access token"},
		"missing certificates": {"token: pul-a\nca_file: ca.pem\n", nil,
			"error missing-file ca_file: there is no file"},
		"text that is no PEM": {"token: pul-a\nca_file: ca.pem\n", map[string]string{"ca.pem": "x"},
			"error file ca_file: the file contains no certificate in PEM form"},
		"missing template": {"token: pul-a\ndeploy_target: kubernetes\npod_template_file: pod.yaml\n", nil,
			"error missing-file pod_template_file: there is no file"},
		"missing programs": {"token: pul-a\nworking_directory: bin\n", nil,
			"error missing-file working_directory: there is no file"},
		"missing OIDC token": {oidc, nil, "error missing-file oidc_token_file: there is no file"},
		"empty OIDC token":   {oidc, map[string]string{"oidc": "\n"}, "error file oidc_token_file: the file is empty"},
		"two OIDC tokens": {oidc, map[string]string{"oidc": "a.b.c\nd.e.f\n"},
			"error file oidc_token_file: the file must contain one token"},
		"text that is no JWT": {oidc, map[string]string{"oidc": "x\n"},
			"warning file oidc_token_file: the file does not hold a JSON Web Token"},
		"good OIDC token": {oidc, map[string]string{"oidc": "a.b.c\n"}, ""},
		"missing task definition": {task, nil,
			"error missing-file ecs.task_definition_template_file: there is no file"},
		"task definition not JSON": {task, map[string]string{"task": "x"},
			"error file ecs.task_definition_template_file: the file is not JSON"},
		"no token, which a variable may set": {"log_level: info\n", nil,
			"warning missing-token token: there is no pool access token"},
		"misspelt key": {"token: pul-a\ntokn: x\n", nil, "error unknown-key tokn: unknown key"},
		"manifest for other machine": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n" +
			"  pulumi-workflow-agent.yaml: |\n    token_file: pool.token\n", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			directory, _ := directories(t)
			for file, content := range test.files {
				writeFile(t, filepath.Join(directory, file), content)
			}
			src := inDirectory(directory, test.file)
			var got []string
			for _, p := range schema.VetLocal(src) {
				got = append(got, p.Severity.String()+" "+string(p.Rule)+" "+p.Path+": "+p.Message)
			}
			switch {
			case test.want == "" && len(got) > 0,
				test.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], test.want)):
				t.Errorf("got %q, want %q", got, test.want)
			}
			if !strings.Contains(test.want, "missing-file") {
				return
			}
			if problems := schema.Vet(src).Errors(); len(problems) > 0 {
				t.Errorf("got errors from Vet, which must not check files: %v", problems)
			}
		})
	}
}

func TestLoadEmptyFile(t *testing.T) {
	const message = "the file sets nothing: it is empty, or has only comments"
	for name, content := range map[string]string{"no content": "", "comments": "# token: pul-a\n", "null": "---\n~\n"} {
		t.Run(name, func(t *testing.T) {
			src := source(content)
			src.Environ = map[string]string{"PULUMI_AGENT_TOKEN": "pul-a"}
			if config, problems := schema.Load(src); config == nil || len(problems) > 0 {
				t.Errorf("got %v from Load, want no problem", problems)
			}
			if problems := schema.Vet(source(content)); len(problems) != 1 || len(problems.Errors()) > 0 {
				t.Errorf("got %v from Vet, want one warning", problems)
			}
			src.Strict = true
			if config, problems := schema.Load(src); config != nil || problems.Errors()[0].Message != message {
				t.Errorf("got %v with Strict, want an error", problems)
			}
			if errs := schema.Vet(src).Errors(); len(errs) != 1 || errs[0].Message != message {
				t.Errorf("got %v from Vet with Strict, want an error", errs)
			}
			src.Strict, src.Environ["PULUMI_AGENT_STRICT"] = false, "true"
			if config, problems := schema.Load(src); config != nil || problems.Errors()[0].Message != message {
				t.Errorf("got %v with PULUMI_AGENT_STRICT, want an error", problems)
			}
		})
	}
}
