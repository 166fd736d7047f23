package runner

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// stream redacts a text that arrives in pieces.
func stream(plain, wrapped []string, pieces ...string) string {
	r := redactor{matcher: newMatcher(plain, wrapped)}
	var b strings.Builder
	for _, piece := range pieces {
		b.Write(r.write([]byte(piece)))
	}
	b.Write(r.close())
	return b.String()
}

// wrap breaks a text into lines.
func wrap(text string, width int, lineBreak string) string {
	var lines []string
	for ; len(text) > width; text = text[width:] {
		lines = append(lines, text[:width])
	}
	return strings.Join(append(lines, text), lineBreak)
}

func TestRedactorProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few letters, so that secrets overlap, repeat and nearly match.
		letters := rapid.SampledFrom([]rune{'x', 'y', 'z', '\n'})
		plain := rapid.SliceOfN(rapid.StringOfN(letters, minSecret, 14, -1), 0, 6).Draw(t, "secrets")
		inBase64 := rapid.SampledFrom([]rune{'x', 'y'})
		wrapped := rapid.SliceOfN(rapid.StringOfN(inBase64, minSecret, 14, -1), 0, 4).Draw(t, "wrapped")
		parts := []*rapid.Generator[string]{
			rapid.StringOfN(letters, 0, 12, -1),
			rapid.SampledFrom(append(slices.Clone(plain), "w", "\r\n", "\r")),
		}
		if len(wrapped) > 0 {
			parts = append(parts, rapid.Custom(func(t *rapid.T) string {
				return wrap(rapid.SampledFrom(wrapped).Draw(t, "secret"), rapid.IntRange(1, 14).Draw(t, "width"),
					rapid.SampledFrom([]string{"\n", "\r\n", "\n\n"}).Draw(t, "break"))
			}))
		}
		text := strings.Join(rapid.SliceOfN(rapid.OneOf(parts...), 0, 12).Draw(t, "parts"), "")
		var pieces []string
		for remaining := text; remaining != ""; {
			n := rapid.IntRange(0, min(len(remaining), 9)).Draw(t, "cut")
			pieces = append(pieces, remaining[:n])
			remaining = remaining[n:]
		}

		got := stream(plain, wrapped, pieces...)
		if want := string(plainRedact(plain, wrapped, []byte(text))); got != want {
			t.Fatalf("secrets %q and wrapped %q, pieces %q: got\n%q, want\n%q", plain, wrapped, pieces, got, want)
		}
		for _, s := range slices.Concat(plain, wrapped) {
			if strings.Contains(got, s) {
				t.Fatalf("%q is shown in %q", s, got)
			}
		}
	})
}

func FuzzRedactor(f *testing.F) {
	f.Add("hunter2-hunter2", "the password\nis hunter2-hunter2", uint8(3), uint8(7))
	f.Add("a-key-of-more-than-58-bytes-0123456789-0123456789-0123456789-0123456789", "key: ", uint8(76), uint8(1))
	f.Add("-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\n-----END KEY-----", "{}", uint8(64), uint8(200))
	f.Fuzz(func(t *testing.T, value, text string, width, cut uint8) {
		if len(value) > 200 || len(text) > 500 || !utf8.ValidString(value) {
			return // plainRedact is slow
		}
		plain, wrapped := patterns([]string{value})
		text += wrap(base64.StdEncoding.EncodeToString([]byte(text+value+text)), int(width)+1, "\n") + value + "\r\n"
		text += wrap(base64.URLEncoding.EncodeToString([]byte(value)), int(width)+1, "\r\n")
		text += hex.EncodeToString([]byte(value)) + url.QueryEscape(value)
		text += base32.StdEncoding.EncodeToString([]byte(text[:min(len(text), 9)] + value))
		var pieces []string
		for piece := range slices.Chunk([]byte(text), int(cut)+1) {
			pieces = append(pieces, string(piece))
		}
		got := stream(plain, wrapped, pieces...)
		if want := string(plainRedact(plain, wrapped, []byte(text))); got != want {
			t.Fatalf("secret %q, text %q: got\n%q, want\n%q", value, text, got, want)
		}
		if whole := newMatcher(plain, wrapped).redact(text); got != whole {
			t.Fatalf("secret %q, text %q: got\n%q from pieces, and from the whole text\n%q", value, text, got, whole)
		}
	})
}

func TestRedactor(t *testing.T) {
	r := redactor{matcher: newMatcher([]string{"abcdefgh", "abcdefghijkl"}, nil)}
	for _, c := range []struct{ piece, want string }{
		{"nothing here", "nothing here"},
		{"then abc", "then "},
		{"x and abcdefgh", "abcx and "},
		{"ij", ""},
		{"?", secret.Mark + "ij?"},
		{"abcdefghijkl", secret.Mark},
	} {
		if got := string(r.write([]byte(c.piece))); got != c.want {
			t.Errorf("write of %q returns %q, want %q", c.piece, got, c.want)
		}
	}
}

