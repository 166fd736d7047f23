package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReloadWithoutWorkingDirectory deletes the working directory of a running agent, as an
// upgrade or a cleanup of temporary directories may do. The agent still reloads a configuration
// with an absolute path.
func TestReloadWithoutWorkingDirectory(t *testing.T) {
	t.Parallel()
	for name, named := range map[string]bool{
		"a file in --config is reloaded": true, "a file in the home directory is reloaded": false,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "process")
			v, p := w.countPolls(), w.pools(2)
			directory := filepath.Join(w.directory, "gone")
			w.must(os.Mkdir(directory, 0o700))
			file, args := filepath.Join(w.directory, "pulumi-workflow-agent.yaml"), []string{"run"} // HOME has the file
			if named {
				args = append(args, "--config", file)
			}
			w.replace(file, w.content("token: "+p[0].token))
			agent := w.startIn(directory, "agent", nil, "cmwa", args...)
			agent.waitFor("converged")
			w.must(os.Remove(directory))

			w.replace(file, w.content("token: "+p[1].token))
			w.waitPoll(v, p[1].token)
			w.wantNoPolls(v, p[0].token, p[1].token)
			w.replace(file, w.content("token: "+p[1].token, "log_level: loud"))
			agent.waitFor("configuration rejected")
			w.replace(file, w.content("token: "+p[1].token))
			agent.waitFor("configuration file is valid again, no change")
			w.runShort("job", p[1].id)
		})
	}
}
