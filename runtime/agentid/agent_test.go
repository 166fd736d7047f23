package agentid

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// heldFolder is the environment variable with the state folder for a second process of this
// test program. This process holds an identity until it is killed or the test program ends.
const heldFolder = "AGENTID_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(heldFolder); folder != "" {
		agent, err := Take(context.Background(), folder, "")
		if err != nil {
			panic(err)
		}
		fmt.Println(agent.ID)
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test program ends
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startAgent starts another process that holds an identity, and returns its id.
func startAgent(t *testing.T, folder string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), heldFolder+"="+folder)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close() })
	id, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(id)
}

// take takes an identity and releases it when the test ends.
func take(t *testing.T, folder, config string) *Agent {
	t.Helper()
	agent, err := Take(t.Context(), folder, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	if len(agent.ID) != 32 {
		t.Errorf("the id is %q, want 32 digits", agent.ID)
	}
	return agent
}

func number(a *Agent) string { return filepath.Base(a.Folder) }

func TestTake(t *testing.T) {
	t.Run("a restarted agent has the same id", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "state")
		first := take(t, folder, "/etc/agent.yaml")
		first.Close()
		again := take(t, folder, "/etc/agent.yaml")
		if again.ID != first.ID || again.Warning != nil {
			t.Errorf("the id was %s and is now %s, with the warning %v; want the same id without a warning", first.ID,
				again.ID, again.Warning)
		}
		for _, path := range []string{folder, filepath.Dir(again.Folder), again.Folder} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s has the mode %v (%v), want 0700", path, info.Mode(), err)
			}
		}
		if info, err := os.Stat(filepath.Join(again.Folder, idName)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the id file has the mode %v (%v), want 0600", info.Mode(), err)
		}
	})
	t.Run("files with the same name in different folders have different ids", func(t *testing.T) {
		folder := t.TempDir()
		ids := map[string]bool{}
		for _, config := range []string{"/a/agent.yaml", "/b/agent.yaml", "", "/a/" + strings.Repeat("ä ", 200)} {
			agent := take(t, folder, config)
			if ids[agent.ID] || number(agent) != "1" {
				t.Errorf("%.20q has id %s and number %s, want a new id and number 1", config, agent.ID, number(agent))
			}
			ids[agent.ID] = true
		}
	})
	t.Run("a second agent with the same file takes the next number", func(t *testing.T) {
		folder := t.TempDir()
		one, two := take(t, folder, ""), take(t, folder, "")
		if one.ID == two.ID || number(two) != "2" {
			t.Errorf("the agent %s has number %s, and %s has number %s; want two ids, and number 2", one.ID,
				number(one), two.ID, number(two))
		}
		one.Close()
		if three := take(t, folder, ""); three.ID != one.ID {
			t.Errorf("number %s was taken, want the free number 1", number(three))
		}
	})
	t.Run("the free number with jobs in flight is preferred", func(t *testing.T) {
		folder := t.TempDir()
		agents := []*Agent{take(t, folder, ""), take(t, folder, ""), take(t, folder, "")}
		agents[1].Jobs(+1)
		agents[2].Jobs(+1)
		agents[0].Close()
		agents[2].Close()
		again := take(t, folder, "")
		if again.ID != agents[2].ID {
			t.Errorf("number %s was taken, want 3", number(again))
		}
		again.Jobs(+1) // as after the adoption of a job
		again.Jobs(-1)
		again.Close()
		if again = take(t, folder, ""); number(again) != "3" {
			t.Errorf("number %s was taken before Empty was called, want 3", number(again))
		}
		again.Empty()
		again.Close()
		if again = take(t, folder, ""); number(again) != "1" {
			t.Errorf("number %s was taken, want 1", number(again))
		}
	})
	t.Run("a killed agent's number is free", func(t *testing.T) {
		folder := t.TempDir()
		killed, id := startAgent(t, folder)
		if other := take(t, folder, ""); other.ID == id {
			t.Error("the id of a running process was taken")
		}
		_ = killed.Process.Kill()
		_ = killed.Wait()
		if again := take(t, folder, ""); again.ID != id {
			t.Errorf("number %s was taken, want the number of the killed agent", number(again))
		}
	})
	t.Run("agents that start together have different ids", func(t *testing.T) {
		folder := t.TempDir()
		var mu sync.Mutex
		ids := map[string]int{}
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				agent, err := Take(t.Context(), folder, "/agent.yaml")
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(agent.Close)
				mu.Lock()
				defer mu.Unlock()
				ids[agent.ID]++
			})
		}
		group.Wait()
		if len(ids) != 20 {
			t.Errorf("20 agents have %d ids: %v", len(ids), ids)
		}
		if _, err := os.Stat(filepath.Join(folder, folderOf("/agent.yaml"), "21")); err == nil {
			t.Error("there is a folder 21 for 20 agents")
		}
	})
}

