package runner

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// plainRedact redacts a text without an index: at each byte it tries all secrets, and
// replaces the longest that matches. Wrapped secrets contain no line breaks.
func plainRedact(plain, wrapped []string, text []byte) []byte {
	var out []byte
	for len(text) > 0 {
		longest := 0
		for _, s := range plain {
			if bytes.HasPrefix(text, []byte(s)) {
				longest = max(longest, len(s))
			}
		}
		for _, s := range wrapped {
			longest = max(longest, wrappedPrefix(s, text))
		}
		if longest == 0 {
			out, text = append(out, text[0]), text[1:]
			continue
		}
		out, text = append(out, secret.Mark...), text[longest:]
	}
	return out
}

// wrappedPrefix returns the length of a secret at the beginning of a text, or 0 if the text
// does not begin with it. One line break may be between any two bytes of the secret.
func wrappedPrefix(s string, text []byte) int {
	at := 0
	for i := range len(s) {
		if i > 0 {
			if remaining := text[at:]; bytes.HasPrefix(remaining, []byte("\r\n")) {
				at += 2
			} else if bytes.HasPrefix(remaining, []byte("\n")) {
				at++
			}
		}
		if at >= len(text) || text[at] != s[i] {
			return 0
		}
		at++
	}
	return at
}

// insertSecrets replaces some bytes of a text by secrets: bytes from 0xf0 on by a plain
// secret or its first half, and bytes from 0xe0 to 0xef by a wrapped secret in lines of 1 to
// 8 bytes.
func insertSecrets(plain, wrapped []string, text []byte) []byte {
	var out []byte
	for _, b := range text {
		n := int(b & 0x0f)
		switch {
		case b >= 0xf0 && len(plain) > 0:
			s := plain[n%len(plain)]
			out = append(out, s[:len(s)-len(s)/2*(n/8)]...)
		case b >= 0xe0 && b < 0xf0 && len(wrapped) > 0:
			out = append(out, wrap(wrapped[n%len(wrapped)], n%8+1, []string{"\n", "\r\n"}[n/8])...)
		default:
			out = append(out, b)
		}
	}
	return out
}

// FuzzRedactorChunks compares the redactor with plainRedact, for any bytes in pieces of
// any sizes.
func FuzzRedactorChunks(f *testing.F) {
	f.Add([]byte("abc\x00abcd\x00bcd"), []byte("aGk\x00aGkx"), []byte("x\xf0\xf1\xf2\xe0\xe1\xf9\xe9\r\n"), uint64(1))
	f.Add([]byte("aaa\x00aab\x00aaaa"), []byte("aaaa"), []byte("aa\naa\r\xe1\xf0\xe9a\r"), uint64(2))
	f.Add([]byte("\r\n\r\x00\n\n\n\x00\xff\xfe\xfd"), []byte(""), []byte("\r\n\r\n\n\n\r\xf0\xf1\xf2"), uint64(3))
	f.Add(bytes.Repeat([]byte("k"), 300), bytes.Repeat([]byte("q"), 260), []byte("kk\xf8\xf0\xe0q\nq\xe8"), uint64(4))
	f.Fuzz(func(t *testing.T, plainText, wrappedText, text []byte, seed uint64) {
		if len(plainText)+len(wrappedText) > 600 || len(text) > 60 {
			return // the reference is slow
		}
		var plain, wrapped []string
		for s := range strings.SplitSeq(string(plainText), "\x00") {
			if len(s) >= 3 {
				plain = append(plain, s)
			}
		}
		for s := range strings.SplitSeq(string(wrappedText), "\x00") {
			if len(s) >= 3 && !strings.ContainsAny(s, "\r\n") {
				wrapped = append(wrapped, s)
			}
		}
		text = insertSecrets(plain, wrapped, text)
		want := plainRedact(plain, wrapped, text)

		// Write the text in pieces. Each piece is overwritten after the call.
		random := rand.New(rand.NewPCG(seed, 0))
		longest := 1 + random.IntN(40)
		r := redactor{matcher: newMatcher(plain, wrapped)}
		var got []byte
		for remaining := text; len(remaining) > 0; {
			piece := bytes.Clone(remaining[:min(len(remaining), random.IntN(longest+1))])
			remaining = remaining[len(piece):]
			got = append(got, r.write(piece)...)
			for i := range piece {
				piece[i] = 'a'
			}
		}
		if got = append(got, r.close()...); !bytes.Equal(got, want) {
			t.Fatalf("secrets %q and wrapped %q, text %q in pieces: got\n%q, want\n%q", plain, wrapped, text, got, want)
		}
		if whole := r.redact(string(text)); whole != string(want) {
			t.Fatalf("secrets %q and wrapped %q, whole text %q: got\n%q, want\n%q", plain, wrapped, text, whole, want)
		}
	})
}
