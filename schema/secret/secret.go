package secret

import (
	"fmt"
	"log/slog"
	"unique"
)

// Mark is printed in place of a secret.
const Mark = "[secret]"

// String is a string that prints, logs and marshals as [Mark]. [String.Reveal] returns
// its text. The zero value is the empty secret.
//
// Two Strings are equal under == if and only if their texts are equal. The only field is a
// handle of the text. fmt prints unexported fields without calling their methods, and for a
// handle it prints an address, not the text. Values are immutable and safe for concurrent use.
type String struct {
	handle unique.Handle[string]
}

// New returns s as a secret. New("") is the zero value.
func New(s string) String {
	if s == "" {
		return String{}
	}
	return String{unique.Make(s)}
}

// Reveal returns the text. Each call needs a review.
func (s String) Reveal() string {
	if s.Empty() {
		return ""
	}
	return s.handle.Value()
}

// Empty reports whether the text is empty.
func (s String) Empty() bool { return s == String{} }

// Equal reports whether both texts are equal. Packages such as go-cmp compare values with
// such a method.
func (s String) Equal(other String) bool { return s == other }

// String returns [Mark], or an empty text for the empty secret, so that a log shows
// whether a secret is set.
func (s String) String() string {
	if s.Empty() {
		return ""
	}
	return Mark
}

// Format writes the result of [String.String] for every verb, including %d and %#v.
func (s String) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue implements [slog.LogValuer].
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements [encoding.TextMarshaler], and with it JSON and YAML.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]: secrets in files and responses are
// decoded like other strings.
func (s *String) UnmarshalText(text []byte) error {
	*s = New(string(text))
	return nil
}
