package docker

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/jsonstream"
	"pgregory.net/rapid"
)

func TestPullProgress(t *testing.T) {
	begin := time.Now()
	n := newPullProgress(begin)
	part := func(current int64) *jsonstream.Progress {
		return &jsonstream.Progress{Current: current << 20, Total: 100 << 20}
	}
	var got []string
	for i, m := range []jsonstream.Message{
		{ID: "latest", Status: "Pulling from story"},
		{ID: "a", Status: "Pulling fs layer"},
		{ID: "b", Status: "Already exists"},
		{ID: "a", Status: "Downloading", Progress: part(10)},
		{ID: "a", Status: "Downloading", Progress: part(20)},
		{ID: "a", Status: "Downloading", Progress: part(60)},
		{ID: "a", Status: "Downloading", Progress: part(70)},
		{ID: "a", Status: "Retrying in 5 seconds"},
		{ID: "a", Status: "Download complete"},
		{ID: "a", Status: "Extracting", Progress: part(50)},
		{ID: "a", Status: "Pull complete"},
		{Status: "Digest: sha256:abc"},
		{},
	} {
		got = append(got, n.lines(m, begin.Add(time.Duration(i)*2*time.Second))...)
	}
	want := []string{
		"latest: Pulling from story", "b: Already exists", "Downloaded 60.0 MiB of 100.0 MiB so far",
		"a: Retrying in 5 seconds", "a: Pull complete", "Digest: sha256:abc",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
}

// mayLackMemory is the reason if the engine has not set OOMKilled.
const mayLackMemory = "killed; it may have run out of memory, which docker.memory limits"

func TestExitReason(t *testing.T) {
	for _, c := range []struct {
		state   container.State
		limited bool
		want    string
	}{
		{container.State{ExitCode: 0, OOMKilled: true}, true, ""},
		{container.State{ExitCode: 10}, true, ""},
		{container.State{ExitCode: 137, OOMKilled: true}, true, "out of memory"},
		{container.State{ExitCode: 137}, true, mayLackMemory},
		{container.State{ExitCode: 137}, false, "killed"},
		{container.State{ExitCode: 143}, true, "terminated"},
		{container.State{ExitCode: 139}, true, "ended by signal 11 (segmentation fault)"},
		{container.State{ExitCode: 128, Error: "mount\nfailed"}, true, "mount failed"},
		{container.State{ExitCode: 3}, true, ""},
		{container.State{ExitCode: -1}, true, ""},
	} {
		if got := exitReason(c.state, c.limited); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.state, got, c.want)
		}
	}
}

func TestNewName(t *testing.T) {
	valid := regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)
	seen := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		name := newName(rapid.String().Draw(t, "job"))
		if !valid.MatchString(name) || len(name) > 63 || !strings.HasPrefix(name, namePrefix) || seen[name] {
			t.Errorf("the name is %q", name)
		}
		seen[name] = true
	})
}

func TestIsID(t *testing.T) {
	if !isID(containerID) {
		t.Error("the id of a container is not accepted")
	}
	for _, id := range []string{"", "..", strings.Repeat("/", 64), strings.Repeat("A", 64), containerID + "0",
		containerID[1:]} {
		if isID(id) {
			t.Errorf("%q is accepted as id", id)
		}
	}
}
