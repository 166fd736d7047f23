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

// holder has the secret where fmt cannot ask its methods.
type holder struct {
	Open   secret.String
	hidden secret.String
	list   []secret.String
	byName map[string]secret.String
}

func TestNoVerbPrintsASecret(t *testing.T) {
	s := secret.New(text)
	h := holder{s, s, []secret.String{s}, map[string]secret.String{"token": s}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%b", "%c", "%U", "%e", "%p"} {
		for _, value := range []any{s, &s, h, &h, []any{h}, fmt.Errorf("claim: %v", s)} {
			if got := fmt.Sprintf(verb, value); strings.Contains(got, text) || strings.Contains(got, fmt.Sprintf("%x", text)) {
				t.Errorf("Sprintf(%q, %T) shows the secret: %s", verb, value, got)
			}
		}
	}
}

func TestNoLogPrintsASecret(t *testing.T) {
	s := secret.New(text)
	var out bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("claimed", "token", s, "job", holder{Open: s, hidden: s}, "group", slog.GroupValue(slog.Any("token", &s)))
	}
	if strings.Contains(out.String(), text) {
		t.Errorf("a log line shows the secret:\n%s", out.String())
	}
	if !strings.Contains(out.String(), secret.Mark) {
		t.Errorf("no log line shows that a secret is set:\n%s", out.String())
	}
}

func TestJSONReadsASecretAndWritesTheMark(t *testing.T) {
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

func TestSecretsCompareByText(t *testing.T) {
	if secret.New(text) != secret.New(strings.Clone(text)) {
		t.Error("two secrets of one text differ")
	}
	if secret.New(text) == secret.New(text+"x") {
		t.Error("two secrets of two texts are equal")
	}
	var zero secret.String
	if !zero.Empty() || zero != secret.New("") || zero.Reveal() != "" || zero.String() != "" {
		t.Error("the zero value is not the empty secret")
	}
}
