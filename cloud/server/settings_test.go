package server

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSettings(t *testing.T) {
	w := newWorld(t)
	at := w.stack("s")
	settings := at + "/settings"
	shows := func(want string) {
		t.Helper()
		var got, wanted object
		w.want(200, w.user, "GET", settings, nil, &got)
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("settings differ:\n%s", diff)
		}
	}
	w.want(404, w.user, "GET", settings, nil, nil)
	w.want(404, w.user, "DELETE", settings, nil, nil)
	w.want(200, w.user, "POST", settings,
		`{"operationContext":{"preRunCommands":["a"],"environmentVariables":{"A":"1","B":{"isSecret":false,`+
			`"value":"2"}}},"tag":"kept"}`, nil)
	shows(`{"operationContext":{"preRunCommands":["a"],"environmentVariables":{"A":"1","B":"2"}},"tag":"kept"}`)
	w.want(200, w.user, "POST", settings,
		`{"operationContext":{"preRunCommands":["b"],"environmentVariables":{"A":null,"C":"3"}},"tag":null}`, nil)
	shows(`{"operationContext":{"preRunCommands":["b"],"environmentVariables":{"B":"2","C":"3"}}}`)
	w.want(200, w.user, "PUT", settings, `{"executorContext":{"executorImage":"img"}}`, nil)
	shows(`{"executorContext":{"executorImage":"img"}}`)
	for _, bad := range []string{``, `[]`, `{} {}`, `null`, `{"agentPoolID":"none"}`,
		`{"operationContext":{"environmentVariables":{"A":1}}}`,
		`{"operationContext":{"environmentVariables":{"A":{"ciphertext":"AAAA"}}}}`, `{"executorContext":"x"}`,
		`{"gitHub":{"repository":"a/b"}}`} {
		w.want(400, w.user, "POST", settings, bad, nil)
	}
	shows(`{"executorContext":{"executorImage":"img"}}`)
	w.want(204, w.user, "DELETE", settings, nil, nil)
	w.want(404, w.user, "GET", settings, nil, nil)
}

func TestEffectiveSettings(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	w.want(200, w.user, "PUT", at+"/settings", object{
		"agentPoolID":      p.ID,
		"executorContext":  object{"executorImage": "set"},
		"operationContext": object{"environmentVariables": object{"A": object{"secret": "1"}, "B": "2"}},
	}, nil)
	// Because there is a second pool, only the inherited settings can choose the pool p.
	w.pool("another")
	w.deploy(at, steps(1, object{"agentPoolID": nil, "executorContext": object{}, // as the CLI sends it
		"operationContext": object{"environmentVariables": object{"B": "3"}}}))
	c := w.mustClaim(p)
	d := c.definition()
	if d.Image.Reference != "set" || d.Env["A"].Value.Reveal() != "1" || d.Env["B"].Value.Reveal() != "3" {
		t.Errorf("inherited image %+v, A %q and B %q; want set, 1 and 3", d.Image,
			d.Env["A"].Value.Reveal(), d.Env["B"].Value.Reveal())
	}
	c.runs(0, 1)
	w.deploy(at, steps(1, object{"agentPoolID": p.ID, "inheritSettings": false}))
	if d := w.mustClaim(p).definition(); d.Image.Reference != "pulumi/pulumi" || !d.Image.IsDefault ||
		!d.Env["A"].Value.Empty() {
		t.Errorf("without inheritance the image is %+v, want the default, and no variable A", d.Image)
	}
}