func TestTakeDamagedID(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"empty":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"short":      func(path string) error { return os.WriteFile(path, []byte("0123456789abcdef"), 0o600) },
		"long":       func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("a", 1<<20)), 0o600) },
		"other text": func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("../x", 8)), 0o600) },
		"link":       func(path string) error { return os.Symlink("/etc/hostname", path) },
		"pipe":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			first := take(t, folder, "")
			path := filepath.Join(first.Folder, idName)
			first.Close()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			again := take(t, folder, "")
			if again.ID == first.ID || again.Warning == nil || !strings.Contains(fmt.Sprint(again.Warning), path) {
				t.Errorf("the id is %s and the warning %v, want a new id and a warning with the path", again.ID,
					again.Warning)
			}
			again.Close()
			if third := take(t, folder, ""); third.ID != again.ID || third.Warning != nil {
				t.Errorf("the new id was not kept: %s, then %s, %v", again.ID, third.ID, third.Warning)
			}
		})
	}
}

func TestTakeUnusableFolder(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(folder, "linked")
	if err := os.Mkdir(linked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(linked, noFile)); err != nil {
		t.Fatal(err)
	}
	for _, unusable := range []string{file, filepath.Join(file, "state"), "/proc/cmwa", linked} {
		if agent, err := Take(t.Context(), unusable, ""); err == nil {
			t.Errorf("Take(%s) returned the id %s, want an error", unusable, agent.ID)
		}
	}
	agent := Temporary()
	agent.Jobs(+1)
	if err := agent.AddTarget("docker"); err != nil || fmt.Sprint(agent.Targets()) != "[docker]" {
		t.Errorf("AddTarget returned %v, and the targets are %v", err, agent.Targets())
	}
	agent.Empty()
	agent.Close()
	if agent.ID == Temporary().ID {
		t.Error("two temporary ids are equal")
	}
}

func TestTargets(t *testing.T) {
	folder := t.TempDir()
	agent := take(t, folder, "")
	for _, target := range []string{"process", "docker", "docker"} {
		if err := agent.AddTarget(target); err != nil {
			t.Fatal(err)
		}
	}
	agent.RemoveTarget("docker") // in use
	agent.Close()
	agent = take(t, folder, "")
	if got := fmt.Sprint(agent.Targets()); got != "[docker process]" {
		t.Errorf("the targets are %s, want docker and process", got)
	}
	agent.RemoveTarget("docker")
	if got := fmt.Sprint(agent.Targets()); got != "[process]" {
		t.Errorf("the targets are %s, want process", got)
	}
}

func TestDirectory(t *testing.T) {
	for _, c := range []struct {
		configured string
		environ    map[string]string
		uid        int
		want       string
	}{
		{"/srv/state", map[string]string{"STATE_DIRECTORY": "/var/lib/a"}, 1, "/srv/state"},
		{"", map[string]string{"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "HOME": "/h"}, 0, "/var/lib/a"},
		{"", map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1, "/x/cmwa"},
		{"", map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"}, 1, "/h/.local/state/cmwa"},
		{"", map[string]string{"HOME": "/root"}, 0, "/var/lib/cmwa"},
		{"", map[string]string{}, 1, ""},
	} {
		environ := func(name string) (string, bool) { value, ok := c.environ[name]; return value, ok }
		got, err := Directory(c.configured, environ, c.uid)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("for %+v Directory returned %q, %v", c, got, err)
		}
	}
}
