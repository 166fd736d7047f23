package main

import (
	"debug/buildinfo"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMake checks targets of the Makefile that no other test uses.
func TestMake(t *testing.T) {
	recipe := func(t *testing.T, target string) string {
		t.Helper()
		out, err := exec.Command("make", "-C", "../..", "--dry-run", "--no-print-directory", target).CombinedOutput()
		if err != nil {
			t.Fatalf("make --dry-run %s: %v\n%s", target, err, out)
		}
		return string(out)
	}
	for _, target := range []string{"test", "oracle"} {
		t.Run(target+" takes no result from the cache", func(t *testing.T) {
			runs := regexp.MustCompile(`go test[^\n]*`).FindAllString(recipe(t, target), -1)
			if len(runs) == 0 {
				t.Fatalf("make %s does not run go test", target)
			}
			for _, run := range runs {
				if !strings.Contains(run, " -count=1 ") {
					t.Errorf("%q may print cached results", run)
				}
			}
		})
	}
	t.Run("build writes the notices of all programs", func(t *testing.T) {
		line := regexp.MustCompile(`notices -o bin/THIRD_PARTY_NOTICES [^\n]*`).FindString(recipe(t, "build"))
		for _, program := range []string{"./cmd/cmwa", "./cmd/cmwa-cloud", "./cmd/workflow-runner"} {
			if !strings.Contains(line+" ", " "+program+" ") {
				t.Errorf("the notices are written by %q, without %s", line, program)
			}
		}
	})
}

// TestMakeInstall installs into a directory, and removes what it has installed.
func TestMakeInstall(t *testing.T) {
	t.Parallel()
	bin, root := t.TempDir(), t.TempDir()
	for _, name := range []string{
		"cmwa", "cmwa-cloud", "workflow-runner", "workflow-runner-linux-amd64", "workflow-runner-linux-arm64",
	} {
		script := "#!/bin/sh\ncase $1 in __complete) echo run ;; *) echo output of \"$@\" ;; esac\n"
		noError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}
	run := func(target string) string {
		t.Helper()
		cmd := exec.Command("make", "-C", "../..", "--no-print-directory", target, "DESTDIR="+root,
			"PREFIX=/opt/cmwa", "BIN="+bin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
		return string(out)
	}
	installed := func() (files []string) {
		noError(t, fs.WalkDir(os.DirFS(root), "opt", func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				files = append(files, path)
			}
			return err
		}))
		return files
	}

	run("install")
	share := "opt/cmwa/share/"
	want := []string{
		"opt/cmwa/bin/cmwa", "opt/cmwa/bin/cmwa-cloud", "opt/cmwa/bin/customer-managed-workflow-agent",
		"opt/cmwa/bin/workflow-runner",
		"opt/cmwa/bin/workflow-runner-linux-amd64", "opt/cmwa/bin/workflow-runner-linux-arm64",
		"opt/cmwa/lib/systemd/system/cmwa.service",
		share + "bash-completion/completions/cmwa", share + "bash-completion/completions/cmwa-cloud",
		share + "fish/vendor_completions.d/cmwa-cloud.fish", share + "fish/vendor_completions.d/cmwa.fish",
		share + "man/man1/cmwa-cloud.1", share + "man/man1/cmwa.1",
		share + "zsh/site-functions/_cmwa", share + "zsh/site-functions/_cmwa-cloud",
	}
	if diff := cmp.Diff(want, installed()); diff != "" {
		t.Error(diff)
	}
	if out, err := exec.Command(filepath.Join(root, want[0]), "version").CombinedOutput(); err != nil {
		t.Errorf("the installed program: %v\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(root, "etc/cmwa")); err != nil || !info.IsDir() {
		t.Errorf("the directory of the configuration: %v", err)
	}
	for file, text := range map[string]string{
		"lib/systemd/system/cmwa.service":        "\nExecStart=/opt/cmwa/bin/cmwa run ",
		"share/bash-completion/completions/cmwa": "output of completion bash\n",
		"share/man/man1/cmwa.1":                  "\noutput of help run\n",
	} {
		if !strings.Contains(readText(t, filepath.Join(root, "opt/cmwa", file)), text) {
			t.Errorf("%s does not contain %q", file, text)
		}
	}

	removed := run("uninstall")
	if files := installed(); files != nil {
		t.Errorf("after make uninstall there are %q", files)
	}
	for _, path := range want {
		if line := "removed " + filepath.Join(root, path) + "\n"; !strings.Contains(removed, line) {
			t.Errorf("make uninstall does not print %q:\n%s", line, removed)
		}
	}
	nothing := "nothing to remove below " + root + "/opt/cmwa: pass the PREFIX of make install\n"
	if again := run("uninstall"); again != nothing {
		t.Errorf("the second make uninstall prints %q", again)
	}
}

// TestMakeInstallUnit checks that systemd knows each setting of the unit, and how much the unit is exposed: alone, with
// the file for a credential, and also with the file for jobs that are processes of the unit.
func TestMakeInstallUnit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		skipUnlessCI(t, err.Error())
	}
	directory := t.TempDir()
	unit := filepath.Join(directory, "cmwa.service")
	noError(t, os.Mkdir(unit+".d", 0o755))
	text := strings.Replace(readText(t, "../../examples/systemd/cmwa.service"), "/usr/local/bin/cmwa", "/bin/true", 1)
	noError(t, os.WriteFile(unit, []byte(text), 0o600))
	for _, name := range []string{"", "credential.conf", "process.conf"} {
		if name != "" {
			conf := readText(t, "../../examples/systemd/"+name)
			noError(t, os.WriteFile(filepath.Join(unit+".d", name), []byte(conf), 0o600))
		}
		for _, args := range [][]string{
			{"security", "--offline=yes", "--threshold=30", unit},
			{"verify", "--man=no", "--recursive-errors=no", unit},
		} {
			if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil {
				t.Errorf("with %q: systemd-analyze %q: %v\n%s", name, args, err, out)
			}
		}
	}
}

