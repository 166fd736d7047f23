package agentid

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// heldDirectory is the environment variable with the state directory for a second process of
// this test program. This process has the identity until it is killed or the test program ends.
const heldDirectory = "AGENTID_TEST_DIRECTORY"

// heldConfig is the configuration file of the second process.
const heldConfig = "/etc/agent.yaml"

func TestMain(m *testing.M) {
	if directory := os.Getenv(heldDirectory); directory != "" {
		agent, err := Take(directory, heldConfig)
		if err != nil {
			panic(err)
		}
		fmt.Println(agent.ID)
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test program ends
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startAgent starts another process that takes an identity, and returns the id.
func startAgent(t *testing.T, directory string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), heldDirectory+"="+directory)
	stdin, err := cmd.StdinPipe()
	noError(t, err)
	stdout, err := cmd.StdoutPipe()
	noError(t, err)
	noError(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close() })
	id, err := bufio.NewReader(stdout).ReadString('\n')
	noError(t, err)
	return cmd, strings.TrimSpace(id)
}

// take takes an identity and releases it when the test ends.
func take(t *testing.T, directory string) *Agent {
	t.Helper()
	agent, err := Take(directory, "")
	noError(t, err)
	t.Cleanup(agent.Close)
	if len(agent.ID) != 32 {
		t.Errorf("the id is %q, want 32 digits", agent.ID)
	}
	return agent
}

func TestTake(t *testing.T) {
	t.Run("a restarted agent has the same id", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), "above", "state")
		first := take(t, directory)
		first.Close()
		again := take(t, directory)
		if again.ID != first.ID || again.Warning != nil {
			t.Errorf("the id was %s and is now %s, with the warning %v; want the same id without a warning", first.ID,
				again.ID, again.Warning)
		}
		for name, mode := range map[string]os.FileMode{"": 0o700, idName: 0o600, lockName: 0o600} {
			if info, err := os.Stat(filepath.Join(directory, name)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s has the mode %v (%v), want %v", filepath.Join(directory, name), info.Mode(), err, mode)
			}
		}
	})
	t.Run("agents in different directories have different ids", func(t *testing.T) {
		if one, two := take(t, t.TempDir()), take(t, t.TempDir()); one.ID == two.ID {
			t.Errorf("both agents have the id %s", one.ID)
		}
	})
	t.Run("a second agent is refused until the first is killed", func(t *testing.T) {
		directory := t.TempDir()
		killed, id := startAgent(t, directory)
		program, err := os.Executable()
		noError(t, err)
		_, err = Take(directory, "")
		want := fmt.Sprintf("another agent uses the state directory %s: %q (pid %d), with the configuration file %q: "+
			"give one of the two agents another directory, with state_directory or PULUMI_AGENT_STATE_DIRECTORY",
			directory, program, killed.Process.Pid, heldConfig)
		if !errors.Is(err, ErrInUse) || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
		_ = killed.Process.Kill()
		_ = killed.Wait()
		if again := take(t, directory); again.ID != id {
			t.Errorf("the id is %s, want %s, as before the agent was killed", again.ID, id)
		}
	})
	t.Run("one of several agents that start together gets the id", func(t *testing.T) {
		directory := t.TempDir()
		var taken, refused atomic.Int32
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				agent, err := Take(directory, "")
				switch {
				case err == nil:
					t.Cleanup(agent.Close)
					taken.Add(1)
				case errors.Is(err, ErrInUse):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if taken.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%d agents have the id and %d were refused, want 1 and 19", taken.Load(), refused.Load())
		}
	})
	t.Run("a missing id causes a warning if an earlier agent used a target", func(t *testing.T) {
		directory := t.TempDir()
		first := take(t, directory)
		noError(t, first.AddTarget("docker"))
		first.Close()
		noError(t, os.Remove(filepath.Join(directory, idName)))
		if again := take(t, directory); again.ID == first.ID || again.Warning == nil {
			t.Errorf("the id was %s and is now %s, and the warning is %v", first.ID, again.ID, again.Warning)
		}
	})
}

