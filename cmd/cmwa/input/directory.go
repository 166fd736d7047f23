package input

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Limits of a walk through a directory, so that the walk of a wrong directory such as / ends soon.
const (
	maxEntries = 100_000 // files and directories
	maxChecked = 1_000   // files for the agent
	// maxManifests limits the manifests that are in memory at once.
	maxManifests = 10_000
)

// candidate is a file of a directory that may be for the agent.
type candidate struct {
	source    schema.Source
	manifests bool
	unread    position.Problems
}

// addObjects gives each file of manifests the objects of all manifests in its directory.
func addObjects(candidates []candidate) {
	inDirectory := map[string][]schema.Source{}
	for _, c := range candidates {
		if c.manifests {
			directory := filepath.Dir(c.source.Path)
			inDirectory[directory] = append(inDirectory[directory], c.source)
		}
	}
	objects := map[string]*schema.Objects{}
	for directory, sources := range inDirectory {
		if len(sources) > 1 {
			objects[directory] = schema.ReadObjects(sources)
		}
	}
	for i, c := range candidates {
		if c.manifests {
			candidates[i].source.Objects = objects[filepath.Dir(c.source.Path)]
		}
	}
}

// directoryError is the reason why a directory cannot be checked.
type directoryError string

func (e directoryError) Error() string { return string(e) }

// walk adds the files in a directory and its subdirectories that are configurations, Pod templates
// or manifests with either. It considers only names that end in .yaml, .yml or .json, and
// selects files with isForAgent. It does not follow links to subdirectories, and skips names
// that begin with a dot. The files are added in the order of their names.
//
// A container may take its variables from a ConfigMap in another file of its directory. So whether
// a file of manifests is for the agent is decided when all files have been read.
func (r Reader) walk(ctx context.Context, directory string, like schema.Source, files *Files) error {
	var candidates []candidate
	found, entries := 0, 0
	root := directory + string(filepath.Separator) // WalkDir follows a link only with the separator
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		entries++
		hidden := path != root && strings.HasPrefix(entry.Name(), ".")
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && path == root:
			return err
		case entries > maxEntries:
			return directoryError(fmt.Sprintf("the directory has more than %d files", maxEntries))
		case hidden && entry.IsDir():
			return fs.SkipDir
		case hidden, entry.IsDir() && err == nil:
			return nil
		case !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path))) && err == nil:
			return nil
		}

		// Read the path if it is a regular file, or a link to one as in a mounted ConfigMap.
		if info, wrong := os.Stat(path); wrong == nil && err == nil && !info.Mode().IsRegular() {
			return nil
		}
		source := like
		source.Path = path
		if err == nil {
			source.Content, source.Mode, err = r.read(ctx, path)
		}
		one := candidate{source: source}
		if err != nil {
			one.unread = position.Problems{unreadable(path, path, err)}
		} else if _, one.manifests = schema.Configurations(source); !one.manifests && !isForAgent(source) {
			files.Skipped = append(files.Skipped, path)
			return nil
		}
		candidates = append(candidates, one)
		if !one.manifests {
			found++
		}
		if found > maxChecked || len(candidates) > maxManifests {
			return directoryError(fmt.Sprintf("the directory has more than %d files for the agent", maxChecked))
		}
		return nil
	})

	addObjects(candidates)
	for _, c := range candidates {
		if c.manifests && !isForAgent(c.source) {
			files.Skipped = append(files.Skipped, c.source.Path)
			continue
		}
		if c.unread != nil {
			files.Unread[len(files.Sources)] = c.unread
		}
		files.Sources = append(files.Sources, c.source)
		if c.manifests {
			found++
		}
	}
	slices.Sort(files.Skipped)
	if err == nil && found > maxChecked {
		return directoryError(fmt.Sprintf("the directory has more than %d files for the agent", maxChecked))
	}
	if err == nil && found == 0 {
		return directoryError("the directory has no configuration, no Pod template, and no manifest with one of them " +
			"or with variables of the agent")
	}
	return err
}

// isForAgent reports whether a file is a configuration, a Pod template, or a file of
// manifests that contain a configuration, a Pod template or variables of the agent. A file
// is a configuration if it has the usual name, or if a line begins with a key of a
// configuration. So a configuration with broken YAML counts, too.
func isForAgent(source schema.Source) bool {
	if base := filepath.Base(source.Path); base == schema.FileName || base == schema.OldFileName {
		return true
	}
	if _, ok := schema.Configurations(source); ok {
		problems := schema.Vet(source)
		return !slices.ContainsFunc(problems, func(p position.Problem) bool {
			return p.Rule == position.RuleManifest && p.Line == 0
		})
	}
	return len(schema.Templates(source)) > 0 || hasKey(source.Content)
}

// topLevelKey is a line with a key at the top level, in block style.
var topLevelKey = regexp.MustCompile(`(?m)^["']?([a-z_]+)["']?:`)

// topLevelKeys returns the keys of a configuration. It omits keys such as version, which the
// agent ignores and which files of other programs contain.
var topLevelKeys = sync.OnceValue(func() map[string]bool {
	keys := map[string]bool{}
	for _, f := range schema.Fields() {
		if key, _, _ := strings.Cut(f.Key, "."); !f.Ignored && !f.OnlyVariable {
			keys[key] = true
		}
	}
	return keys
})

func hasKey(content []byte) bool {
	for _, m := range topLevelKey.FindAllSubmatch(content, -1) {
		if topLevelKeys()[string(m[1])] {
			return true
		}
	}
	return false
}
