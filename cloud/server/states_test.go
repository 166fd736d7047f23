package server

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// objects returns the files of all objects.
func (w *world) objects() (files []string) {
	w.t.Helper()
	root := filepath.Join(w.directory, "objects")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return files
}

// TestSaveCheckpointObjects keeps one object for each state, however many checkpoints there were.
func TestSaveCheckpointObjects(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	u := w.update("s", object{}).start()
	for i := range 5 {
		u.checkpoint(resources(fmt.Sprint(i)))
	}
	u.complete("succeeded")
	if n := len(w.objects()); n != 1 {
		t.Errorf("there are %d objects after the first update", n)
	}
	u = w.update("s", object{}).start() // refers to the object of version 1 at first
	u.checkpoint(resources("next"))
	u.checkpoint(resources("last"))
	u.complete("succeeded")
	if n := len(w.objects()); n != 2 {
		t.Errorf("there are %d objects after the second update", n)
	}
	w.holds("s", "/1", "4")
	w.holds("s", "/2", "last")

	// The objects of a deleted stack, and those that a crash has left, are deleted when they are old.
	w.want(204, w.user, "DELETE", stackPath+"s?force=true", nil, nil)
	w.stack("kept")
	w.want(200, w.user, "POST", stackPath+"kept/import", resources("k"), nil)
	left := filepath.Join(w.directory, "objects", "checkpoints", "x.part")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		after time.Duration
		left  int
	}{{23 * time.Hour, 4}, {25 * time.Hour, 1}} {
		if err := w.server.sweepObjects(t.Context(), time.Now().Add(one.after)); err != nil {
			t.Fatal(err)
		}
		if n := len(w.objects()); n != one.left {
			t.Errorf("%d objects are left after %s, want %d", n, one.after, one.left)
		}
	}
	w.holds("kept", "", "k")
}

