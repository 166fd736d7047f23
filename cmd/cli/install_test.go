package cli

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVersionInstalled installs a program that prints [VersionText] as go install MODULE/cmd/PROGRAM@VERSION does:
// from a module proxy, without the linker flags of a release. The module has the go.mod of this repository, so the test
// also fails for a replace directive there, with which go install refuses a module. It has only this package and the
// program, because the other packages would make the test slow.
func TestVersionInstalled(t *testing.T) {
	const module, version = "github.com/cmwa-project/cmwa", "v1.2.3"
	text := func(path string) string {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	files := map[string]string{
		"go.mod": text("../../go.mod"),
		"cmd/version/main.go": "package main\n\nimport \"" + module + "/cmd/cli\"\n\n" +
			"func main() { print(cli.VersionText(\"cmwa\")) }\n",
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sources {
		if !strings.HasSuffix(path, "_test.go") {
			files["cmd/cli/"+path] = text(path)
		}
	}

	// A proxy is a directory with these files for each version.
	proxy := t.TempDir()
	directory := filepath.Join(proxy, module, "@v")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(directory, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(archive)
	for path, content := range files {
		entry, err := w.Create(module + "@" + version + "/" + path)
		if err == nil {
			_, err = entry.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		version + ".mod": files["go.mod"], version + ".info": `{"Version":"` + version + `"}`, "list": version + "\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	// The modules of go.mod come from the cache of this machine, which has the files of a proxy.
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	downloads := filepath.Join(strings.TrimSpace(string(cache)), "cache", "download")
	programs := t.TempDir()
	install := exec.Command("go", "install", module+"/cmd/version@"+version)
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOSUMDB=off", "GOBIN="+programs, "GOMODCACHE="+t.TempDir(),
		"GOFLAGS=-modcacherw", "GOPROXY=file://"+proxy+",file://"+downloads)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(programs, "version")).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "cmwa "+version+"\n") {
		t.Errorf("the installed program prints %q, %v, want the version %s", out, err, version)
	}
}
