package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/journal"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRecord returns the record of a job that was claimed just now.
func newRecord(job string) runtime.Record {
	return runtime.Record{
		Job: job, WorkflowID: "deployment-of-" + job, Kind: runtime.Deployment,
		Token: secret.New("token-of-" + job), OIDC: secret.New("oidc-of-" + job),
		Pool: "default-1f0c", PoolName: "default",
		Identity: runtime.Identity{
			Service: "https://service", Organization: "acme", PoolID: "p", Credentials: "token", Target: "docker",
		},
		Generation: 3, CA: "-----BEGIN CERTIFICATE-----\n", Claimed: time.Now().UTC().Round(0),
		Stage: runtime.RecordClaimed,
	}
}

// agent is the directory of an agent, with the log of its journals.
type agent struct {
	t         *testing.T
	directory string
	log       bytes.Buffer
}

func newAgent(t *testing.T) *agent { return &agent{t: t, directory: t.TempDir()} }

// newStoppedAgent returns an agent that has stopped, and whose journal has these records.
func newStoppedAgent(t *testing.T, records ...runtime.Record) *agent {
	t.Helper()
	a := newAgent(t)
	j := a.open()
	a.add(j, records...)
	j.Close()
	return a
}

// open opens the journal, as an agent that starts does.
func (a *agent) open() *journal.Journal {
	a.t.Helper()
	j, err := journal.Open(a.directory, slog.New(slog.NewTextHandler(&a.log, nil)))
	noError(a.t, err)
	a.t.Cleanup(j.Close)
	return j
}

// path returns the path of a file of the journal.
func (a *agent) path(name string) string { return filepath.Join(a.directory, journal.Directory, name) }

// contents returns the contents of all files below the directory.
func (a *agent) contents() (all []byte) {
	a.t.Helper()
	err := filepath.WalkDir(a.directory, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, text...)
		return err
	})
	noError(a.t, err)
	return all
}

// file returns the path of the file with the record of a job.
func (a *agent) file(job string) string {
	a.t.Helper()
	paths, err := filepath.Glob(a.path("*.json"))
	noError(a.t, err)
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(`"job":"`+job+`"`)) {
			return path
		}
	}
	a.t.Fatalf("no file of %v has the record of %s", paths, job)
	return ""
}

// damagedFiles returns the number of files that were renamed because they cannot be read.
func (a *agent) damagedFiles() int {
	found, err := filepath.Glob(a.path("*.damaged"))
	noError(a.t, err)
	return len(found)
}

// add adds records, and fails the test if that fails.
func (a *agent) add(j *journal.Journal, records ...runtime.Record) {
	a.t.Helper()
	for _, record := range records {
		noError(a.t, j.Add(a.t.Context(), record))
	}
}

// want checks the jobs of all records, in order, and returns the records.
func (a *agent) want(j *journal.Journal, jobs ...string) []runtime.Record {
	a.t.Helper()
	records, err := j.List(a.t.Context())
	var got []string
	for _, record := range records {
		got = append(got, record.Job)
	}
	if err != nil || !slices.Equal(got, jobs) {
		a.t.Fatalf("the records are %q (%v), want %q; log:\n%s", got, err, jobs, &a.log)
	}
	return records
}

