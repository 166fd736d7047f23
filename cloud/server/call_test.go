package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
)

// packed returns content compressed with gzip.
func packed(content string) string {
	return string(objects.Pack([]byte(content)))
}

func TestCallText(t *testing.T) {
	w := newWorld(t)
	good := packed(`{"name":"packed"}`)
	many := make([]byte, maxBody+1)
	for i := range many {
		many[i] = ' '
	}
	for _, one := range []struct {
		name, encoding, body string
		code                 int
		message              string
	}{
		{"cut off", "gzip", good[:len(good)-9], 400, "incomplete"},
		{"wrong checksum", "gzip", good[:len(good)-8] + "\x00\x00\x00\x00" + good[len(good)-4:], 400,
			"gzip and the body is not"},
		{"broken data", "gzip", good[:10] + "\xff\xff\xff" + good[13:], 400, "gzip and the body is not"},
		{"no gzip", "gzip", `{"name":"packed"}`, 400, "gzip and the body is not"},
		{"empty", "gzip", "", 400, "gzip and the body is not"},
		{"bomb", "gzip", packed(string(many)), 413, "body is larger than"},
		{"plain and too large", "", string(many), 413, "body is larger than"},
		{"other encoding", "br", "x", 415, "Content-Encoding gzip"},
		{"no UTF-8", "gzip", packed("\"\xff\""), 400, "not UTF-8"},
		{"gzip", "gzip", good, 200, ""},
		{"gzip, again", "GZIP", good, 409, "already"},
	} {
		got := w.send(w.user, "POST", "/api/orgs/organization/agent-pools", one.body,
			"Content-Encoding", one.encoding)
		if got.code != one.code || !strings.Contains(got.body, one.message) {
			t.Errorf("%s: %d %s, want %d %q", one.name, got.code, got.body, one.code, one.message)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	large := strings.Repeat("text ", minCompressed)
	for _, one := range []struct {
		accept, body string
		compressed   bool
	}{
		{"gzip", large, true}, {"deflate, gzip;q=1.0", large, true}, {"gzip;q=0.5", large, true},
		{"gzip", "small", false}, {"", large, false}, {"deflate", large, false}, {"gzip;q=0", large, false},
	} {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", one.accept)
		(&Server{}).writeReply(&call{Request: r, out: rec}, reply{body: one.body})
		var body io.Reader = bytes.NewReader(rec.Body.Bytes())
		if compressed := rec.Header().Get("Content-Encoding") == "gzip"; compressed != one.compressed {
			t.Errorf("%q, %d bytes: compressed is %t", one.accept, len(one.body), compressed)
		} else if compressed {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		var got string
		if err := json.NewDecoder(body).Decode(&got); err != nil || got != one.body {
			t.Errorf("%q: got %d bytes, %v", one.accept, len(got), err)
		}
	}
}

// TestCallTextLarge sends large bodies while another call has one.
func TestCallTextLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.stack("s")
		large := packed(resources("a") + strings.Repeat(" ", largeBody))
		send := func(code int) {
			t.Helper()
			got := w.send(w.user, "POST", stackPath+"s/import", large, "Content-Encoding", "gzip")
			if got.code != code {
				t.Errorf("a large body: %d %s, want %d", got.code, got.body, code)
			}
		}
		send(200)
		w.server.largeBodies <- struct{}{}
		send(503)
		w.want(200, w.user, "POST", stackPath+"s/import", resources("b"), nil)
		go func() {
			time.Sleep(turnLimit / 2)
			<-w.server.largeBodies
		}()
		send(200)
		send(200)
		w.at("s", 4, false)
	})
}
