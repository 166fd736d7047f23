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

// Processes returns a function for [NewKubelet] that runs each container as a process of
// this machine, in its own PID namespace. Files maps paths in images to files on this
// machine. Volumes are directories on this machine. Arguments of the container that are paths
// in images or volumes are translated.
func Processes(t testing.TB, files map[string]string) func(*Container) int {
	root := t.TempDir()
	return func(c *Container) int {
		directory := filepath.Join(root, string(c.Pod.UID))
		directories := newVolumeDirectories(directory, c, files)
		if err := directories.create(c); err != nil {
			c.Report(err.Error())
			return 128
		}

		var args []string
		for _, arg := range append(append([]string{}, c.Spec.Command...), c.Spec.Args...) {
			args = append(args, directories.translate(arg))
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

		// Wait for its end, and read its termination message.
		code := supervise(c, cmd, directories)
		if text, err := os.ReadFile(directories.report); err == nil && len(text) > 0 {
			c.Report(string(text))
		}
		return code
	}
}

// supervise waits for the end of a container, and updates the files in its volumes
// meanwhile.
func supervise(c *Container, cmd *exec.Cmd, p *volumeDirectories) int {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	term, kill := c.Term, c.Kill
	for {
		pod, news := c.Newest()
		if err := p.writeFiles(pod); err != nil {
			_ = cmd.Process.Kill()
		}

		// Wait for a change, a signal or the end of the process.
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

// volumeDirectories maps the volumes of a container to directories.
type volumeDirectories struct {
	directory string
	report    string
	mounts    map[string]string // path in the container to path on this machine
	files     map[string]string
	api       *API
	items     map[string][]corev1.DownwardAPIVolumeFile // by directory
	links     []objectFiles
	written   map[string]string // contents of the files in volumes, by path
}

func newVolumeDirectories(directory string, c *Container, files map[string]string) *volumeDirectories {
	p := &volumeDirectories{
		directory: directory, api: c.kubelet.api, report: filepath.Join(directory, "report-"+
			c.Spec.Name), mounts: map[string]string{}, files: files,
		items: map[string][]corev1.DownwardAPIVolumeFile{}, written: map[string]string{},
	}
	for _, mount := range c.Spec.VolumeMounts {
		p.mounts[mount.MountPath] = filepath.Join(directory, mount.Name)
	}
	for _, volume := range c.Pod.Spec.Volumes {
		p.addVolume(filepath.Join(directory, volume.Name), volume)
	}
	return p
}

func (p *volumeDirectories) create(c *Container) error {
	var failures []error
	for _, volume := range c.Pod.Spec.Volumes {
		failures = append(failures, os.MkdirAll(filepath.Join(p.directory, volume.Name), 0o777))
	}
	return errors.Join(append(failures, p.writeFiles(c.Pod))...)
}

// translate returns an argument unchanged or, if it is a path in the container, the
// corresponding path on this machine.
func (p *volumeDirectories) translate(arg string) string {
	if local, ok := p.files[arg]; ok {
		return local
	}
	if arg == corev1.TerminationMessagePathDefault {
		return p.report
	}
	deepest, found := "", arg
	for mount, local := range p.mounts {
		suffix, ok := strings.CutPrefix(arg, mount)
		if ok && (suffix == "" || suffix[0] == '/') && len(mount) > len(deepest) {
			deepest, found = mount, local+suffix
		}
	}
	return found
}

// writeFiles writes the files that come from fields of the Pod, and from objects that
// exist.
func (p *volumeDirectories) writeFiles(pod *corev1.Pod) error {
	for directory, items := range p.items {
		for _, item := range items {
			if err := p.writeFile(filepath.Join(directory, item.Path),
				podField(pod, item.FieldRef.FieldPath)); err != nil {
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
				if err := p.writeFile(filepath.Join(l.directory, item.Path), string(text)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// writeFile replaces a file atomically, unless it has this content.
func (p *volumeDirectories) writeFile(path, text string) error {
	if before, ok := p.written[path]; ok && before == text {
		return nil
	}
	p.written[path] = text
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// objectFiles is a part of a volume whose files are the data of an optional object.
type objectFiles struct {
	directory, resource, name string
	items                     []corev1.KeyToPath
}

// addVolume stores the sources of the files of a volume.
func (p *volumeDirectories) addVolume(directory string, volume corev1.Volume) {
	switch {
	case volume.DownwardAPI != nil:
		p.items[directory] = volume.DownwardAPI.Items
	case volume.Secret != nil:
		p.links = append(p.links, objectFiles{directory, secrets, volume.Secret.SecretName, volume.Secret.Items})
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			switch {
			case source.DownwardAPI != nil:
				p.items[directory] = append(p.items[directory], source.DownwardAPI.Items...)
			case source.ConfigMap != nil:
				p.links = append(p.links,
					objectFiles{directory, configMaps, source.ConfigMap.Name, source.ConfigMap.Items})
			}
		}
	}
}

// podField returns the value of a field of a Pod.
func podField(pod *corev1.Pod, path string) string {
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