// TestSecrets uses every kind of secret, and searches for each in all files of the data
// directory and in the settings that the service returns.
func TestSecrets(t *testing.T) {
	w := newEmptyWorld(t)
	p, at := w.pool("p"), w.stack("s")
	secrets := map[string]string{}
	value := func(name string) object {
		secrets[name] = "hunter2-" + name + "-" + newID()
		return object{"secret": secrets[name]}
	}
	var sealed object
	w.want(200, w.user, "POST", at+"/settings/encrypt", object{"plaintext": value("encrypted")["secret"]}, &sealed)
	w.want(200, w.user, "POST", at+"/settings", object{
		"executorContext": object{"executorImage": object{"reference": "img", "credentials": object{"username": "u",
			"password": value("registry")}}},
		"sourceContext": object{"git": object{"repoUrl": "https://git.example.com/x",
			"gitAuth": object{"accessToken": value("git")}}},
		"operationContext": object{"environmentVariables": object{
			"A": value("variable"), "B": sealed, "secret": value("misleading"), "E": object{"isSecret": true,
				"value": value("explicit")["secret"]},
		}},
	}, nil)
	w.want(200, w.user, "POST", at+"/settings",
		object{"operationContext": object{"environmentVariables": object{"A": value("changed")}}}, nil)
	w.want(200, w.user, "POST", at+"/settings",
		object{"OPERATIONContext": object{"environmentvariables": object{"F": value("misspelt")}}}, nil)
	shown := w.want(200, w.user, "GET", at+"/settings", nil, nil).body
	w.deploy(at, object{"operation": "update",
		"operationContext": object{"environmentVariables": object{"R": value("request")}}})
	c := w.mustClaim(p)
	d := c.definition()
	for name, variable := range map[string]string{"changed": "A", "encrypted": "B", "misleading": "secret",
		"explicit": "E", "request": "R", "misspelt": "F", "git": gitPassword} {
		if got := d.Env[variable].Value.Reveal(); got != secrets[name] {
			t.Errorf("%s is %q in the job, want %q", variable, got, secrets[name])
		}
	}
	if got := d.Image.Credentials.Password.Value.Reveal(); got != secrets["registry"] {
		t.Errorf("the registry's password is %q", got)
	}
	secrets["pool token"], secrets["job token"], secrets["stack token"] = p.Token, c.job.JobToken,
		d.Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	c.runs(0, 1)
	for name, text := range secrets {
		if strings.Contains(shown, text) {
			t.Errorf("the settings show %s", name)
		}
	}
	secrets["access token"] = w.user // it has its own file, which is skipped
	master, err := os.ReadFile(filepath.Join(w.directory, "master.key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets["master key"] = string(master)
	lookThrough(t, w.directory, secrets)
	w.close()
	lookThrough(t, w.directory, secrets)
}

// lookThrough checks that no file of the directory contains a secret, plain or encoded, except
// the files of the access token and the master key. It also checks the modes of the files.
func lookThrough(t *testing.T, directory string, secrets map[string]string) {
	t.Helper()
	looked := 0
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if strings.HasPrefix(entry.Name(), "cloud.db") && info.Mode().Perm()&0o077 != 0 ||
			info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if entry.Name() == AccessTokenFile || entry.Name() == "master.key" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		looked++
		for name, secret := range secrets {
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)),
				hex.EncodeToString([]byte(secret))} {
				if bytes.Contains(text, []byte(form)) {
					t.Errorf("%s is in %s", name, entry.Name())
				}
			}
		}
		return nil
	})
	if err != nil || looked == 0 {
		t.Fatalf("looked through %d files: %v", looked, err)
	}
	if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory is open to others: %v %v", info.Mode(), err)
	}
}

func TestUnseal(t *testing.T) {
	w := newWorld(t)
	a, b := w.stack("a"), w.stack("b")
	var sealed object
	w.want(200, w.user, "POST", a+"/settings/encrypt", `{"plaintext":"x"}`, &sealed)
	body := object{"operationContext": object{"environmentVariables": object{"A": sealed}}}
	w.want(200, w.user, "POST", a+"/settings", body, nil)
	w.want(400, w.user, "POST", b+"/settings", body, nil)
	w.want(400, w.user, "POST", a+"/settings/encrypt", `{}`, nil)
}

func TestOpenMaster(t *testing.T) {
	w := newWorld(t)
	w.close()
	if err := os.Remove(filepath.Join(w.directory, "master.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Directory: w.directory}); err == nil ||
		!strings.Contains(err.Error(), "restore it") {
		t.Errorf("the directory is opened without its key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(w.directory, "master.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Directory: w.directory})
	if err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("the directory is opened with a short key: %v", err)
	}
}

// TestOpenMasterWrong opens databases with a master key that is not theirs: one of this release, and one of an earlier
// release, which has stacks and no key of the service. The right key still opens them afterwards.
func TestOpenMasterWrong(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		w := newWorld(t)
		w.stack("s")
		if earlier {
			w.write(`DELETE FROM meta`)
		}
		w.close()
		path := filepath.Join(w.directory, "master.key")
		right, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wrong := filepath.Join(t.TempDir(), "wrong.key")
		if err := os.WriteFile(wrong, []byte(strings.Repeat("w", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{Directory: w.directory, MasterKey: wrong}); err == nil ||
			!strings.Contains(err.Error(), "not the key of this database") {
			t.Errorf("earlier release %v: the wrong key opens the database: %v", earlier, err)
		}

		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		moved := filepath.Join(t.TempDir(), "moved.key")
		if err := os.WriteFile(moved, right, 0o600); err != nil {
			t.Fatal(err)
		}
		w.open(func(o *Options) { o.MasterKey = moved })
		w.want(200, w.user, "POST", fmt.Sprintf(deployments, "s")+"/settings/encrypt", `{"plaintext":"x"}`, nil)
	}
}

// TestOpenActivity claims a scan whose definition an earlier release sealed with the master key.
func TestOpenActivity(t *testing.T) {
	w := newWorld(t)
	sealed, err := w.server.master.Wrap(t.Context(), []byte("definition"), forActivity+"1")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := w.server.openActivity(t.Context(), sealed, "1"); err != nil || string(text) != "definition" {
		t.Errorf("the definition is %q, %v", text, err)
	}
	if _, err := w.server.openActivity(t.Context(), sealed, "2"); err == nil {
		t.Error("the definition of another activity is opened")
	}
}

func TestCheckSettings(t *testing.T) {
	w := newWorld(t)
	at := w.stack("s")
	got := w.want(400, w.user, "POST", at+"/settings",
		`{"operationContext":{"preRunCommands":["a"],"environmentVariables":"hunter2"}}`, nil)
	if !strings.Contains(got.body, "environmentVariables") || strings.Contains(got.body, "hunter2") {
		t.Errorf("the refusal is %s, want one that names the field and not its value", got.body)
	}
}
