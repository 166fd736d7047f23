package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

// image is an image that contains only busybox.
const image = "cmwa-test/base:latest"

// docker runs the docker command and returns its output.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), storyLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v: %s\n"+
			"these tests need a Docker engine and the image %s: testdata/toolchain/up makes both",
			args[0], err, out, image)
	}
	return strings.TrimSpace(string(out))
}

// root is the default user of a container.
const root = ""

// container creates a container whose process 1 is the program, and starts it with a job.
// It returns the id of the container.
func container(t *testing.T, user string, scripts ...string) (s *story, p *process, id string) {
	t.Helper()
	address, err := exec.Command("../../testdata/toolchain/address").Output()
	if err != nil {
		t.Fatalf("find the address at which containers reach this machine: %v", err)
	}
	s = newStory(t, strings.TrimSpace(string(address)), "/", scripts...)
	id = docker(t, "create", "--interactive", "--user", user, "--entrypoint", "/workflow-runner", image, "run")
	t.Cleanup(func() { docker(t, "rm", "--force", id) })
	docker(t, "cp", program(t), id+":/workflow-runner")
	return s, s.start("docker", "start", "--attach", "--interactive", id), id
}

func TestContainerReapsOrphans(t *testing.T) {
	t.Parallel()
	// The loop ends when process 1 has only one child, the runner. An orphan that ended is a
	// child of process 1 until that reaps it.
	s, p, _ := container(t, root,
		`n=0; while [ $n -lt 20 ]; do (sleep 0.05 &); n=$((n+1)); done
while [ "$(grep -l '^PPid:.1$' /proc/[0-9]*/status 2>/dev/null | wc -l)" -gt 1 ]; do sleep 0.05; done
zombies=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
echo "first: $(tr '\0' ' ' < /proc/1/cmdline)"
echo "zombies: $zombies"`,
		`echo "my parent is $PPID"; exit 9`)
	p.exit(runtime.CodeFailed)
	s.want(runtime.Succeeded, runtime.Succeeded, runtime.Failed)
	s.await("first: /workflow-runner run \nzombies: 0\n")
	if text := s.service.Record(s.job.ID).Text(2); strings.Contains(text, "my parent is 1\n") {
		t.Errorf("process 1 itself runs the steps, want a child of process 1:\n%s", text)
	}
}

func TestContainerForwardsTERM(t *testing.T) {
	t.Parallel()
	s, p, id := container(t, root,
		`trap 'echo asked to end; exit 0' TERM; echo started; while :; do sleep 1 & wait $!; done`)
	s.await("\nstarted\n")
	docker(t, "kill", "--signal", "TERM", id)
	p.exit(runtime.CodeFailed)
	s.want(runtime.Succeeded, runtime.Failed)
	s.await("\nasked to end\nError: the job was stopped by a signal to its runner\n")
}

func TestContainerHidesRunner(t *testing.T) {
	t.Parallel()
	s, p, _ := container(t, root, `id -u
sleep 60 & neighbour=$!
for file in environ maps; do
  head -c 1 "/proc/$neighbour/$file" >/dev/null && echo "neighbour shows $file"
  head -c 1 "/proc/$PPID/$file" >/dev/null 2>&1 && echo "runner shows $file"
done
readlink "/proc/$PPID/fd/0" && echo "runner shows its input"
kill $neighbour
echo looked`)
	p.exit(runtime.CodeSucceeded)
	text := s.service.Record(s.job.ID).Text(1)
	if strings.Contains(text, "\nrunner shows") || !strings.Contains(text, "\nneighbour shows environ\n") ||
		!strings.HasSuffix(text, "\nlooked\n") {
		t.Errorf("a step can read the runner's memory or input, or cannot read its own child:\n%s", text)
	}
}

func TestContainerInit(t *testing.T) {
	for name, user := range map[string]string{
		"root cannot write to the progress stream of process 1":         root,
		"another user cannot write to the progress stream of process 1": "1000:1000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, _ := container(t, user, `id -u
for pid in 1 "$PPID"; do
  for fd in 0 1 2; do
    (echo '{"step":77,"status":"failed"}' > "/proc/$pid/fd/$fd") 2>&1 && echo "wrote to $fd of $pid"
  done
  head -c 1 "/proc/$pid/environ" > /dev/null 2>&1 && echo "read the environment of $pid"
done
echo looked`)
			p.exit(runtime.CodeSucceeded)
			s.want(runtime.Succeeded, runtime.Succeeded)
			text := s.service.Record(s.job.ID).Text(1)
			if refused := strings.Count(text, "ermission denied"); refused != 6 ||
				!strings.HasSuffix(text, "\nlooked\n") {
				t.Errorf("%d of 6 writes were refused, and the step printed\n%s", refused, text)
			}
			if strings.Contains(text, "\nwrote to ") || strings.Contains(text, "\nread the environment") {
				t.Errorf("a step has access to the runner:\n%s", text)
			}
			if got := p.stdout.String() + p.stderr.String(); strings.Contains(got, "77") {
				t.Errorf("the output of the runner contains a line that a step has written:\n%s", got)
			}
		})
	}
}

func TestContainerEndsOrphans(t *testing.T) {
	t.Parallel()
	s, p, id := container(t, root, "nohup sleep 600 >/dev/null 2>&1 & sleep 600 & echo done")
	p.exit(runtime.CodeSucceeded)
	s.want(runtime.Succeeded, runtime.Succeeded)
	if state := docker(t, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", id); state != "exited 0" {
		t.Errorf("the container is %s", state)
	}
}
