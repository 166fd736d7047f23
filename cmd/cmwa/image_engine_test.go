package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/schema"
)

// testImageInDocker loads the image into the engine and runs it there. The directory
// is the one that make image has written.
func testImageInDocker(t *testing.T, directory, id string) {
	w := newWorld(t, "docker")
	w.must(os.Symlink(directory, filepath.Join(w.directory, "bin")))
	w.shell(w.directory, commandsIn(t, "README.md", "docker load ")[0]).exit(cli.ExitOK)
	t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", imageName).Run() })
	if got := w.engine("image", "inspect", "--format", "{{.Id}}", imageName); got != id {
		t.Errorf("the engine has the image %s, want %s", got, id)
	}
	info, err := os.Stat(engineSocket())
	w.must(err)
	group := fmt.Sprint(info.Sys().(*syscall.Stat_t).Gid)

	// start starts the agent with a read-only root file system.
	start := func(t *testing.T, options ...string) (container string) {
		t.Helper()
		args := append([]string{"run", "--detach", "--read-only",
			"--volume", engineSocket() + ":/var/run/docker.sock", "--group-add", group,
			"--env", "PULUMI_AGENT_TOKEN=" + w.pool, "--env", "PULUMI_AGENT_SERVICE_URL=" + w.url,
			"--env", "PULUMI_AGENT_DEPLOY_TARGET=docker", "--env", "PULUMI_AGENT_PULL_IMAGE=false",
			"--env", "PULUMI_AGENT_POLLING_INTERVAL=200ms"}, options...)
		container = w.engine(append(args, imageName)...)
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(logsOf(container))
			}
			_ = exec.Command("docker", "rm", "--force", container).Run()
		})
		return container
	}

	t.Run("prints the version for any user", func(t *testing.T) {
		for _, user := range []string{"65532", "1000:1000", "0"} {
			got := w.engine("run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "--user", user,
				imageName, "version")
			if !strings.HasPrefix(got, "cmwa "+imageVersion+"\n") {
				t.Errorf("as user %s, cmwa version prints %q", user, got)
			}
		}
	})
	t.Run("an agent with its state in a volume runs a job", func(t *testing.T) {
		volume := w.engine("volume", "create")
		t.Cleanup(func() { _ = exec.Command("docker", "volume", "rm", "--force", volume).Run() })
		config := filepath.Join(w.directory, "config", schema.FileName)
		w.must(os.Mkdir(filepath.Dir(config), 0o755))
		w.must(os.WriteFile(config, []byte(w.settings([]string{"token: " + w.pool})), 0o600))
		w.shell(w.directory, strings.TrimPrefix(commandsIn(t, "README.md", "sudo chown ")[0], "sudo ")).exit(cli.ExitOK)
		command := strings.NewReplacer("--volume state:", "--volume "+volume+":", "cmwa/cmwa:1.2.3", imageName,
			"docker run ",
			"docker run --detach --volume "+engineSocket()+":/var/run/docker.sock --group-add "+group+" ",
		).Replace(commandsIn(t, "README.md", "docker run ")[0])
		p := w.shell(w.directory, command)
		p.exit(cli.ExitOK)
		container := strings.TrimSpace(p.output())
		t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", container).Run() })
		w.runs("image", oneStep("echo it runs"), "it runs")
		w.engine("stop", container)
		for line := range strings.Lines(logsOf(container)) {
			if strings.Contains(line, "WRN") && !strings.Contains(line, "without TLS") {
				t.Errorf("the agent logs a warning: %s", line)
			}
		}
	})
	t.Run("an agent without a volume works, and names the volume to mount", func(t *testing.T) {
		container := start(t)
		w.runs("without", oneStep("echo it runs"), "it runs")
		w.eventually("the container of the job is removed", func() bool { return len(w.containers("without")) == 0 })
		output := logsOf(container)
		for _, want := range []string{
			"in a container: mount a volume there", "directory=/var/lib/cmwa", "read-only file system",
		} {
			if !strings.Contains(output, want) {
				t.Errorf("there is no %q in\n%s", want, output)
			}
		}
	})
	t.Run("docker-compose 1.29 of Debian starts the agent of the example", func(t *testing.T) {
		const machine = "cmwa/machine:local" // it has docker-compose
		if out, err := exec.Command("docker", "image", "inspect", machine).CombinedOutput(); err != nil {
			skipUnlessCI(t, "no image with docker-compose (run testdata/toolchain/up): "+string(out))
		}
		directory := t.TempDir()
		config := filepath.Join(directory, "config", schema.FileName)
		w.must(os.Mkdir(filepath.Dir(config), 0o755))
		w.must(os.WriteFile(config, []byte(w.settings([]string{"token: " + w.pool})), 0o600))
		w.must(os.Chown(config, 65532, 65532))
		example := readText(t, "../../examples/compose/compose.yml")
		example = strings.Replace(example, "127.0.0.1:8080:", "127.0.0.1::", 1) // any free port
		w.must(os.WriteFile(filepath.Join(directory, "compose.yml"), []byte(example), 0o600))
		project := fmt.Sprintf("cmwa-test-%d", os.Getpid())
		compose := func(args ...string) string {
			return w.engine(append([]string{"run", "--rm", "--network", "none", "--workdir", directory,
				"--volume", engineSocket() + ":/var/run/docker.sock", "--volume", directory + ":" + directory,
				"--env", "CMWA_VERSION=" + imageVersion, "--env", "DOCKER_GROUP=" + group, machine,
				"docker-compose", "--project-name", project}, args...)...)
		}
		t.Cleanup(func() { compose("down", "--volumes", "--timeout", "10") }) // the example waits for 70 minutes
		compose("up", "--detach")
		w.runs("compose", oneStep("echo it runs"), "it runs")
		w.engine("exec", compose("ps", "--quiet", "agent"), "cmwa", "status") // fails if the agent is not ready
	})
	t.Run("the service keeps its data in a volume", func(t *testing.T) {
		const readme = "../cmwa-cloud/README.md"
		w.shell(w.directory, commandsIn(t, readme, "docker load ")[0]).exit(cli.ExitOK)
		t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", serviceImageName).Run() })
		volume := w.engine("volume", "create")
		t.Cleanup(func() { _ = exec.Command("docker", "volume", "rm", "--force", volume).Run() })
		command := strings.NewReplacer("docker run ", "docker run --detach --read-only ",
			"--publish 8585:", "--publish 127.0.0.1::", "--volume cmwa-cloud:", "--volume "+volume+":",
			"cmwa/cmwa-cloud:1.2.3", serviceImageName,
		).Replace(commandsIn(t, readme, "docker run ")[0])
		var first string
		for range 2 {
			p := w.shell(w.directory, command)
			p.exit(cli.ExitOK)
			container := strings.TrimSpace(p.output())
			t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", container).Run() })
			w.eventually("the service listens", func() bool {
				return strings.Contains(logsOf(container), "listening on ")
			})
			archive, err := exec.Command("docker", "cp", container+":/var/lib/cmwa-cloud/access-token", "-").Output()
			w.must(err)
			_, contents := entries(t, archive)
			token := strings.TrimSpace(string(contents["access-token"]))
			if first == "" {
				first = token
			}
			if token != first {
				t.Error("the service has another access token after a restart")
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://"+w.engine("port", container, "8080/tcp")+"/api/user", nil)
			w.must(err)
			r.Header.Set("Authorization", "token "+token)
			response, err := http.DefaultClient.Do(r)
			w.must(err)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("a call with the access token is answered with %s", response.Status)
			}
			w.engine("stop", container)
			if code := w.engine("inspect", "--format", "{{.State.ExitCode}}", container); code != "0" {
				t.Errorf("the service ended with code %s after a stop:\n%s", code, logsOf(container))
			}
		}
	})
	t.Run("the Dockerfile makes the same image", func(t *testing.T) {
		const tag = "cmwa/cmwa:dockerfile-test"
		w.engine("build", "--quiet", "--file", "../../examples/image/Dockerfile", "--tag", tag,
			"--build-arg", "TARGETARCH="+goruntime.GOARCH, "--build-arg", "VERSION="+imageVersion, directory)
		t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", tag).Run() })
		ours, theirs := w.describeImage(imageName), w.describeImage(tag)
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("make image makes\n%+v\nand the Dockerfile\n%+v", ours, theirs)
		}
	})
}

