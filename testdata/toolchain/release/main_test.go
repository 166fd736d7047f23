package main

import (
	"debug/buildinfo"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const (
	sources   = "../../.."
	version   = "v1.2.3"
	digest    = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	platforms = "linux/amd64 linux/arm64 darwin/arm64 darwin/amd64"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// output runs a command that must succeed, and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// missing skips a test that needs something which this machine lacks. If CI=true, the test fails instead.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// built returns a directory with the files that the command reads, made of one program.
func built(t *testing.T, program string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	content, err := os.ReadFile(program)
	must(t, err)
	files := map[string]string{
		"LICENSE": "licence\n", "THIRD_PARTY_NOTICES": "notices\n",
		"cmwa-image/index.json":       `{"manifests": [{"digest": "` + digest + `"}]}`,
		"cmwa-cloud-image/index.json": "{}", "root/usr/share/man/man1/cmwa.1": ".TH cmwa 1\n",
		"root/usr/lib/systemd/system/cmwa.service": "[Service]\n",
	}
	for _, name := range []string{"cmwa", "cmwa-cloud", "workflow-runner"} {
		for _, platform := range strings.Fields(platforms) {
			files[name+"-"+strings.ReplaceAll(platform, "/", "-")] = string(content)
		}
	}
	for name, text := range files {
		path := filepath.Join(directory, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o755))
	}
	return directory
}

// stub builds the program that stands in for those of a release.
func stub(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "stub")
	output(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./testdata/stub")
	return path
}

func TestRun(t *testing.T) {
	program := stub(t)
	write := func() (files string) {
		directory := built(t, program)
		must(t, run(version, "2026-01-02T03:04:05+01:00", platforms, directory, sources))
		return filepath.Join(directory, "release")
	}
	first := write()
	read := func(name string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(first, name))
		must(t, err)
		return string(content)
	}

	t.Run("has every file, with its checksum", func(t *testing.T) {
		check := exec.Command("sha256sum", "--check", "--strict", "checksums.txt")
		check.Dir = first
		out, err := check.CombinedOutput()
		if err != nil || strings.Count(string(out), ": OK\n") != 17 {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("a second build in another directory has the same checksums", func(t *testing.T) {
		content, err := os.ReadFile(filepath.Join(write(), "checksums.txt"))
		must(t, err)
		if want := read("checksums.txt"); string(content) != want {
			t.Errorf("the first build:\n%s\nthe second:\n%s", want, content)
		}
	})
	t.Run("the SBOM names each module of the programs", func(t *testing.T) {
		var document cdx.BOM
		file, err := os.Open(filepath.Join(first, "cmwa_1.2.3_linux_arm64.cdx.json"))
		must(t, err)
		defer file.Close()
		must(t, cdx.NewBOMDecoder(file, cdx.BOMFileFormatJSON).Decode(&document))
		listed := map[string]bool{}
		for _, component := range *document.Components {
			listed[component.Name+" "+component.Version] = true
		}
		info, err := buildinfo.ReadFile(program)
		must(t, err)
		want := []string{"cmwa 1.2.3", "cmwa-cloud 1.2.3", "std " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, module := range info.Deps {
			want = append(want, module.Path+" "+module.Version)
		}
		for _, component := range want {
			if !listed[component] {
				t.Errorf("the SBOM lacks %s", component)
			}
		}
	})
	t.Run("the formula has the checksum of each archive", func(t *testing.T) {
		for line := range strings.Lines(read("checksums.txt")) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			if want := "/v1.2.3/" + name + "\"\n      sha256 \"" + sum + "\"\n"; strings.HasSuffix(name, ".tar.gz") &&
				!strings.Contains(read("cmwa.rb"), want) {
				t.Errorf("the formula lacks %s", want)
			}
		}
	})
	t.Run("the chart has the version, the tag of the images, and the digest of the agent's image", func(t *testing.T) {
		chart := output(t, "tar", "-xzOf", filepath.Join(first, "cmwa-1.2.3.tgz"), "cmwa/Chart.yaml")
		for _, want := range []string{
			"\nversion: 1.2.3\n", "\nappVersion: \"v1.2.3\"\n", "\nannotations:\n  cmwa/image-digest: " + digest + "\n",
			"\n      image: registry.invalid/cmwa:v1.2.3@" + digest + "\n  artifacthub.io/license:",
		} {
			if !strings.Contains(chart, want) {
				t.Errorf("Chart.yaml lacks %q:\n%s", want, chart)
			}
		}
	})
	t.Run("install.sh", func(t *testing.T) { testInstallScript(t, first) })
	t.Run("refuses a version that is not semantic", func(t *testing.T) {
		for _, wrong := range []string{"", "dev", "1.2.3", "v1.2", "v1.2.3-4-gabcdef-dirty", "v1.2.3/../x"} {
			err := run(wrong, "", platforms, t.TempDir(), sources)
			if err == nil || !strings.Contains(err.Error(), "make release VERSION=v1.2.3") {
				t.Errorf("for %q the error is %v", wrong, err)
			}
		}
	})
}

// testInstallScript installs the files of a release from a server of this machine.
func testInstallScript(t *testing.T, files string) {
	if runtime.GOOS != "linux" {
		t.Skip("the release of the test has no programs for this machine")
	}
	server := httptest.NewServer(http.FileServer(http.Dir(files)))
	defer server.Close()
	script := filepath.Join(files, "install.sh")
	// install runs the script with a PATH that has these programs before or in place of the usual ones.
	install := func(path string, args ...string) (prefix, out string, err error) {
		prefix = filepath.Join(t.TempDir(), "opt", "cmwa")
		cmd := exec.Command("/bin/sh", append([]string{script, "--prefix", prefix}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+path)
		text, err := cmd.CombinedOutput()
		return prefix, string(text), err
	}
	check := func(t *testing.T, prefix, out string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range []string{"cmwa", "customer-managed-workflow-agent", "workflow-runner"} {
			if text := output(t, filepath.Join(prefix, "bin", name)); text != "stub 60\n" {
				t.Errorf("%s prints %q", name, text)
			}
		}
		if _, err := os.Stat(filepath.Join(prefix, "share/man/man1/cmwa.1")); err != nil {
			t.Error(err)
		}
	}
	usual := os.Getenv("PATH")

	t.Run("installs its own version with curl", func(t *testing.T) {
		prefix, out, err := install(usual, "--url", server.URL+"/")
		check(t, prefix, out, err)
	})
	t.Run("installs with wget if there is no curl", func(t *testing.T) {
		programs := t.TempDir()
		for _, name := range strings.Fields(
			"wget uname tr mktemp rm awk sha256sum cut tar gzip mkdir find cp mv",
		) {
			path, err := exec.LookPath(name)
			if err != nil {
				missing(t, err.Error())
			}
			must(t, os.Symlink(path, filepath.Join(programs, name)))
		}
		prefix, out, err := install(programs, "--version", version, "--url", server.URL)
		check(t, prefix, out, err)
	})
	t.Run("refuses", func(t *testing.T) {
		changed := t.TempDir()
		must(t, os.CopyFS(changed, os.DirFS(files)))
		must(t, os.WriteFile(filepath.Join(changed, "cmwa_1.2.3_linux_"+runtime.GOARCH+".tar.gz"), []byte("no"), 0o600))
		mirror := httptest.NewServer(http.FileServer(http.Dir(changed)))
		defer mirror.Close()
		other := t.TempDir()
		must(t, os.WriteFile(filepath.Join(other, "uname"), []byte("#!/bin/sh\necho Plan9\n"), 0o700))
		for name, test := range map[string]struct {
			path, want string
			args       []string
		}{
			"an archive with another checksum": {usual, "nothing was installed", []string{"--url", mirror.URL}},
			"a platform without an archive": {
				other + ":" + usual, "there are linux-amd64 linux-arm64 darwin-amd64 darwin-arm64;",
				[]string{"--url", server.URL},
			},
			"a version that the server does not have": {
				usual, "does not name cmwa_9.9.9", []string{"--version", "9.9.9", "--url", server.URL},
			},
			"an unknown argument":       {usual, "unknown argument --help; usage:", []string{"--help"}},
			"an argument with no value": {usual, "--url needs a value", []string{"--url"}},
		} {
			prefix, out, err := install(test.path, test.args...)
			if err == nil || !strings.Contains(out, test.want) {
				t.Errorf("%s: %v, want a failure with %q:\n%s", name, err, test.want, out)
			}
			if _, err := os.Stat(prefix); err == nil {
				t.Errorf("%s: the script has created %s", name, prefix)
			}
		}
	})
}

// TestPackages installs the package of these sources with the commands of README.md, in a container of a clean Debian
// with systemd. It runs jobs there with the agent and the service of the package, upgrades it while a job runs, removes
// it and purges it. Then cloud-init installs it as in the example of user data, and rpm installs the rpm package.
func TestPackages(t *testing.T) {
	const image = "cmwa/machine:local"
	if out, err := exec.Command("docker", "image", "inspect", image).CombinedOutput(); err != nil {
		missing(t, "no image of Debian (run testdata/toolchain/up): "+string(out))
	}

	// 1. Build two packages. The container uses no program of another architecture.
	directory, platform := built(t, stub(t)), platform{"linux", runtime.GOARCH}
	suffix := "-linux-" + runtime.GOARCH
	for _, name := range []string{"cmwa", "cmwa-cloud", "workflow-runner"} {
		build := exec.Command("go", "build", "-C", sources, "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o",
			filepath.Join(directory, name+suffix), "./cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	unit, err := os.ReadFile(filepath.Join(sources, "examples/systemd/cmwa.service"))
	must(t, err)
	installed := strings.ReplaceAll(string(unit), "/usr/local/bin/", "/usr/bin/") // as examples/systemd/install does
	must(t, os.WriteFile(filepath.Join(directory, "root/usr/lib/systemd/system/cmwa.service"),
		[]byte(installed), 0o644))
	packages := t.TempDir()
	for _, version := range []string{"1.2.3", "1.2.4"} {
		r := release{version: version, date: time.Unix(0, 0), directory: directory, sources: sources, output: packages}
		must(t, r.packages(platform, "deb", "rpm"))
	}

	// 2. Start systemd in the container, which has no network. Docker mounts the control groups read-only, and does
	// not propagate the mounts of credentials to the services.
	container := strings.TrimSpace(output(t, "docker", "run", "--detach", "--network", "none", "--cgroupns", "private",
		"--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE",
		"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
		"--tmpfs", "/run", "--env", "container=docker", image, "sh", "-c",
		`mount --make-rshared /
grep ' /sys/fs/cgroup' /proc/self/mounts | while read -r _ path _; do mount -o remount,bind,rw "$path"; done
exec /lib/systemd/systemd --unit=multi-user.target`))
	defer func() { output(t, "docker", "rm", "--force", "--volumes", container) }()

	// 3. Run the story.
	story, err := filepath.Abs("testdata/packages.sh")
	must(t, err)
	must(t, release{output: packages}.checksums())
	example := filepath.Join(sources, "examples/cloud-init/user-data.yml")
	output(t, "docker", "cp", example, container+":/user-data.yml")
	output(t, "docker", "cp", filepath.Join(sources, "README.md"), container+":/README.md")
	output(t, "docker", "cp", story, container+":/packages.sh")
	output(t, "docker", "cp", packages, container+":/release")
	// On an idle machine the story takes 30 s; beside all other tests, several times as long.
	t.Log(output(t, "timeout", "360", "docker", "exec", container, "bash", "/packages.sh"))
}
