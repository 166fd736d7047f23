package secret

import (
	"fmt"
	"log/slog"
	"unique"
)

// Mark is what stands wherever a secret would have been printed.
const Mark = "[secret]"

// String is a string that prints, logs and marshals as [Mark]. Reading it is an
// explicit call, [String.Reveal]. The zero value is the empty secret.
//
// Two Strings are equal under == exactly when they hold the same text. The text
// is behind a handle, so that fmt, which reads unexported fields without asking
// their methods, meets an address and never the text. Values are immutable and
// safe for concurrent use.
type String struct {
	handle unique.Handle[string]
}

// New makes a secret of s. New("") is the zero value.
func New(s string) String {
	if s == "" {
		return String{}
	}
	return String{unique.Make(s)}
}

// Reveal returns the text itself. Every call of it is a place to review.
func (s String) Reveal() string {
	if s.Empty() {
		return ""
	}
	return s.handle.Value()
}

// Empty reports whether there is no text.
func (s String) Empty() bool { return s == String{} }

// Equal reports whether both hold the same text, for comparisons that look for
// such a method.
func (s String) Equal(other String) bool { return s == other }

// String returns Mark, or nothing for the empty secret, so that a person can
// see whether a secret is set.
func (s String) String() string {
	if s.Empty() {
		return ""
	}
	return Mark
}

// Format writes the mark whatever the verb, %d and %#v included.
func (s String) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue implements [slog.LogValuer].
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements [encoding.TextMarshaler], and with it JSON and YAML.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]: secrets are read from
// files and answers like any other string.
func (s *String) UnmarshalText(text []byte) error {
	*s = New(string(text))
	return nil
}
