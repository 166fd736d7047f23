package runner

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/cmwa-project/cmwa/secret"
)

// matcher finds secrets in text: the leftmost first, and of those that start at
// one place the longest. It is immutable and safe for concurrent use.
//
// The search is the one of Wu and Manber: three bytes at the end of a window as
// long as the shortest secret tell how far the window may move, which for most
// text is as far as can be.
type matcher struct {
	least   int                 // length of the shortest pattern; 0 without patterns
	shift   []uint8             // by hash of the window's last three bytes
	ending  map[uint16][]string // patterns by hash of the last three of their first least bytes, longest first
	initial [256][]string       // patterns by first byte
}

// newMatcher makes a matcher of patterns of at least three bytes each.
func newMatcher(patterns []string) *matcher {
	m := &matcher{ending: map[uint16][]string{}}
	if len(patterns) == 0 {
		return m
	}
	patterns = slices.Clone(patterns)
	slices.SortFunc(patterns, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	patterns = slices.Compact(patterns)
	m.least = min(len(patterns[len(patterns)-1]), 255)
	m.shift = bytes.Repeat([]byte{uint8(m.least - 2)}, 1<<15)
	for _, p := range patterns {
		m.initial[p[0]] = append(m.initial[p[0]], p)
		last := m.least - 3
		for i := range last + 1 {
			h := hash(p[i], p[i+1], p[i+2])
			m.shift[h] = min(m.shift[h], uint8(last-i))
		}
		h := hash(p[last], p[last+1], p[last+2])
		m.ending[h] = append(m.ending[h], p)
	}
	return m
}

func hash(a, b, c byte) uint16 {
	return (uint16(a)<<10 ^ uint16(b)<<5 ^ uint16(c)) & (1<<15 - 1)
}

// redact marks the secrets in a whole text.
func (m *matcher) redact(text string) string {
	out, _ := m.scan(nil, []byte(text), true)
	return string(out)
}

// scan appends text to out with its secrets marked, and returns how many bytes
// at the end of text it has left alone, because they may be the beginning of a
// secret. With final there are none.
func (m *matcher) scan(out, text []byte, final bool) (_ []byte, held int) {
	if m.least == 0 {
		return append(out, text...), 0
	}
	copied, i := 0, 0
	for i+m.least <= len(text) {
		end := text[i+m.least-3 : i+m.least]
		h := hash(end[0], end[1], end[2])
		if s := m.shift[h]; s > 0 {
			i += int(s)
			continue
		}
		length, more := m.at(text[i:], h)
		switch {
		case more && !final:
			return append(out, text[copied:i]...), len(text) - i
		case length > 0:
			out = append(out, text[copied:i]...)
			out = append(out, secret.Mark...)
			i += length
			copied = i
		default:
			i++
		}
	}
	i = min(i, len(text))
	for !final && i < len(text) && !m.begins(text[i:]) {
		i++
	}
	if final {
		i = len(text)
	}
	return append(out, text[copied:i]...), len(text) - i
}

// at returns the length of the longest secret that text starts with, or 0, and
// whether text is the beginning of one that is longer than text.
func (m *matcher) at(text []byte, h uint16) (length int, more bool) {
	for _, p := range m.ending[h] {
		switch {
		case len(p) > len(text):
			more = more || p[:len(text)] == string(text)
		case string(text[:len(p)]) == p:
			return len(p), more
		}
	}
	return 0, more
}

// begins reports whether text, which is shorter than every secret, is the
// beginning of one.
func (m *matcher) begins(text []byte) bool {
	for _, p := range m.initial[text[0]] {
		if p[:len(text)] == string(text) {
			return true
		}
	}
	return false
}

// redactor marks secrets in a stream, wherever it is cut. It holds back only
// what may be the beginning of a secret. It belongs to one goroutine.
type redactor struct {
	*matcher
	held []byte
	out  []byte
}

// write takes a piece of the stream and returns what may be shown now. The
// result is good until the next call.
func (r *redactor) write(piece []byte) []byte { return r.take(piece, false) }

// close returns what was held back, at the stream's end.
func (r *redactor) close() []byte { return r.take(nil, true) }

func (r *redactor) take(piece []byte, final bool) []byte {
	text := piece
	if len(r.held) > 0 {
		r.held = append(r.held, piece...)
		text = r.held
	}
	var held int
	r.out, held = r.scan(r.out[:0], text, final)
	r.held = append(r.held[:0], text[len(text)-held:]...)
	return r.out
}
