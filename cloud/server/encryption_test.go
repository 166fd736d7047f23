package server

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEncryptValue(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	w.stack("t")
	w.deploy(at, steps(1))
	job := w.mustClaim(p).definition().Env["PULUMI_ACCESS_TOKEN"].Value.Reveal()
	const own, other = "/api/stacks/organization/project/s", "/api/stacks/organization/project/t"

	plain := [][]byte{[]byte("one"), {}, {0, 255}}
	for who, token := range map[string]string{"user": w.user, "job of the stack": job} {
		var sealed struct{ Ciphertexts [][]byte }
		w.want(200, token, "POST", own+"/batch-encrypt", object{"plaintexts": plain}, &sealed)
		if len(sealed.Ciphertexts) != len(plain) {
			t.Fatalf("%s: %d values are encrypted as %d", who, len(plain), len(sealed.Ciphertexts))
		}
		want := map[string][]byte{}
		for i, one := range sealed.Ciphertexts {
			var opened struct{ Plaintext []byte }
			w.want(200, token, "POST", own+"/decrypt", object{"ciphertext": one}, &opened)
			if !bytes.Equal(opened.Plaintext, plain[i]) {
				t.Errorf("%s: %q is decrypted as %q", who, plain[i], opened.Plaintext)
			}
			want[base64.StdEncoding.EncodeToString(one)] = plain[i]
		}
		var opened struct{ Plaintexts map[string][]byte }
		w.want(200, token, "POST", own+"/batch-decrypt", object{"ciphertexts": sealed.Ciphertexts}, &opened)
		if diff := cmp.Diff(want, opened.Plaintexts); diff != "" {
			t.Errorf("%s: values of a batch (-want +got):\n%s", who, diff)
		}
		w.want(204, token, "POST", own+"/decrypt/log-decryption", object{"secretName": "x"}, nil)
		w.want(204, token, "POST", own+"/decrypt/log-batch-decryption", object{"commandName": "up"}, nil)
	}

	var one, setting struct{ Ciphertext []byte }
	w.want(200, w.user, "POST", own+"/encrypt", object{"plaintext": []byte("hidden")}, &one)
	w.want(200, w.user, "POST", at+"/settings/encrypt", object{"plaintext": "hidden"}, &setting)
	changed := bytes.Clone(one.Ciphertext)
	changed[len(changed)-1] ^= 1
	for name, refused := range map[string]struct {
		code  int
		token string
		path  string
		body  any
	}{
		"ciphertext of another stack": {400, w.user, other + "/decrypt", object{"ciphertext": one.Ciphertext}},
		"batch of another stack": {
			400, w.user, other + "/batch-decrypt", object{"ciphertexts": [][]byte{one.Ciphertext}},
		},
		"ciphertext of a setting":      {400, w.user, own + "/decrypt", object{"ciphertext": setting.Ciphertext}},
		"changed ciphertext":           {400, w.user, own + "/decrypt", object{"ciphertext": changed}},
		"short ciphertext":             {400, w.user, own + "/decrypt", object{"ciphertext": []byte{1}}},
		"no ciphertext":                {400, w.user, own + "/decrypt", object{}},
		"no plaintext":                 {400, w.user, own + "/encrypt", object{}},
		"plaintext that is not base64": {400, w.user, own + "/encrypt", object{"plaintext": "hidden!"}},
		"missing stack":                {404, w.user, own + "2/encrypt", object{"plaintext": ""}},
		"job of another stack":         {404, job, other + "/encrypt", object{"plaintext": ""}},
		"token of a pool":              {403, p.Token, own + "/decrypt", object{"ciphertext": one.Ciphertext}},
		"no token":                     {401, "", own + "/decrypt", object{"ciphertext": one.Ciphertext}},
	} {
		got := w.ask(refused.token, "POST", refused.path, refused.body)
		if got.code != refused.code || strings.Contains(got.body, "hidden") {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, refused.code)
		}
	}
}
