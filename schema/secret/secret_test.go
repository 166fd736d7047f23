package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/secret"
)

const text = "pul-0123456789abcdef"

// holder has secrets in places where fmt does not call their methods.
type holder struct {
	Open   secret.String
	hidden secret.String
	list   []secret.String
	byName map[string]secret.String
}

func TestStringFormat(t *testing.T) {
	s := secret.New(text)
	h := holder{s, s, []secret.String{s}, map[string]secret.String{"token": s}}
	for _, verb := range []string{
		"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%b", "%c", "%U", "%e", "%p",
	} {
		for _, value := range []any{s, &s, h, &h, []any{h}, fmt.Errorf("claim: %v", s)} {
			got := fmt.Sprintf(verb, value)
			if strings.Contains(got, text) || strings.Contains(got, fmt.Sprintf("%x", text)) {
				t.Errorf("Sprintf(%q, %T) shows the secret: %s", verb, value, got)
			}
		}
	}
}

func TestStringLogValue(t *testing.T) {
	s := secret.New(text)
	var out bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("claimed", "token", s, "job", holder{Open: s, hidden: s},
			"group", slog.GroupValue(slog.Any("token", &s)))
	}
	if strings.Contains(out.String(), text) {
		t.Errorf("a log line shows the secret:\n%s", out.String())
	}
	if !strings.Contains(out.String(), secret.Mark) {
		t.Errorf("no log line shows that a secret is set:\n%s", out.String())
	}
}

func TestStringJSON(t *testing.T) {
	var h holder
	if err := json.Unmarshal([]byte(`{"Open":"`+text+`"}`), &h); err != nil {
		t.Fatal(err)
	}
	if h.Open.Reveal() != text {
		t.Errorf("read %q, want %q", h.Open.Reveal(), text)
	}
	got, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"Open":"[secret]"}`; string(got) != want {
		t.Errorf("wrote %s, want %s", got, want)
	}
}

func TestStringEqual(t *testing.T) {
	if secret.New(text) != secret.New(strings.Clone(text)) {
		t.Error("secrets with equal texts are not equal")
	}
	if secret.New(text) == secret.New(text+"x") {
		t.Error("secrets with different texts are equal")
	}
	var zero secret.String
	if !zero.Empty() || zero != secret.New("") || zero.Reveal() != "" || zero.String() != "" {
		t.Error("the zero value is not the empty secret")
	}
}