func TestJournal(t *testing.T) {
	ctx := context.Background()

	t.Run("List returns the records after a restart, the oldest first", func(t *testing.T) {
		a := newAgent(t)
		j := a.open()
		first, second, third := newRecord("z"), newRecord("../../etc/a b\n%"), newRecord(strings.Repeat("long", 200))
		second.Claimed = first.Claimed.Add(time.Second)
		third.Claimed = first.Claimed.Add(time.Minute)
		a.add(j, third, second, first)
		noError(t, j.SetStage(ctx, second.Job, runtime.RecordHandedOff))
		second.Stage, second.Progress = runtime.RecordHandedOff, runtime.Progress{
			Step: 2, Lines: 1000, Status: runtime.Running,
		}
		j.SetProgress(second.Job, second.Progress)
		noError(t, j.SetStage(ctx, third.Job, runtime.RecordReported))
		third.Stage = runtime.RecordReported
		j.Close()

		got := a.want(a.open(), first.Job, second.Job, third.Job)
		for i, want := range []runtime.Record{first, second, third} {
			if got[i] != want {
				t.Errorf("got %#v, %+v, want %+v", got[i], got[i].Progress, want.Progress)
			}
		}
		if got := got[1].Token.Reveal() + got[1].OIDC.Reveal(); got != "token-of-"+second.Job+"oidc-of-"+second.Job {
			t.Errorf("the record has the tokens %q", got)
		}
	})

	t.Run("removed record leaves no token and no file", func(t *testing.T) {
		a := newAgent(t)
		j := a.open()
		for i := range 100 {
			record := newRecord(fmt.Sprint("job-", i))
			record.CA = strings.Repeat("certificate ", 10*i)
			a.add(j, record)
		}
		if text := a.contents(); !bytes.Contains(text, []byte("token-of-job-99")) {
			t.Fatal("the record is not in a file")
		}
		for i := range 200 {
			noError(t, j.Remove(ctx, fmt.Sprint("job-", i/2)))
		}
		j.SetProgress("job-1", runtime.Progress{Step: 1}) // must not write the file again
		if files, err := os.ReadDir(a.path("")); err != nil || len(files) != 1 || files[0].Name() != "reserve" {
			t.Errorf("the files are %v (%v), want the reserve", files, err)
		}
		a.want(j)
	})

	t.Run("record of the same job is replaced", func(t *testing.T) {
		a := newAgent(t)
		j := a.open()
		a.add(j, newRecord("a"))
		again := newRecord("a")
		again.Token = secret.New("another token")
		a.add(j, again)
		j.Close()
		if got := a.want(a.open(), "a"); got[0] != again {
			t.Error("List returned the earlier record")
		}
	})

	t.Run("stage of a job without a record cannot be set", func(t *testing.T) {
		j := newAgent(t).open()
		if err := j.SetStage(ctx, "a", runtime.RecordHandedOff); err == nil {
			t.Error("SetStage returned no error")
		}
		j.SetProgress("a", runtime.Progress{Step: 1})
		if err := j.Remove(ctx, "a"); err != nil {
			t.Error(err)
		}
	})

	t.Run("only the user of the agent has access", func(t *testing.T) {
		a := newStoppedAgent(t, newRecord("a"))
		for path, mode := range map[string]os.FileMode{a.path(""): 0o755, a.file("a"): 0o644} {
			noError(t, os.Chmod(path, mode))
		}
		a.want(a.open(), "a")
		for path, want := range map[string]os.FileMode{a.path(""): 0o700, a.file("a"): 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has the mode %v (%v), want %v", path, info.Mode(), err, want)
			}
		}
	})

	t.Run("record that has not changed for a day is removed", func(t *testing.T) {
		a := newAgent(t)
		j := a.open()
		old, long, fresh := newRecord("old"), newRecord("long"), newRecord("fresh")
		old.Claimed = old.Claimed.Add(-25 * time.Hour)
		long.Claimed = long.Claimed.Add(-24 * time.Hour)
		a.add(j, old, long, fresh)
		a.want(j, "old", "long", "fresh") // they were just written
		j.Close()
		day := time.Now().Add(-25 * time.Hour)
		noError(t, os.Chtimes(a.file("old"), day, day))
		a.want(a.open(), "long", "fresh")
		if !strings.Contains(a.log.String(), "record of an old job removed") ||
			bytes.Contains(a.contents(), []byte("token-of-old")) {
			t.Errorf("the token is still in a file, or the removal is not in the log:\n%s", &a.log)
		}
	})

	t.Run("record of a job that runs for more than a day is kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(t)
			j := a.open()
			record := newRecord("long")
			record.Claimed = time.Now()
			a.add(j, record)
			time.Sleep(25 * time.Hour)
			a.want(j, "long")
			j.Close()
		})
	})

	t.Run("calls after Close have no effect", func(t *testing.T) {
		a := newAgent(t)
		j := a.open()
		a.add(j, newRecord("a"))
		j.Close()
		if err := j.Add(ctx, newRecord("b")); err == nil {
			t.Error("Add returned no error")
		}
		j.SetProgress("a", runtime.Progress{Step: 1})
		a.want(a.open(), "a")
	})
}

