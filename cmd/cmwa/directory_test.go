package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The working directory of a process may be deleted while it runs, by an upgrade or
// by the cleaning of a temporary folder. A configuration with an absolute path is
// followed without it.
func TestReloadWithoutWorkingDirectory(t *testing.T) {
	t.Parallel()
	for name, named := range map[string]bool{"a file that is named is followed": true, "a file that was found in the home folder is followed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "process")
			v, p := w.turnstile(), w.pools(2)
			directory := filepath.Join(w.folder, "gone")
			w.must(os.Mkdir(directory, 0o700))
			file, args := filepath.Join(w.folder, "pulumi-workflow-agent.yaml"), []string{"run"} // HOME
			if named {
				args = append(args, "--config", file)
			}
			w.replace(file, w.content("token: "+p[0].token))
			agent := w.startIn(directory, "agent", nil, "cmwa", args...)
			agent.says("converged")
			w.must(os.Remove(directory))

			w.replace(file, w.content("token: "+p[1].token))
			w.polls(v, p[1].token)
			w.silent(v, p[0].token, p[1].token)
			w.replace(file, w.content("token: "+p[1].token, "log_level: loud"))
			agent.says("configuration refused")
			w.replace(file, w.content("token: "+p[1].token))
			agent.says("configuration is again the one in force")
			w.short("job", p[1].id)
			w.await("job", "succeeded")
		})
	}
}
