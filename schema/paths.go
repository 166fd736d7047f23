package schema

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// resolvePaths resolves each relative path that the file sets. Such a path starts at the
// directory of the configuration file. Relative paths of variables start at the working directory
// and are not changed.
//
// A configuration for another machine keeps its paths, because its directory there is
// unknown.
func (s *scope) resolvePaths() {
	directory := directoryOf(s.load.source.Path)
	if directory == "" || s.load.source.Elsewhere {
		return
	}

	// The other keys with paths accept absolute paths only.
	for _, at := range []struct {
		key  string
		path *string
	}{
		{"token_file", &s.pool.TokenFile},
		{"ca_file", &s.pool.CAFile},
		{"oidc_token_file", &s.pool.OIDCTokenFile},
		{"pod_template_file", &s.pool.PodTemplateFile},
		{"working_directory", &s.pool.WorkingDirectory},
		{"ecs.task_definition_template_file", &s.pool.ECS.TaskDefinitionTemplateFile},
	} {
		name := *at.path
		if name == "" || filepath.IsAbs(name) || s.origins[at.key].Line == 0 || !s.valid(at.key) {
			continue
		}
		*at.path = filepath.Join(directory, name)
		// The digest must not depend on whether the path of the configuration file is relative.
		fmt.Fprintf(s.load.digest, "\x00%q\x00%s", position.Join(s.at, at.key), absolute(*at.path))
	}
}

// Paths returns the absolute paths of the configuration and of the files that it names.
func (c *Config) Paths() (paths []string) {
	for _, path := range append([]string{c.Path}, c.Files...) {
		if path != "" {
			paths = append(paths, absolute(path))
		}
	}
	return paths
}

// absolute returns a path as an absolute path if the working directory is known.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// showable reports whether a message may show the value of a key that expects a path. The
// value may be a secret in the wrong place, so each element must be a name that a message
// may show.
func showable(path string) bool {
	if secret.ContainsToken(path) {
		return false
	}
	for element := range strings.SplitSeq(path, "/") {
		if element = strings.TrimPrefix(element, "~"); element != "" && position.SafeName(element) != element {
			return false
		}
	}
	return true
}

// fileAt returns how a message names the file at the path of a key: "file PATH" if the
// value of the key may be shown, and otherwise "such file". A name without a slash or a dot
// may be a password; the message then shows only the directory.
func (s *scope) fileAt(key, path string) string {
	v, _ := s.values.Get(strings.Split(key, ".")...)
	name, ok := v.Data.(string)
	directory := filepath.Dir(path)
	switch {
	case !ok || !showable(name):
		return "such file"
	case strings.ContainsAny(name, "/."):
		return "file " + path
	case directory != ".":
		return "file of this name in " + directory
	default:
		return "such file"
	}
}

// hintForPath returns a hint for a path with ~ or $, which only a shell expands, and the
// other hint for any other path.
func hintForPath(path, other string) string {
	for _, beginning := range []string{"~", "$"} {
		if strings.HasPrefix(path, beginning) || strings.Contains(path, "/"+beginning) {
			return beginning + " is not expanded here: write the absolute path"
		}
	}
	return other
}