// logsOf returns the output of a container.
func logsOf(container string) string {
	output, err := exec.Command("docker", "logs", container).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(output)
}

// describeImage returns the settings of an image, and its files with owners and modes.
// A link counts as its target.
func (w *world) describeImage(image string) (description struct {
	Settings imageConfig
	Files    []string
}) {
	w.t.Helper()
	settings := w.engine("image", "inspect", "--format", "{{json .Config}}", image)
	w.must(json.Unmarshal([]byte(settings), &description.Settings.Config))
	container := w.engine("create", image)
	defer func() { _ = exec.Command("docker", "rm", container).Run() }()
	archive, err := exec.Command("docker", "export", container).Output()
	w.must(err)
	headers, contents := entries(w.t, archive)
	for _, name := range imagePaths {
		header := headers[name]
		if header == nil {
			w.t.Errorf("%s has no %s", image, name)
			continue
		}
		if header.Linkname != "" {
			header = headers["usr/local/bin/"+header.Linkname]
		}
		line := fmt.Sprintf("%s %o %s", name, header.Mode, digestOf(contents[header.Name]))
		if header.Typeflag != tar.TypeDir ||
			name == "var/lib/cmwa/" { // some builders set its owner on its parent directories, too
			line += fmt.Sprintf(" %d:%d", header.Uid, header.Gid)
		}
		description.Files = append(description.Files, line)
	}
	for name := range headers {
		added := strings.HasPrefix(name, "dev/") || slices.Contains(engineFiles, name)
		if !added && !slices.Contains(imagePaths, name) {
			w.t.Errorf("%s has the unexpected file %s", image, name)
		}
	}
	return description
}

