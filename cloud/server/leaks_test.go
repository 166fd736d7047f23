package server

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
)

// TestServerLeaks uses every kind of token, lease and secret, also in calls that are refused. Then it searches for them
// in the log, in the bodies of all errors, and in the data directory: in its files, in the objects, and in each
// value of the database, after decompression.
func TestServerLeaks(t *testing.T) {
	var log bytes.Buffer
	provider := newProvider(t)
	w := newWorld(t, provider.allow, func(o *Options) {
		o.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	var refusals strings.Builder // bodies of errors
	handler := w.handler
	w.handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		if rec.Code >= 400 {
			refusals.WriteString(rec.Body.String() + "\n")
		}
		for name, values := range rec.Header() {
			out.Header()[name] = values
		}
		out.WriteHeader(rec.Code)
		_, _ = out.Write(rec.Body.Bytes())
	})
	secrets := leakStory(w, provider)
	for _, secret := range secrets { // in the wrong places
		for _, scheme := range []string{"token ", "Bearer ", updateScheme + " "} {
			for _, path := range []string{"/api/user", stackPath + "s/update/x/renew_lease"} {
				w.server.logins = newFailedLogins()
				w.send("", "POST", path, `{"token":"`+secret+`"`, "Authorization", scheme+secret)
				w.send("", "GET", path, "", "Authorization", scheme+secret)
			}
		}
		for _, path := range []string{"/encrypt", "/batch-decrypt", "/update", "/import", "/deployments/settings"} {
			for _, body := range []string{
				`{"plaintext":%q,"x":`, `{"ciphertext":%q,"ciphertexts":[%[1]q],"deployment":%[1]q,"config":%[1]q}`,
				`{"operationContext":{"environmentVariables":%q}}`,
			} {
				w.ask(w.user, "POST", stackPath+"s"+path, fmt.Sprintf(body, secret))
			}
		}
		w.ask("", "POST", "/api/oauth/token", "subject_token="+secret)
	}

	found := map[string]bool{} // texts that are no secrets, so that a search that finds nothing fails
	search := func(where string, text []byte) {
		for _, known := range []string{
			"job claimed", "Unauthorized: ", "known-resource", "known-event", "known-tag", "known-entry",
		} {
			found[known] = found[known] || bytes.Contains(text, []byte(known))
		}
		for name, secret := range secrets {
			for _, form := range []string{
				secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)),
			} {
				if i := bytes.Index(text, []byte(form)); i >= 0 {
					t.Errorf("%s: the %s, after %.100q", where, name, text[max(0, i-100):i])
				}
			}
		}
	}
	search("the log", log.Bytes())
	search("the refusals", []byte(refusals.String()))
	searchDatabase(t, w.directory, search)
	searchFiles(t, w.directory, search)
	w.close()
	searchFiles(t, w.directory, search)
	if len(found) != 6 {
		t.Error("the search knows too few texts")
	}
	for known, ok := range found {
		if !ok {
			t.Errorf("the search does not find %q", known)
		}
	}
}

