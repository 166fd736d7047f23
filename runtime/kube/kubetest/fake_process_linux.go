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
	api    *API
	items  map[string][]corev1.DownwardAPIVolumeFile // by folder
	links  []link
	shown  map[string]string // content of downward files and those of objects
}

func newPlaces(folder string, c *Container, files map[string]string) *places {
	p := &places{
		folder: folder, api: c.kubelet.api, report: filepath.Join(folder, "report-"+c.Spec.Name), mounts: map[string]string{}, files: files,
		items: map[string][]corev1.DownwardAPIVolumeFile{}, shown: map[string]string{},
	}
	for _, mount := range c.Spec.VolumeMounts {
		p.mounts[mount.MountPath] = filepath.Join(folder, mount.Name)
	}
	for _, volume := range c.Pod.Spec.Volumes {
		p.add(filepath.Join(folder, volume.Name), volume)
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
	deepest, found := "", arg
	for mount, here := range p.mounts {
		rest, ok := strings.CutPrefix(arg, mount)
		if ok && (rest == "" || rest[0] == '/') && len(mount) > len(deepest) {
			deepest, found = mount, here+rest
		}
	}
	return found
}

// downward writes the files of downward API volumes, and those of objects that are
// there.
func (p *places) downward(pod *corev1.Pod) error {
	for folder, items := range p.items {
		for _, item := range items {
			if err := p.show(filepath.Join(folder, item.Path), field(pod, item.FieldRef.FieldPath)); err != nil {
				return err
			}
		}
	}
	for _, l := range p.links {
		for _, o := range p.api.Objects(l.resource, pod.Namespace) {
			for _, item := range l.items {
				text, ok := dataOf(o)[item.Key]
				if o.GetName() != l.name || !ok {
					continue
				}
				if err := p.show(filepath.Join(l.folder, item.Path), string(text)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// show writes a file in one move, unless it has this content.
func (p *places) show(path, text string) error {
	if before, ok := p.shown[path]; ok && before == text {
		return nil
	}
	p.shown[path] = text
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// link is a part of a volume whose files are the data of an optional object.
type link struct {
	folder, resource, name string
	items                  []corev1.KeyToPath
}

// add notes what the files of a volume contain.
func (p *places) add(folder string, volume corev1.Volume) {
	switch {
	case volume.DownwardAPI != nil:
		p.items[folder] = volume.DownwardAPI.Items
	case volume.Secret != nil:
		p.links = append(p.links, link{folder, secrets, volume.Secret.SecretName, volume.Secret.Items})
	case volume.ConfigMap != nil:
		p.links = append(p.links, link{folder, configMaps, volume.ConfigMap.Name, volume.ConfigMap.Items})
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			switch {
			case source.DownwardAPI != nil:
				p.items[folder] = append(p.items[folder], source.DownwardAPI.Items...)
			case source.ConfigMap != nil:
				p.links = append(p.links, link{folder, configMaps, source.ConfigMap.Name, source.ConfigMap.Items})
			}
		}
	}
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