// notices builds the program that writes the licences of linked modules, and returns its
// path.
func notices(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "notices")
	cmd := exec.Command("go", "build", "-C", "../../testdata/toolchain", "-buildvcs=false", "-o", program, "./notices")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

func TestMakeNotices(t *testing.T) {
	t.Parallel()
	program := notices(t)
	write := func(t *testing.T) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "THIRD_PARTY_NOTICES")
		cmd := exec.Command(program, "-o", file, "./cmd/cmwa", "./cmd/cmwa-cloud", "./cmd/workflow-runner")
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return readText(t, file)
	}
	text := write(t)
	// entry returns the license, the first text and the source of a module.
	entry := func(path, version string) (licence, content, source string) {
		found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(path+" "+version) +
			`\n    licence: (.+)\n    texts:   (\d+).*\n    in:      .+\n    source:  (.+)$`).FindStringSubmatch(text)
		if found == nil {
			return "", "", ""
		}
		_, content, _ = strings.Cut(text, "\nText "+found[2]+"\n")
		content, _, _ = strings.Cut(content, "\nText ")
		return found[1], content, found[3]
	}

	t.Run("hold each linked module with its licence and source", func(t *testing.T) {
		bin, err := programs()
		noError(t, err)
		modules := 0
		for _, name := range []string{"cmwa", "cmwa-cloud", "workflow-runner"} {
			info, err := buildinfo.ReadFile(filepath.Join(bin, name))
			noError(t, err)
			if licence, content, _ := entry("std", info.GoVersion); licence != "BSD-3-Clause" ||
				!strings.Contains(content, "The Go Authors") {
				t.Errorf("the licence of %s, in %s, is %q", info.GoVersion, name, licence)
			}
			for _, module := range info.Deps {
				modules++
				licence, content, source := entry(module.Path, module.Version)
				if licence == "" || len(content) < 500 || !strings.Contains(source, module.Version) {
					t.Errorf("%s %s, linked into %s, has the licence %q, %d bytes of text and the source %q",
						module.Path, module.Version, name, licence, len(content), source)
				}
			}
		}
		if modules < 50 {
			t.Errorf("the programs link only %d modules", modules)
		}
	})
	t.Run("name the source of modules under the MPL", func(t *testing.T) {
		mod := readText(t, "../../go.mod")
		for _, path := range []string{"github.com/hashicorp/go-retryablehttp", "github.com/hashicorp/go-cleanhttp"} {
			version := regexp.MustCompile(regexp.QuoteMeta(path) + ` (v\S+)`).FindStringSubmatch(mod)[1]
			licence, content, source := entry(path, version)
			command := "go mod download " + path + "@" + version
			if licence != "MPL-2.0" || !strings.Contains(content, "Source Code Form") ||
				!strings.Contains(source, command) {
				t.Errorf("%s %s has the licence %q and the source %q", path, version, licence, source)
			}
		}
	})
	t.Run("are equal for equal input", func(t *testing.T) {
		if write(t) != text {
			t.Error("two runs differ")
		}
	})
	t.Run("are refused for a licence of an unknown kind", func(t *testing.T) {
		for name, licence := range map[string]string{
			"of no known kind": "You may look at this, on Sundays.\n",
			"no licence file":  "",
			"GNU": "GNU GENERAL PUBLIC LICENSE\nVersion 3\nPermission is hereby granted, free of charge\n" +
				"THE SOFTWARE IS PROVIDED \"AS IS\"\n",
		} {
			files := map[string]string{
				"go.mod": "module example.com/ours\n\ngo 1.26\n\n" +
					"require example.com/theirs v1.0.0\n\nreplace example.com/theirs => ./theirs\n",
				"main.go":       "package main\n\nimport _ \"example.com/theirs\"\n\nfunc main() {}\n",
				"theirs/go.mod": "module example.com/theirs\n\ngo 1.26\n",
				"theirs/a.go":   "package theirs\n",
			}
			if licence != "" {
				files["theirs/LICENSE"] = licence
			}
			directory := directoryOf(t, files)
			cmd := exec.Command(program, "-o", filepath.Join(directory, "out"), ".")
			cmd.Dir = directory
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "example.com/theirs v1.0.0") {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
			if _, err := os.Stat(filepath.Join(directory, "out")); err == nil {
				t.Errorf("%s: the program has written its file in spite of the error", name)
			}
		}
	})
}