func TestOpen(t *testing.T) {
	// Each case changes the file of job a. Job b must stay.
	for name, damage := range map[string]func(t *testing.T, path string) error{
		"empty":     func(_ *testing.T, path string) error { return os.Truncate(path, 0) },
		"truncated": func(_ *testing.T, path string) error { return os.Truncate(path, 100) },
		"damaged":   func(_ *testing.T, path string) error { return edit(path, "{", "!") },
		"another version": func(_ *testing.T, path string) error {
			return edit(path, `"version":1`, `"version":2`)
		},
		"link": func(t *testing.T, path string) error {
			return replace(path, func() error {
				other := filepath.Join(t.TempDir(), "record")
				if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
					return err
				}
				t.Cleanup(func() {
					if text, err := os.ReadFile(other); err != nil || string(text) != "precious" {
						t.Errorf("the target of the link contains %q (%v)", text, err)
					}
				})
				return os.Symlink(other, path)
			})
		},
		"hard link": func(t *testing.T, path string) error {
			return os.Link(path, filepath.Join(t.TempDir(), "other"))
		},
		"pipe": func(_ *testing.T, path string) error {
			return replace(path, func() error { return syscall.Mkfifo(path, 0o600) })
		},
		"directory": func(_ *testing.T, path string) error {
			return replace(path, func() error { return os.Mkdir(path, 0o700) })
		},
		"huge": func(_ *testing.T, path string) error { return os.Truncate(path, 1<<40) },
		"another user": func(t *testing.T, path string) error {
			if os.Getuid() != 0 {
				const missing = "only root can change the owner: run this test as root"
				if os.Getenv("CI") == "true" {
					t.Fatal(missing)
				}
				t.Skip(missing)
			}
			return os.Chown(path, 1, 1)
		},
		"record of another job": func(_ *testing.T, path string) error { return edit(path, `"job":"a"`, `"job":"b"`) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newStoppedAgent(t, newRecord("a"), newRecord("b"))
			noError(t, damage(t, a.file("a")))
			j := a.open()
			a.want(j, "b")
			log := a.log.String()
			if a.damagedFiles() != 1 || strings.Count(log, "cannot read the record") != 1 ||
				strings.Contains(log, "token-of") {
				t.Errorf("%d damaged files, want one, with one warning; log:\n%s", a.damagedFiles(), log)
			}
			a.add(j, newRecord("c"))
			j.Close()

			// The next Open removes the damaged file when it is older than a day.
			aside, _ := filepath.Glob(a.path("*.damaged"))
			day := time.Now().Add(-25 * time.Hour)
			times := []syscall.Timeval{syscall.NsecToTimeval(day.UnixNano()), syscall.NsecToTimeval(day.UnixNano())}
			if name == "link" {
				return // the time of a link cannot be changed
			}
			noError(t, syscall.Utimes(aside[0], times))
			a.want(a.open(), "b", "c")
			if a.damagedFiles() != 0 {
				t.Error("the damaged file still exists")
			}
		})
	}

	t.Run("unknown stage means that the job may have run", func(t *testing.T) {
		a := newStoppedAgent(t, newRecord("a"))
		noError(t, edit(a.file("a"), `"stage":"claimed"`, `"stage":"x"`))
		if got := a.want(a.open(), "a"); got[0].Stage != runtime.RecordHandedOff {
			t.Errorf("the stage is %s, want handed_off", got[0].Stage)
		}
	})

	t.Run("interrupted change leaves the earlier record", func(t *testing.T) {
		record := newRecord("a")
		a := newStoppedAgent(t, record)
		if err := os.WriteFile(a.file("a")+".new", []byte(`{"version":1,"token":"token-of-a-new-`), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := a.want(a.open(), "a"); got[0] != record {
			t.Error("List returned another record")
		}
		if bytes.Contains(a.contents(), []byte("token-of-a-new-")) || a.damagedFiles() != 0 {
			t.Error("the new file still exists, or the old one counts as damaged")
		}
	})
}

// edit replaces a text in a file.
func edit(path, old, with string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(with), 1), 0o600)
}

// replace removes a file and creates another one.
func replace(path string, create func() error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return create()
}
