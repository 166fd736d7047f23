package kubetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Processes returns a function for [NewKubelet] that runs each container as a
// process of this machine, in a PID namespace of its own, which ends with it.
// Files of images are replaced by those of the map; volumes are folders, and paths
// in them are translated in the container's arguments.
func Processes(t testing.TB, files map[string]string) func(*Container) int {
	root := t.TempDir()
	return func(c *Container) int {
		folder := filepath.Join(root, string(c.Pod.UID))
		places := newPlaces(folder, c, files)
		if err := places.make(c); err != nil {
			c.Report(err.Error())
			return 128
		}
		var args []string
		for _, arg := range append(append([]string{}, c.Spec.Command...), c.Spec.Args...) {
			args = append(args, places.translate(arg))
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = c, c
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWPID}
		if id := os.Getuid(); id != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
		}
		if err := cmd.Start(); err != nil {
			c.Report(err.Error())
			return 128
		}
		code := supervise(c, cmd, places)
		if text, err := os.ReadFile(places.report); err == nil && len(text) > 0 {
			c.Report(string(text))
		}
		return code
	}
}

// supervise waits for a container's end, and keeps its downward files current.
func supervise(c *Container, cmd *exec.Cmd, p *places) int {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	term, kill := c.Term, c.Kill
	for {
		pod, news := c.Newest()
		if err := p.downward(pod); err != nil {
			_ = cmd.Process.Kill()
		}
		select {
		case <-news:
		case <-term:
			term = nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case <-kill:
			kill = nil
			_ = cmd.Process.Kill()
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				return 0
			case !errors.As(err, &exit):
				return 128
			case exit.ExitCode() < 0:
				return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
			default:
				return exit.ExitCode()
			}
		}
	}
}

// places are the folders of a container's volumes.
type places struct {
	folder string
	report string
	mounts map[string]string // path in the container to path here
	files  map[string]string
	items  map[string][]corev1.DownwardAPIVolumeFile // by folder
	shown  map[string]string                         // content of downward files
}

func newPlaces(folder string, c *Container, files map[string]string) *places {
	p := &places{
		folder: folder, report: filepath.Join(folder, "report-"+c.Spec.Name), mounts: map[string]string{}, files: files,
		items: map[string][]corev1.DownwardAPIVolumeFile{}, shown: map[string]string{},
	}
	for _, mount := range c.Spec.VolumeMounts {
		p.mounts[mount.MountPath] = filepath.Join(folder, mount.Name)
	}
	for _, volume := range c.Pod.Spec.Volumes {
		if volume.DownwardAPI != nil {
			p.items[filepath.Join(folder, volume.Name)] = volume.DownwardAPI.Items
		}
	}
	return p
}

func (p *places) make(c *Container) error {
	var failures []error
	for _, volume := range c.Pod.Spec.Volumes {
		failures = append(failures, os.MkdirAll(filepath.Join(p.folder, volume.Name), 0o777))
	}
	return errors.Join(append(failures, p.downward(c.Pod))...)
}

// translate returns an argument as this machine must see it.
func (p *places) translate(arg string) string {
	if here, ok := p.files[arg]; ok {
		return here
	}
	if arg == corev1.TerminationMessagePathDefault {
		return p.report
	}
	for mount, here := range p.mounts {
		if rest, ok := strings.CutPrefix(arg, mount); ok && (rest == "" || rest[0] == '/') {
			return here + rest
		}
	}
	return arg
}

// downward writes the files of downward API volumes, each in one move.
func (p *places) downward(pod *corev1.Pod) error {
	for folder, items := range p.items {
		for _, item := range items {
			text, path := field(pod, item.FieldRef.FieldPath), filepath.Join(folder, item.Path)
			if before, ok := p.shown[path]; ok && before == text {
				continue
			}
			p.shown[path] = text
			if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
				return err
			}
			if err := os.Rename(path+".new", path); err != nil {
				return err
			}
		}
	}
	return nil
}

// field returns the value of a field of a Pod.
func field(pod *corev1.Pod, path string) string {
	name, key, _ := strings.Cut(strings.TrimSuffix(path, "']"), "['")
	switch name {
	case "metadata.uid":
		return string(pod.UID)
	case "metadata.labels":
		return pod.Labels[key]
	case "metadata.annotations":
		return pod.Annotations[key]
	}
	return ""
}
