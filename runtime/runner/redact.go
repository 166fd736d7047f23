package runner

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// matcher finds secrets in text: the leftmost first, and of those that start at
// one place the longest. It is immutable and safe for concurrent use.
//
// The search is the one of Wu and Manber: three bytes at the end of a window as
// long as the shortest secret tell how far the window may move, which for most
// text is as far as can be. That search misses a wrapped pattern with a line
// break among its first bytes, so at each place before a line break the first two
// bytes are looked up as well.
type matcher struct {
	least   int                  // length of the shortest pattern; 0 without patterns
	shift   *[1 << 15]uint8      // by hash of the window's last three bytes
	ending  map[uint16][]pattern // patterns by hash of the last three of their first least bytes
	initial [256][]pattern       // patterns by first byte
	wrapped [256][]pattern       // those that may be wrapped
	pairs   *[1 << 10]uint64     // set of the two bytes with which wrapped ones begin, as 16 bits
}

// pattern is one text to look for. A wrapped one is also found with a line break,
// \n or \r\n, between any two of its bytes.
type pattern struct {
	text    string
	wrapped bool
}

// match returns how many bytes of text the pattern takes at its beginning, or 0,
// and whether text ends before the pattern does.
func (p pattern) match(text []byte) (length int, more bool) {
	for rest, at := p.text, 0; ; {
		part := text[at:min(at+len(rest), len(text))]
		switch same := string(part) == rest[:len(part)]; {
		case same && len(part) == len(rest):
			return at + len(part), false
		case same:
			return 0, true
		case !p.wrapped:
			return 0, false
		}

		// The pattern may go on behind a line break.
		line := text[at:min(at+len(rest)+1, len(text))]
		start, end := lineBreak(line)
		if start == 0 || start > len(rest) || string(line[:start]) != rest[:start] {
			return 0, false
		}
		rest, at = rest[start:], at+end
		if at > len(text) {
			return 0, true
		}
	}
}

// lineBreak returns where the first line break in text starts and ends. A \r at
// the end of text may be half of one, which then ends behind text. Without a line
// break both are the length of text.
func lineBreak(text []byte) (start, end int) {
	newline := bytes.IndexByte(text, '\n')
	switch {
	case newline > 0 && text[newline-1] == '\r':
		return newline - 1, newline + 1
	case newline >= 0:
		return newline, newline + 1
	case len(text) > 0 && text[len(text)-1] == '\r':
		return len(text) - 1, len(text) + 1
	}
	return len(text), len(text)
}

// newMatcher makes a matcher of patterns of at least three bytes each. Those of
// the second list may be wrapped.
func newMatcher(plain, wrapped []string) *matcher {
	m := &matcher{ending: map[uint16][]pattern{}, pairs: new([1 << 10]uint64)}
	all := make([]pattern, 0, len(plain)+len(wrapped))
	for _, text := range plain {
		all = append(all, pattern{text, false})
	}
	for _, text := range wrapped {
		all = append(all, pattern{text, true})
	}
	if len(all) == 0 {
		return m
	}
	slices.SortFunc(all, func(a, b pattern) int {
		return cmp.Or(len(b.text)-len(a.text), cmp.Compare(a.text, b.text))
	})
	all = slices.Compact(all)
	m.least = min(len(all[len(all)-1].text), 255)
	m.shift = (*[1 << 15]uint8)(bytes.Repeat([]byte{uint8(m.least - 2)}, 1<<15))
	for _, p := range all {
		m.add(p)
	}
	return m
}

func (m *matcher) add(p pattern) {
	text, last := p.text, m.least-3
	m.initial[text[0]] = append(m.initial[text[0]], p)
	for i := range last + 1 {
		h := hash(text[i], text[i+1], text[i+2])
		m.shift[h] = min(m.shift[h], uint8(last-i))
	}
	h := hash(text[last], text[last+1], text[last+2])
	m.ending[h] = append(m.ending[h], p)
	if p.wrapped {
		m.wrapped[text[0]] = append(m.wrapped[text[0]], p)
		for _, second := range []byte{text[1], '\r', '\n'} {
			at, bit := pair(text[0], second)
			m.pairs[at] |= bit
		}
	}
}

func hash(a, b, c byte) uint16 {
	return (uint16(a)<<10 ^ uint16(b)<<5 ^ uint16(c)) & (1<<15 - 1)
}

// pair is the place of two bytes in a set.
func pair(a, b byte) (at int, bit uint64) { return int(a)<<2 | int(b>>6), 1 << (b & 63) }

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
	line := -1 // the first line break at i or behind it
	for i+m.least <= len(text) {
		if line < i {
			start, _ := lineBreak(text[i:])
			line = i + start
		}
		if i = m.skip(text, i, line); i+m.least > len(text) {
			break
		}

		// Find the longest pattern at i, or a broken one before i+shift: there no
		// pattern starts that has no line break in its first bytes.
		end := text[i+m.least-3 : i+m.least]
		h := hash(end[0], end[1], end[2])
		shift := int(m.shift[h])
		broken := line < i+m.least
		length, more := 0, false
		if shift == 0 {
			length, more = m.at(text[i:], m.ending[h])
		}
		if broken {
			to := min(i+max(shift, 1), line)
			first := m.firstPair(text, i, to)
			if first == to && shift > 0 {
				i = min(i+shift, line+1)
				continue
			}
			if first < to {
				i = first
				l, again := m.at(text[i:], m.wrapped[text[i]])
				length, more = max(length, l), more || again
			}
		}
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

	// Hold back what may be the beginning of a pattern.
	i = min(i, len(text))
	for !final && i < len(text) && !m.begins(text[i:]) {
		i++
	}
	if final {
		i = len(text)
	}
	return append(out, text[copied:i]...), len(text) - i
}

// skip returns the first place from i on whose window must be looked at: because
// its shift is 0, or because it reaches beyond line.
func (m *matcher) skip(text []byte, i, line int) int {
	shift := m.shift
	text = text[:line]
	last := i + m.least - 1 // of the window
	for last < len(text) {
		end := text[last-2 : last+1 : last+1]
		s := int(shift[hash(end[0], end[1], end[2])])
		if s == 0 {
			break
		}
		last += s
	}
	return last - m.least + 1
}

// at returns the length of the longest of some patterns that text starts with,
// or 0, and whether text is the beginning of one that is longer than text.
func (m *matcher) at(text []byte, patterns []pattern) (length int, more bool) {
	for _, p := range patterns {
		l, longer := p.match(text)
		length, more = max(length, l), more || longer
	}
	return length, more
}

// firstPair returns the first place from i on, or to, at which a wrapped pattern
// may start, as far as two bytes tell.
func (m *matcher) firstPair(text []byte, i, to int) int {
	for ; i < to; i++ {
		if at, bit := pair(text[i], text[i+1]); m.pairs[at]&bit != 0 {
			return i
		}
	}
	return to
}

// begins reports whether text, which is shorter than every secret, is the
// beginning of one.
func (m *matcher) begins(text []byte) bool {
	_, more := m.at(text, m.initial[text[0]])
	return more
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