// TestExportStackChecksHash changes an object: the state is an error, and not another state.
func TestExportStackChecksHash(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.want(200, w.user, "POST", stackPath+"s/import", resources("a"), nil)
	path := w.objects()[0]
	for _, content := range []string{packed(resources("b")), "", "no gzip"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		w.want(500, w.user, "GET", stackPath+"s/export", nil, nil)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.want(500, w.user, "GET", stackPath+"s/export", nil, nil)
}

// TestExportStackRewritesProvider compares the URL with the one that the client has logged in to. A proxy that ends TLS
// sends calls of https://example.com on as http.
func TestExportStackRewritesProvider(t *testing.T) {
	for public, url := range map[string]string{
		"":                           "http://example.com",
		"https://example.com":        "https://example.com",
		"https://public.example.com": "http://example.com", // this client has not logged in there
	} {
		w := newWorld(t, func(o *Options) { o.PublicURL = public })
		w.stack("s")
		sent := `{"version":4,"features":["f"],"deployment":{` +
			`"manifest":{"time":"2026-01-02T03:04:05Z","magic":"","version":""},"unknown":1.50,` +
			`"secrets_providers":{"type":"service","state":{"url":"http://old","owner":"o","project":"p",` +
			`"stack":"x"}}}}`
		w.want(200, w.user, "POST", stackPath+"s/import", sent, nil)
		want := strings.NewReplacer("http://old", url, `"o"`, `"organization"`, `"p"`, `"project"`,
			`"x"`, `"s"`).Replace(sent)
		if got := w.want(200, w.user, "GET", stackPath+"s/export", nil, nil).body; got != want {
			t.Errorf("with the public URL %q exported %s, want %s", public, got, want)
		}
	}
}

func TestImportStackRefusals(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	for _, body := range []string{
		"", "{", "[]", "null", `{"version":3}`, `{"version":2,"deployment":{}}`, `{"version":5,"deployment":{}}`,
		`{"version":3,"deployment":[]}`, `{"version":3,"deployment":{"resources":{}}}`,
		`{"version":3,"deployment":null}`,
		`{"version":3,"deployment":{"resources":[{"urn":7}]}}`, strings.Repeat("[", 1<<20),
		`{"version":3,"deployment":` + strings.Repeat(`{"a":`, 1<<18),
	} {
		got := w.ask(w.user, "POST", stackPath+"s/import", body)
		if got.code != 400 {
			t.Errorf("import of %.60s: %d %.200s", body, got.code, got.body)
		}
	}
	w.want(404, w.user, "POST", stackPath+"missing/import", resources(), nil)
	for _, version := range []string{"1", "-1", "x", "99999999999999999999"} {
		if got := w.ask(w.user, "GET", stackPath+"s/export/"+version, nil); got.code != 404 && got.code != 400 {
			t.Errorf("export of version %s: %d", version, got.code)
		}
	}
	w.at("s", 0, false)
	if n := len(w.objects()); n != 0 {
		t.Errorf("there are %d objects", n)
	}
}

// lateBody is the body of a request that calls before when the service reads it.
type lateBody struct {
	io.Reader
	before func()
}

func (b *lateBody) Read(p []byte) (int, error) {
	b.before()
	b.before = func() {}
	return b.Reader.Read(p)
}

// TestImportStackMeanwhile changes a stack after an import was accepted and before its body has arrived.
func TestImportStackMeanwhile(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(name string){
		"an update starts": func(name string) { w.update(name, object{}).start() },
		"the stack is replaced": func(name string) {
			w.want(204, w.user, "DELETE", stackPath+name, nil, nil)
			w.stack(name)
		},
	} {
		name = strings.ReplaceAll(name, " ", "-")
		w.stack(name)
		r := httptest.NewRequest("POST", stackPath+name+"/import",
			&lateBody{strings.NewReader(resources("a")), func() { change(name) }})
		r.Header.Set("Authorization", "token "+w.user)
		got := httptest.NewRecorder()
		w.handler.ServeHTTP(got, r)
		if got.Code != 409 {
			t.Errorf("%s: %d %s, want 409", name, got.Code, got.Body)
		}
		w.holds(name, "/0")
		w.holds(name, "")
	}
}

func FuzzSaveCheckpoint(f *testing.F) {
	f.Add(resources("a"), []byte(nil))
	f.Add(`{"version":4,"features":["x"],"deployment":{"resources":[{"urn":"u","outputs":{"s":null}}]}}`,
		[]byte("\x1f\x8b"))
	f.Add(`{"version":1e0,"deployment":{"resources":[]}}`, []byte(packed(resources("b"))))
	w := newWorld(f)
	w.stack("s")
	u := w.update("s", object{}).start()
	f.Fuzz(func(t *testing.T, text string, sent []byte) {
		w.t = t
		// 1. A state that is accepted can be exported again. 2. A body that is not gzip changes nothing.
		if got := u.ask("PATCH", "/checkpoint", text).code; got != 204 && got != 400 {
			t.Fatalf("a checkpoint: %d", got)
		}
		before := w.ask(w.user, "GET", stackPath+"s/export", nil)
		if before.code != 200 || !json.Valid([]byte(before.body)) {
			t.Fatalf("export: %d %s", before.code, before.body)
		}
		got := w.send("", "PATCH", u.path("/checkpoint"), string(sent), "Authorization", updateScheme+" "+u.token,
			"Content-Encoding", "gzip")
		if got.code != 204 && got.code != 400 {
			t.Fatalf("a packed checkpoint: %d %s", got.code, got.body)
		}
		after := w.ask(w.user, "GET", stackPath+"s/export", nil)
		if after.code != 200 || got.code == 400 && after.body != before.body {
			t.Fatalf("a refused checkpoint changed the state from %s to %s", before.body, after.body)
		}
	})
}

func FuzzSaveJournal(f *testing.F) {
	f.Add(`{"entries":[{"version":1,"kind":0,"sequenceID":1,"operationID":1},{"version":1,"kind":1,"sequenceID":2,` +
		`"operationID":1,"state":{"urn":"urn:pulumi:s::p::t::n","type":"t"}}]}`)
	f.Add(`{"entries":[{"version":1,"kind":5,"sequenceID":1,"newSnapshot":{"resources":[]}},{"version":1,"kind":7}]}`)
	f.Add(`{"entries":[{"version":1,"kind":1,"removeOld":0,"deleteNew":9223372036854775807}]}`)
	w := newWorld(f)
	w.stack("s")
	f.Fuzz(func(t *testing.T, text string) {
		w.t = t
		u := w.update("s", object{}).startWith(object{"journalVersion": 1})
		before := w.ask(w.user, "GET", stackPath+"s/export", nil).body
		code := u.ask("PATCH", "/journalentries", text).code
		if code != 204 && code != 400 {
			t.Fatalf("entries: %d", code)
		}
		during := w.ask(w.user, "GET", stackPath+"s/export", nil)
		if during.code != 200 || code == 400 && during.body != before {
			t.Fatalf("after %d the state is %s, before %s", code, during.body, before)
		}
		if got := u.complete("succeeded"); got != 204 {
			t.Fatalf("the end: %d", got)
		}
	})
}
