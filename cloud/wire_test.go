package cloud

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSecretValue(t *testing.T) {
	for text, want := range map[string]struct {
		value      string
		secret     bool
		ciphertext string
	}{
		`"plain"`:                               {value: "plain"},
		`null`:                                  {},
		`{"secret":"s"}`:                        {value: "s", secret: true},
		`{"secret":""}`:                         {secret: true},
		`{"ciphertext":"c"}`:                    {secret: true, ciphertext: "c"},
		`{"isSecret":true,"value":"v"}`:         {value: "v", secret: true},
		`{"isSecret":false,"value":"v"}`:        {value: "v"},
		`{"secret":"s","ciphertext":"c","x":1}`: {value: "s", secret: true},
	} {
		var v SecretValue
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if v.Value.Reveal() != want.value || v.Secret != want.secret || v.Ciphertext != want.ciphertext {
			t.Errorf("%s is read as %q, secret %v, ciphertext %q", text, v.Value.Reveal(), v.Secret, v.Ciphertext)
		}
	}
}

func TestDurationAndImage(t *testing.T) {
	var d Definition
	text := `{"image":"ref","timeout":3600000000000,"steps":[{"name":"Setup","run":"","timeout":null},{"name":"a",` +
		`"run":"x","timeout":"1h30m"}],"more":[1]}`
	noError(t, json.Unmarshal([]byte(text), &d))
	if d.Image.Reference != "ref" || time.Duration(d.Timeout) != time.Hour ||
		time.Duration(d.Steps[1].Timeout) != 90*time.Minute {
		t.Errorf("read %+v", d)
	}
	for _, bad := range []string{`{"timeout":"-1s"}`, `{"timeout":-5}`, `{"timeout":"soon"}`, `{"timeout":1.5}`,
		`{"timeout":{}}`} {
		if err := json.Unmarshal([]byte(bad), &Definition{}); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestPollFormat(t *testing.T) {
	poll := Poll{JobID: "job-1", JobToken: "tok-123456789", OIDCToken: "jwt-123456789"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(verb, poll) + fmt.Sprintf(verb, &poll); strings.Contains(got, "123456789") {
			t.Errorf("Sprintf(%q) shows a token: %s", verb, got)
		}
	}
}