func TestOwnerOf(t *testing.T) {
	t.Run("the owner is known after it has ended", func(t *testing.T) {
		directory := t.TempDir()
		agent, err := Take(directory, "agent.yaml")
		noError(t, err)
		agent.Close()
		file, err := filepath.Abs("agent.yaml")
		noError(t, err)
		owner, err := OwnerOf(directory)
		if err != nil || owner.PID != os.Getpid() || owner.Config != file {
			t.Errorf("the owner is %+v (%v)", owner, err)
		}
		for config, want := range map[string]bool{"agent.yaml": true, file: true, "other.yaml": false, "": false} {
			if owner.RunsWith(config) != want {
				t.Errorf("RunsWith(%q) is %t, want %t", config, !want, want)
			}
		}
	})
	t.Run("a longer name is overwritten by a shorter one", func(t *testing.T) {
		directory := t.TempDir()
		first, err := Take(directory, "/"+strings.Repeat("long/", 100))
		noError(t, err)
		first.Close()
		take(t, directory)
		if owner, err := OwnerOf(directory); err != nil || owner.PID != os.Getpid() || owner.Config != "" {
			t.Errorf("the owner is %+v (%v)", owner, err)
		}
	})
	for name, text := range map[string]string{
		"an empty file": "", "other text": "cmwa", "a part": `{"program":"/bin/cmwa","p`, "a list": "[]",
		"wrong types": `{"pid":"1"}`, "a huge file": `{"program":"` + strings.Repeat("a", 2*maxOwner) + `"}`,
	} {
		t.Run(name+" has no owner", func(t *testing.T) {
			directory := t.TempDir()
			noError(t, os.WriteFile(filepath.Join(directory, lockName), []byte(text), 0o600))
			owner, err := OwnerOf(directory)
			if err != nil || owner != (Owner{}) || !owner.RunsWith("agent.yaml") {
				t.Errorf("the owner is %+v (%v)", owner, err)
			}
			if text := owner.String(); text != "a process that has not stored its name" {
				t.Errorf("the owner is described as %s", text)
			}
		})
	}
	t.Run("names that control a terminal are quoted", func(t *testing.T) {
		owner := Owner{Program: "/bin/\x1b[2J", PID: 1, Config: "/a\nb"}
		if text := owner.String(); strings.ContainsAny(text, "\x1b\n") {
			t.Errorf("the description is %q", text)
		}
	})
	t.Run("a directory that does not exist has no owner", func(t *testing.T) {
		if owner, err := OwnerOf(filepath.Join(t.TempDir(), "none")); err != nil || owner != (Owner{}) {
			t.Errorf("the owner is %+v (%v)", owner, err)
		}
	})
	t.Run("a link in place of the lock is an error", func(t *testing.T) {
		directory := t.TempDir()
		noError(t, os.Symlink("/etc/hostname", filepath.Join(directory, lockName)))
		if owner, err := OwnerOf(directory); err == nil {
			t.Errorf("the owner is %+v", owner)
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
			directory := t.TempDir()
			first := take(t, directory)
			path := filepath.Join(directory, idName)
			first.Close()
			noError(t, os.Remove(path))
			noError(t, damage(path))
			again := take(t, directory)
			if again.ID == first.ID || again.Warning == nil || !strings.Contains(fmt.Sprint(again.Warning), path) {
				t.Errorf("the id is %s and the warning %v, want a new id and a warning with the path", again.ID,
					again.Warning)
			}
			again.Close()
			if third := take(t, directory); third.ID != again.ID || third.Warning != nil {
				t.Errorf("the new id was not kept: %s, then %s, %v", again.ID, third.ID, third.Warning)
			}
		})
	}
}

func TestTakeUnusableDirectory(t *testing.T) {
	directory := t.TempDir()
	file, linked := filepath.Join(directory, "file"), filepath.Join(directory, "linked")
	noError(t, os.WriteFile(file, nil, 0o600))
	noError(t, os.Mkdir(linked, 0o700))
	noError(t, os.Symlink(file, filepath.Join(linked, lockName)))
	for _, unusable := range []string{file, filepath.Join(file, "state"), "/proc/cmwa", linked} {
		if agent, err := Take(unusable, ""); err == nil {
			t.Errorf("Take(%s) returned the id %s, want an error", unusable, agent.ID)
		}
	}
	agent := Temporary()
	if err := agent.AddTarget("docker"); err != nil || fmt.Sprint(agent.Targets()) != "[docker]" {
		t.Errorf("AddTarget returned %v, and the targets are %v", err, agent.Targets())
	}
	agent.Close()
	if agent.ID == Temporary().ID {
		t.Error("two temporary ids are equal")
	}
}

func TestTargets(t *testing.T) {
	directory := t.TempDir()
	agent := take(t, directory)
	for _, target := range []string{"process", "docker", "docker"} {
		noError(t, agent.AddTarget(target))
	}
	agent.RemoveTarget("docker") // in use
	agent.Close()
	agent = take(t, directory)
	if got := fmt.Sprint(agent.Targets()); got != "[docker process]" {
		t.Errorf("the targets are %s, want docker and process", got)
	}
	agent.RemoveTarget("docker")
	if got := fmt.Sprint(agent.Targets()); got != "[process]" {
		t.Errorf("the targets are %s, want process", got)
	}
}