// leakStory makes users, jobs, updates and leased work, and returns their secrets.
func leakStory(w *world, provider *provider) map[string]string {
	w.t.Helper()
	secrets := map[string]string{"access token": w.user}
	add := func(name, secret string) string {
		if len(secret) < 16 {
			w.t.Fatalf("the %s has only %d bytes", name, len(secret))
		}
		secrets[name] = secret
		return secret
	}
	plain := func(name string) string { return add(name, "plain-"+name+"-"+newID()) }

	// Tokens of people, and the session of the web page.
	mine := w.newToken(userTokens, object{"description": "d"})
	add("second access token", mine.Token)
	add("organization's token", w.newToken(organizationTokens, object{"name": "n", "admin": true}).Token)
	visitor := w.visit(mine.Token)
	_, session, _ := strings.Cut(visitor.cookie, "=")
	add("session", session)
	visitor.get("/")
	w.want(204, w.user, "DELETE", userTokens+"/"+mine.ID, nil, nil)

	// A deployment with settings, whose job runs an update.
	p, at := w.pool("p"), w.stack("s")
	add("pool's token", p.Token)
	subject := provider.token(rsaHeader(), claims(nil))
	_, exchanged := w.exchanged(p, subject)
	add("OIDC token", subject)
	add("exchanged token", exchanged.Token)
	w.want(200, w.user, "POST", at+"/settings", object{"operationContext": object{
		"environmentVariables": object{"A": object{"secret": plain("setting")}},
	}}, nil)
	w.deploy(at, object{"operation": "update", "operationContext": object{
		"environmentVariables": object{"B": object{"secret": plain("request")}},
	}})
	c := w.mustClaim(p)
	add("job's token", c.job.JobToken)
	add("job's OIDC token", c.job.OIDCToken)
	program := add("programs' token", c.definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal())
	c.status(0, running)
	c.logs(0, 0, "line\n")

	var sealed struct{ Ciphertexts [][]byte }
	w.want(200, program, "POST", stackPath+"s/batch-encrypt", object{"plaintexts": [][]byte{
		[]byte(plain("config")), []byte(plain("state")),
	}}, &sealed)
	w.want(200, w.user, "POST", stackPath+"s/decrypt", object{"ciphertext": sealed.Ciphertexts[0]}, nil)
	w.want(204, w.user, "POST", stackPath+"s/tags", object{"name": "t", "value": "known-tag"}, nil)

	// Two updates: with checkpoints and with a journal, whose lease stays valid.
	for i, request := range []object{{}, {"journalVersion": 1}} {
		u := w.update("s", object{
			"config": object{"s:key": object{
				"secret": true, "string": base64.StdEncoding.EncodeToString(sealed.Ciphertexts[0]),
			}},
		}).startWith(request)
		add(fmt.Sprint("lease ", i), u.token)
		var renewed struct{ Token string }
		got := u.ask("POST", "/renew_lease", object{"duration": 300})
		if err := json.Unmarshal([]byte(got.body), &renewed); err != nil || got.code != 200 {
			w.t.Fatalf("renewal: %d %s", got.code, got.body)
		}
		u.token = add(fmt.Sprint("renewed lease ", i), renewed.Token)
		u.ask("POST", "/events/batch", object{"events": []object{
			{"sequence": 1, "timestamp": 1, "stdoutEvent": object{"message": "known-event"}},
		}})
		if i == 0 {
			if got := u.checkpoint(resources("known-resource")); got != 204 {
				w.t.Fatalf("checkpoint: %d", got)
			}
			u.complete("succeeded")
			continue
		}
		u.entries(w.t, 204, object{"kind": 1, "sequenceID": 1, "operationID": 1, "state": resource("known-entry")})
	}

	// Leased work.
	w.scan(p, object{"environmentVariables": object{"C": object{"secret": plain("activity")}}})
	l := w.mustAcquire(p)
	add("activity's lease", l.lease.LeaseToken)
	add("leased job's token", l.lease.JobToken)
	l.call("begin", nil)
	l.definition()
	add("expired token", w.saveToken(principal{userToken, "local"}, time.Now().Add(-time.Second)))
	return secrets
}

// searchDatabase calls search for each text and blob of the database.
func searchDatabase(t *testing.T, directory string, search func(where string, text []byte)) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(directory, "cloud.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tables, err := db.Query(`SELECT name FROM sqlite_master WHERE type = 'table'`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tables.Next() {
		var name string
		if err := tables.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := tables.Err(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		rows, err := db.Query(`SELECT * FROM ` + name)
		if err != nil {
			t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values := make([]sql.RawBytes, len(columns))
			into := make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			for i, value := range values {
				search("column "+columns[i]+" of table "+name, unpacked(value))
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// searchFiles calls search for each file, except those of the first access token and of the master key.
func searchFiles(t *testing.T, directory string, search func(where string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == AccessTokenFile || entry.Name() == masterKeyFile {
			return err
		}
		text, err := os.ReadFile(path)
		search("file "+path, unpacked(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unpacked decompresses a value that is gzip.
func unpacked(value []byte) []byte {
	if text, err := objects.Unpack(value); err == nil {
		return text
	}
	return value
}