func TestRedactorMany(t *testing.T) {
	secrets, _ := manySecrets(10_000)
	got := newMatcher(patterns(secrets)).redact("one is secret-value-009999, and secret-value-010000 is no secret\n")
	if want := "one is " + secret.Mark + ", and secret-value-010000 is no secret\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRedactorDelay checks that a line is not held back until the next one because it ends with a
// character with which a secret in hexadecimal or base32 starts.
func TestRedactorDelay(t *testing.T) {
	plain, wrapped := patterns([]string{"-hunter2-hunter2"})
	inBase64 := map[byte]bool{}
	for _, form := range wrapped {
		inBase64[form[0]] = true
	}
	for _, c := range "0123456789abcdefABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		if inBase64[byte(c)] {
			continue
		}
		r := redactor{matcher: newMatcher(plain, wrapped)}
		line := "signal " + string(c) + "\n"
		if got := string(r.write([]byte(line))); got != line {
			t.Errorf("of the line %q, only %q is shown before the next line", line, got)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Run("every form of a secret is redacted", func(t *testing.T) {
		const password = `p"ss<w>rd/with & 100% all of it`
		key := "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\nshort\nq83vEjRWeJq83vEjRW\n-----END KEY-----\n"
		m := newMatcher(patterns([]string{password, key, "short", "      ", ""}))
		inJSON, err := json.Marshal(map[string]string{"key": key, "password": password})
		if err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{
			"the secret itself":       "is " + password + ".",
			"JSON":                    string(inJSON),
			"a line of the key":       "line MIIEpAIBAAKCAQEA7\r\n",
			"base64":                  base64.StdEncoding.EncodeToString([]byte(password)),
			"base64 of a key":         base64.StdEncoding.EncodeToString([]byte(key)),
			"base64 behind a name":    base64.StdEncoding.EncodeToString([]byte("user:" + password)),
			"base64 behind another":   base64.StdEncoding.EncodeToString([]byte("users:" + password + "!")),
			"base64 for URLs":         base64.RawURLEncoding.EncodeToString([]byte("me??" + password)),
			"a URL's query":           "https://host/?p=p%22ss%3Cw%3Erd%2Fwith+%26+100%25+all+of+it",
			"a query in lower case":   "p=p%22ss%3cw%3erd%2fwith+%26+100%25+all+of+it",
			"encodeURIComponent":      "p%22ss%3Cw%3Erd%2Fwith%20%26%20100%25%20all%20of%20it",
			"JSON of PHP":             strings.ReplaceAll(string(inJSON), "/", `\/`),
			"hexadecimal":             hex.EncodeToString([]byte("user:" + password)),
			"hexadecimal upper case":  strings.ToUpper(hex.EncodeToString([]byte(password))),
			"base32":                  base32.StdEncoding.EncodeToString([]byte(password)),
			"base32 of a key":         base32.StdEncoding.EncodeToString([]byte(key)),
			"base32 behind 1 byte":    base32.StdEncoding.EncodeToString([]byte(":" + password + "!")),
			"base32 behind 4 bytes":   base32.StdEncoding.EncodeToString([]byte("user" + password + "!!")),
			"the whole key":           key,
			"the key with CRLF lines": strings.ReplaceAll(key, "\n", "\r\n"),
		} {
			got := m.redact(text)
			if !strings.Contains(got, secret.Mark) {
				t.Errorf("%s: %q becomes %q, want the secret redacted", what, text, got)
			}
			for _, part := range []string{
				password, "MIIEpAIBAAKCAQEA7", "q83vEjRWeJq83vEjRW", "all of it", "all+of+it", "all%20of%20it",
				base64.StdEncoding.EncodeToString([]byte(password))[4:32],
				hex.EncodeToString([]byte("all of it")),
				base32.StdEncoding.EncodeToString([]byte(password))[:40],
			} {
				if strings.Contains(strings.ToLower(got), strings.ToLower(part)) {
					t.Errorf("%s: %q is still in %q", what, part, got)
				}
			}
		}
		if got := m.redact("a short text\n"); got != "a short text\n" {
			t.Errorf("a text without secrets becomes %q, want no change", got)
		}
		if got := m.redact(key + "next\n"); !strings.HasSuffix(got, "\nnext\n") {
			t.Errorf("the line after a secret is joined to it: %q", got)
		}
	})

	t.Run("wrapped base64 of a secret is redacted", func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		token := make([]byte, 200)
		for i := range token {
			token[i] = byte('!' + random.IntN(90))
		}
		for name, value := range map[string]string{
			"secret of 58 bytes":  string(token[:58]),
			"secret of 200 bytes": string(token),
			"secret of 15 bytes":  string(token[:15]),
		} {
			t.Run(name, func(t *testing.T) {
				m := newMatcher(patterns([]string{value}))
				for before := range 80 {
					text := strings.Repeat("b", before) + value + "\nbehind"
					encoded := base64.StdEncoding.EncodeToString([]byte(text))
					first := before/3*4 + 4 // first letter that depends on the secret alone
					for _, width := range []int{76, 64, 40} {
						for _, lineBreak := range []string{"\n", "\r\n"} {
							got := m.redact(wrap(encoded, width, lineBreak))
							shown := strings.ReplaceAll(got, lineBreak, "")
							if strings.Count(got, secret.Mark) != 1 ||
								strings.Contains(shown, encoded[first:first+12]) {
								t.Fatalf("secret after %d bytes, lines of %d columns, line break %q: got\n%s",
									before, width, lineBreak, got)
							}
						}
					}
				}
			})
		}

		t.Run("base64 with an empty line in it is not redacted", func(t *testing.T) {
			m := newMatcher(patterns([]string{"hunter2-hunter2"}))
			encoded := base64.StdEncoding.EncodeToString([]byte("hunter2-hunter2"))
			if text := encoded[:9] + "\n\n" + encoded[9:]; m.redact(text) != text {
				t.Errorf("%q becomes %q, want no change", text, m.redact(text))
			}
		})
	})
}

