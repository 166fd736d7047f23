package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cmwa-project/cmwa/cloud/server/servertest"
	"github.com/cmwa-project/cmwa/cmd/cli"
)

// TestBackupCommand takes a backup of a running service, and starts a service with the restored directory.
func TestBackupCommand(t *testing.T) {
	p := newService(t)
	p.run(cli.ExitOK, "pool", "create", "before")
	file, directory := filepath.Join(t.TempDir(), "backup.tar"), filepath.Join(t.TempDir(), "restored")
	out, _ := p.run(cli.ExitOK, "backup", file, "--data", p.directory)
	matches(t, out, `backup.tar has [0-9]+ bytes; it contains secrets$`)
	p.run(cli.ExitOK, "pool", "create", "after")

	out, _ = p.run(cli.ExitOK, "restore", file, "--data", directory)
	matches(t, out, `backup.tar is restored: start the service with --data .*/restored$`)
	q := &testService{t: t, directory: directory, env: map[string]string{}}
	q.start()
	out, _ = q.run(cli.ExitOK, "pool", "list")
	matches(t, out, `before`)
	q.run(cli.ExitOK, "pool", "create", "after")

	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{cli.ExitUsage, []string{"backup", file}, `backup needs --data`},
		{cli.ExitUsage, []string{"restore", file}, `restore needs --data`},
		{cli.ExitFailure, []string{"backup", file, "--data", p.directory}, `exists: name a new file`},
		{cli.ExitFailure, []string{"backup", file + "2", "--data", t.TempDir()}, `is not the data directory of`},
		{cli.ExitFailure, []string{"restore", file, "--data", directory}, `another process serves`},
		{cli.ExitFailure, []string{"restore", file + "2", "--data", t.TempDir()}, `no such file`},
	} {
		_, stderr := p.run(c.code, c.args...)
		matches(t, stderr, c.want)
	}
}

// TestRestoreMasterKey restores a backup of a service whose master key PULUMI_LOCAL_KEYS names.
func TestRestoreMasterKey(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, make([]byte, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &testService{t: t, directory: servertest.DataDirectory(t)}
	p.env = map[string]string{"PULUMI_LOCAL_KEYS": key}
	p.start()
	file := filepath.Join(t.TempDir(), "backup.tar")
	p.run(cli.ExitOK, "backup", file, "--data", p.directory)
	p.run(cli.ExitOK, "restore", file, "--data", filepath.Join(t.TempDir(), "variable"))
	delete(p.env, "PULUMI_LOCAL_KEYS")
	p.run(cli.ExitOK, "restore", file, "--data", filepath.Join(t.TempDir(), "flag"), "--master-key", key)
	_, stderr := p.run(cli.ExitFailure, "restore", file, "--data", filepath.Join(t.TempDir(), "none"))
	matches(t, stderr, `master.key is missing`)
}