// engineFiles are the files that the engine adds to each container, besides devices.
var engineFiles = []string{".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "proc/", "sys/"}

// testImageInKubernetes runs the image in a namespace that allows only what the restricted
// Pod Security Standard allows.
func testImageInKubernetes(t *testing.T) {
	n := kubetest.New(t)
	admin := kubetest.Client(t, n.Admin, corev1.SchemeGroupVersion)
	ctx, cancel := context.WithTimeout(t.Context(), storyLimit)
	defer cancel()
	var namespace corev1.Namespace
	noError(t, admin.Get().Resource("namespaces").Name(n.Name).Do(ctx).Into(&namespace))
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	noError(t, admin.Put().Resource("namespaces").Name(n.Name).Body(&namespace).Do(ctx).Error())
	noError(t, clusterImage())

	pods := kubetest.Client(t, n.Agent, corev1.SchemeGroupVersion)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "version"},
		Spec: corev1.PodSpec{
			RestartPolicy:   corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true)},
			Containers: []corev1.Container{{
				Name: "agent", Image: imageName, ImagePullPolicy: corev1.PullNever, Args: []string{"version"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					ReadOnlyRootFilesystem:   new(true),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
	noError(t, pods.Post().Namespace(n.Name).Resource("pods").Body(pod).Do(ctx).Error())
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		<-look.C
		noError(t, pods.Get().Namespace(n.Name).Resource("pods").Name(pod.Name).Do(ctx).Into(pod))
	}
	log, err := pods.Get().Namespace(n.Name).Resource("pods").Name(pod.Name).SubResource("log").Do(ctx).Raw()
	if err != nil || pod.Status.Phase != corev1.PodSucceeded ||
		!strings.HasPrefix(string(log), "cmwa "+imageVersion+"\n") {
		t.Errorf("the Pod is %s, its log %q, %v", pod.Status.Phase, log, err)
	}
}