func TestLooksSecret(t *testing.T) {
	for _, name := range []string{
		"PULUMI_ACCESS_TOKEN", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
		"AWS_ACCESS_KEY_ID", "ARM_CLIENT_SECRET",
		"DB_PASSWORD", "dbPassword", "PULUMI_CONFIG_PASSPHRASE", "GOOGLE_CREDENTIALS", "API_KEY", "APIKEY", "MYSQL_PWD",
		"SSH_KEY", "private-key", "npm.auth", "GITHUB_PAT",
	} {
		if !looksSecret(name) {
			t.Errorf("looksSecret(%q) is false, want true", name)
		}
	}
	for _, name := range []string{
		"PWD", "OLDPWD", "PATH", "HOME", "PULUMI_CI_STACK", "AWS_REGION", "AUTHOR", "KEYBOARD", "MONKEY",
		"PULUMI_CONFIG_PASSPHRASE_FILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "GIT_ASKPASS_PATH", "", "_",
	} {
		if looksSecret(name) {
			t.Errorf("looksSecret(%q) is true, want false", name)
		}
	}
}

// benchmarkText is a log of ordinary lines. Every hundredth line contains a secret.
func benchmarkText(size int, secrets []string) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "2026-01-02T03:04:05Z INFO resource %06d updated: "+
			"https://service.example.com/stacks/organization/project", i)
		if i%100 == 0 {
			b.WriteString(" " + secrets[i/100%len(secrets)])
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// benchmarkSecrets are 20 secrets of common lengths.
func benchmarkSecrets() []string {
	random := rand.New(rand.NewPCG(1, 2))
	var secrets []string
	for i := range 20 {
		value := make([]byte, 12+i*i)
		for k := range value {
			value[k] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[random.IntN(64)]
		}
		secrets = append(secrets, string(value))
	}
	return secrets
}

// benchmarkRedactor measures how long the redaction of a text takes.
func benchmarkRedactor(b *testing.B, secrets []string, text []byte) {
	r := redactor{matcher: newMatcher(patterns(secrets))}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		for piece := range slices.Chunk(text, readSize) {
			r.write(piece)
		}
	}
}

func BenchmarkRedactor(b *testing.B) {
	secrets := benchmarkSecrets()
	benchmarkRedactor(b, secrets, benchmarkText(1<<20, secrets))
}

// manySecrets returns a number of secrets that begin alike, and a text of lines that resemble them.
// The first secret is short, because the shortest one decides how fast a text can be searched.
func manySecrets(n int) (secrets []string, similar []byte) {
	secrets = append(secrets, "hunter")
	for i := range n {
		secrets = append(secrets, fmt.Sprintf("secret-value-%06d", i))
	}
	for i := 0; len(similar) < 1<<20; i++ {
		similar = fmt.Appendf(similar, "VARIABLE_%06d=secret-value-%06d\n", i%20_000, i*7%20_000)
	}
	return secrets, similar
}

// BenchmarkRedactorMany measures ten and ten thousand secrets. The text is a log of ordinary lines, or
// of lines that resemble the secrets.
func BenchmarkRedactorMany(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		secrets, similar := manySecrets(n)
		b.Run(fmt.Sprintf("%d secrets, ordinary lines", n), func(b *testing.B) {
			benchmarkRedactor(b, secrets, benchmarkText(1<<20, secrets))
		})
		b.Run(fmt.Sprintf("%d secrets, similar lines", n), func(b *testing.B) {
			benchmarkRedactor(b, secrets, similar)
		})
	}
}

// BenchmarkRedactorBase64 measures text that resembles wrapped secrets.
func BenchmarkRedactorBase64(b *testing.B) {
	random := rand.New(rand.NewPCG(5, 6))
	file := make([]byte, 3<<18)
	for i := range file {
		file[i] = byte(random.Uint32())
	}
	text := []byte(wrap(base64.StdEncoding.EncodeToString(file), 76, "\n"))
	benchmarkRedactor(b, benchmarkSecrets(), text)
}

func BenchmarkNewMatcher(b *testing.B) {
	secrets := benchmarkSecrets()
	for b.Loop() {
		newMatcher(patterns(secrets))
	}
}

func BenchmarkRedactorNearMatches(b *testing.B) {
	value := strings.Repeat("a", 4000) + "b"
	benchmarkRedactor(b, []string{value}, bytes.Repeat([]byte("a"), 1<<20))
}
