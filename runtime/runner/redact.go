package runner

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// matcher finds secrets in text. Of several matches it takes the leftmost, and of those
// the longest. It is immutable and safe for concurrent use.
//
// It uses the algorithm of Wu and Manber with a window that is as long as the shortest
// secret. The last three bytes of the window determine how far the window may move: in most
// text, by two bytes less than its length. The algorithm alone misses a wrapped pattern with
// a line break in its first bytes. Before a line break, the matcher therefore also looks up
// the first two bytes at each position.
type matcher struct {
	minLength int                  // length of the shortest pattern, at most 255; 0 without patterns
	shift     *[1 << 15]uint8      // by hash of the last three bytes of the window
	ending    map[uint16][]pattern // patterns by hash of the last three of their first minLength bytes
	initial   [256][]pattern       // patterns by first byte
	wrapped   [256][]pattern       // wrapped patterns by first byte
	pairs     *[1 << 10]uint64     // set of the first two bytes of wrapped patterns, as 16 bits
}

// pattern is one text to find. A wrapped pattern also matches with a line break, \n or
// \r\n, between any two of its bytes.
type pattern struct {
	text    string
	wrapped bool
}

// match returns how many bytes at the beginning of text match the pattern, or 0, and
// whether text ends before the pattern does.
func (p pattern) match(text []byte) (length int, more bool) {
	for remaining, at := p.text, 0; ; {
		// Compare up to the end of the pattern or the text.
		part := text[at:min(at+len(remaining), len(text))]
		switch same := string(part) == remaining[:len(part)]; {
		case same && len(part) == len(remaining):
			return at + len(part), false
		case same:
			return 0, true
		case !p.wrapped:
			return 0, false
		}

		// The pattern may continue after a line break.
		line := text[at:min(at+len(remaining)+1, len(text))]
		start, end := lineBreak(line)
		if start == 0 || start > len(remaining) || string(line[:start]) != remaining[:start] {
			return 0, false
		}
		remaining, at = remaining[start:], at+end
		if at > len(text) {
			return 0, true
		}
	}
}

// lineBreak returns the start and the end of the first line break in text. A \r at the
// end of text may be the first half of a line break, which then ends after text. Without
// a line break, both are the length of text.
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

// newMatcher returns a matcher for patterns of at least three bytes each. The patterns of
// the second list may be wrapped in the text.
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

	m.minLength = min(len(all[len(all)-1].text), 255)
	m.shift = (*[1 << 15]uint8)(bytes.Repeat([]byte{uint8(m.minLength - 2)}, 1<<15))
	for _, p := range all {
		m.add(p)
	}
	return m
}

func (m *matcher) add(p pattern) {
	text, last := p.text, m.minLength-3
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

// pair returns the position of two bytes in a set of pairs.
func pair(a, b byte) (at int, bit uint64) { return int(a)<<2 | int(b>>6), 1 << (b & 63) }

// redact replaces the secrets in a complete text by marks.
func (m *matcher) redact(text string) string {
	out, _ := m.scan(nil, []byte(text), true)
	return string(out)
}

// scan appends text to out with its secrets replaced. It returns how many bytes at the
// end of text it has held back, because they may be the beginning of a secret. If final,
// it holds back none.
func (m *matcher) scan(out, text []byte, final bool) (_ []byte, held int) {
	if m.minLength == 0 {
		return append(out, text...), 0
	}
	copied, i := 0, 0
	line := -1 // position of the first line break at or after i
	for i+m.minLength <= len(text) {
		if line < i {
			start, _ := lineBreak(text[i:])
			line = i + start
		}
		if i = m.skip(text, i, line); i+m.minLength > len(text) {
			break
		}

		// Find the longest pattern at i. Before i+shift, only patterns with a line break
		// in their first bytes can start.
		end := text[i+m.minLength-3 : i+m.minLength]
		h := hash(end[0], end[1], end[2])
		shift := int(m.shift[h])
		broken := line < i+m.minLength
		length, more := 0, false
		if shift == 0 {
			length, more = m.longestMatch(text[i:], m.ending[h])
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
				l, again := m.longestMatch(text[i:], m.wrapped[text[i]])
				length, more = max(length, l), more || again
			}
		}

		// Replace a match, or hold back a possible beginning.
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

	// Hold back a possible beginning of a pattern.
	i = min(i, len(text))
	for !final && i < len(text) && !m.mayBegin(text[i:]) {
		i++
	}
	if final {
		i = len(text)
	}
	return append(out, text[copied:i]...), len(text) - i
}

// skip returns the first position from i on whose window must be checked: because its
// shift is 0, or because it extends beyond line.
func (m *matcher) skip(text []byte, i, line int) int {
	shift := m.shift
	text = text[:line]
	last := i + m.minLength - 1 // last byte of the window
	for last < len(text) {
		end := text[last-2 : last+1 : last+1]
		s := int(shift[hash(end[0], end[1], end[2])])
		if s == 0 {
			break
		}
		last += s
	}
	return last - m.minLength + 1
}

// longestMatch returns the length of the longest of the patterns that match at the beginning
// of text, or 0, and whether text is the beginning of a longer pattern.
func (m *matcher) longestMatch(text []byte, patterns []pattern) (length int, more bool) {
	for _, p := range patterns {
		l, longer := p.match(text)
		length, more = max(length, l), more || longer
	}
	return length, more
}

// firstPair returns the first position from i on at which a wrapped pattern may start
// according to two bytes, or to if there is none.
func (m *matcher) firstPair(text []byte, i, to int) int {
	for ; i < to; i++ {
		if at, bit := pair(text[i], text[i+1]); m.pairs[at]&bit != 0 {
			return i
		}
	}
	return to
}

// mayBegin reports whether text, which is shorter than every secret, is the beginning of
// one.
func (m *matcher) mayBegin(text []byte) bool {
	_, more := m.longestMatch(text, m.initial[text[0]])
	return more
}

// redactor replaces secrets in a stream that arrives in pieces. It holds back only bytes
// that may be the beginning of a secret. It is not safe for concurrent use.
type redactor struct {
	*matcher
	held []byte
	out  []byte
}

// write adds a piece of the stream and returns the text that may be shown. The result is
// valid until the next call.
func (r *redactor) write(piece []byte) []byte { return r.take(piece, false) }

// close returns the bytes that were held back, at the end of the stream.
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
