package runner

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// matcher finds secrets in text. Of several matches it takes the leftmost, and of those
// the longest. It is immutable and safe for concurrent use.
//
// The time does not depend much on the number of secrets, because a job may have ten thousand, each
// in twenty forms: 1 MiB takes some milliseconds with ten of them, and five times as long with ten
// thousand. An automaton of Aho and Corasick would do the same with a node for each byte of every
// form, which is some hundred megabytes.
type matcher struct {
	plain   *patternSet
	wrapped *patternSet // texts without line breaks, which also match with a line break between two bytes
}

// newMatcher returns a matcher for patterns of at least three bytes each. The patterns of
// the second list may be wrapped in the text, and contain neither \r nor \n.
func newMatcher(plain, wrapped []string) *matcher {
	return &matcher{newPatternSet(plain), newPatternSet(wrapped)}
}

// redact replaces the secrets in a complete text by marks.
func (m *matcher) redact(text string) string {
	out, _ := m.scan(nil, []byte(text), true)
	return string(out)
}

// scan appends text to out with its secrets replaced. It returns how many bytes at the
// end of text it has held back, because they may be the beginning of a secret. If final,
// it holds back none.
func (m *matcher) scan(out, text []byte, final bool) (_ []byte, held int) {
	flat := unwrap(text, final)
	plain, wrapped := m.plain.find(text, 0, final), flat.find(m.wrapped, 0, final)
	for copied := 0; ; {
		if plain.at < copied {
			plain = m.plain.find(text, copied, final)
		}
		if wrapped.at < copied {
			wrapped = flat.find(m.wrapped, copied, final)
		}
		first := plain
		if wrapped.at < first.at {
			first = wrapped
		} else if wrapped.at == first.at {
			first.length, first.partial = max(first.length, wrapped.length), first.partial || wrapped.partial
		}
		out = append(out, text[copied:first.at]...)
		if first.partial || first.length == 0 {
			return out, len(text) - first.at
		}
		out = append(out, secret.Mark...)
		copied = first.at + first.length
	}
}

// occurrence is the first place in a text where a pattern of a set is. If there is none, at is
// the length of the text.
type occurrence struct {
	at      int
	length  int  // of the longest pattern there; may be 0 if partial
	partial bool // the text ends before a longer pattern does
}

// patternSet finds patterns in text. It is immutable and safe for concurrent use.
//
// It moves a window over the text that is as long as the shortest pattern. As in the algorithm of
// Wu and Manber, the last three bytes of the window determine how far the window may move: in most
// text, with few patterns, by two bytes less than its length. With many patterns it moves by one
// byte. A set of hashes then excludes most positions, and a binary search finds the pattern.
type patternSet struct {
	patterns []string // sorted
	inner    []int32  // by pattern: position of the longest other pattern with which it begins, or -1
	window   int      // length of the shortest pattern, at most 255
	shift    *[1 << 15]uint8
	windows  []uint64 // set of hashes of the last bytes of the windows of patterns, as bits
	bits     int      // number of bits of these hashes
}

// newPatternSet returns the set of patterns of at least three bytes each.
func newPatternSet(patterns []string) *patternSet {
	x := &patternSet{patterns: slices.Compact(slices.Sorted(slices.Values(patterns)))}
	if len(patterns) == 0 {
		return x
	}

	// In sorted order, a pattern follows those with which it begins.
	x.inner = make([]int32, len(x.patterns))
	last := int32(-1)
	x.window = 255
	for i, p := range x.patterns {
		for last >= 0 && !strings.HasPrefix(p, x.patterns[last]) {
			last = x.inner[last]
		}
		x.inner[i], last = last, int32(i)
		x.window = min(x.window, len(p))
	}

	x.shift = (*[1 << 15]uint8)(bytes.Repeat([]byte{uint8(x.window - 2)}, 1<<15))
	x.bits = max(16, bits.Len(uint(len(x.patterns)))+5)
	x.windows = make([]uint64, 1<<(x.bits-6))
	for _, p := range x.patterns {
		for i := range x.window - 2 {
			h := hash(p[i], p[i+1], p[i+2])
			x.shift[h] = min(x.shift[h], uint8(x.window-3-i))
		}
		at := x.hashWindow([]byte(p[:x.window]))
		x.windows[at>>6] |= 1 << (at & 63)
	}
	return x
}

func hash(a, b, c byte) uint16 {
	return (uint16(a)<<10 ^ uint16(b)<<5 ^ uint16(c)) & (1<<15 - 1)
}

// hashWindow returns a hash of the last eight bytes of a window.
func (x *patternSet) hashWindow(window []byte) uint64 {
	var last uint64
	if n := len(window); n >= 8 {
		last = binary.LittleEndian.Uint64(window[n-8:])
	} else {
		for _, b := range window {
			last = last<<8 | uint64(b)
		}
	}
	return last * 0x9e3779b97f4a7c15 >> (64 - x.bits) // Fibonacci hashing
}

// find returns the first occurrence of a pattern that starts at from or later. If final, the text
// is complete, and no pattern is partial.
func (x *patternSet) find(text []byte, from int, final bool) occurrence {
	if len(x.patterns) == 0 {
		return occurrence{at: len(text)}
	}
	i := from
	for last := i + x.window; last <= len(text); last = i + x.window {
		end := text[last-3 : last : last]
		if shift := int(x.shift[hash(end[0], end[1], end[2])]); shift > 0 {
			i += shift
			continue
		}
		at := x.hashWindow(text[i:last])
		if x.windows[at>>6]&(1<<(at&63)) != 0 {
			length, partial := x.longest(text[i:])
			if partial = partial && !final; length > 0 || partial {
				return occurrence{i, length, partial}
			}
		}
		i++
	}
	for ; i < len(text) && !final; i++ { // shorter than each pattern
		if _, partial := x.longest(text[i:]); partial {
			return occurrence{at: i, partial: true}
		}
	}
	return occurrence{at: len(text)}
}

// longest returns the length of the longest pattern with which text begins, or 0, and whether a
// longer pattern begins with text.
func (x *patternSet) longest(text []byte) (length int, partial bool) {
	next := sort.Search(len(x.patterns), func(i int) bool { return x.patterns[i] > string(text) })
	if next < len(x.patterns) {
		p := x.patterns[next]
		partial = len(p) > len(text) && p[:len(text)] == string(text)
	}

	// Each pattern with which text begins is the one before next, or an inner one of that.
	for i := int32(next) - 1; i >= 0; i = x.inner[i] {
		if p := x.patterns[i]; len(p) <= len(text) && p == string(text[:len(p)]) {
			return len(p), partial
		}
	}
	return 0, partial
}

// unwrapped is a text without its line breaks. A line break is \n or \r\n. One that follows another
// remains, because wrapped text has no empty lines.
type unwrapped struct {
	text    []byte
	removed []lineBreak
	length  int // with the line breaks
}

// lineBreak is a line break that was removed.
type lineBreak struct {
	at    int // position in the text without line breaks
	total int // length of this line break and of those before it
}

// unwrap removes the line breaks of a text. A \r at the end of a text that is not final may be the
// first half of a line break, and is removed too.
func unwrap(text []byte, final bool) unwrapped {
	u := unwrapped{text: make([]byte, 0, len(text)), length: len(text)}
	for start, end, next := 0, 0, 0; start < len(text); start = next {
		newline := bytes.IndexByte(text[start:], '\n')
		switch end, next = start+newline, start+newline+1; {
		case newline < 0:
			end, next = len(text), len(text)
			if !final && text[end-1] == '\r' {
				end--
			}
		case newline > 0 && text[end-1] == '\r':
			end--
		}
		if end == start && start > 0 { // an empty line
			end = next
		}
		u.text = append(u.text, text[start:end]...)
		if end < next {
			u.removed = append(u.removed, lineBreak{len(u.text), next - len(u.text)})
		}
	}
	return u
}

// find returns the first occurrence of a pattern that starts at from or later. From and the
// occurrence are those of the text with its line breaks.
func (u *unwrapped) find(x *patternSet, from int, final bool) occurrence {
	// Of the line breaks that end before from, only the last counts. From may be within the next one.
	next := sort.Search(len(u.removed), func(i int) bool { return u.removed[i].at+u.removed[i].total > from })
	if next > 0 {
		from -= u.removed[next-1].total
	}
	if next < len(u.removed) {
		from = min(from, u.removed[next].at)
	}

	found := x.find(u.text, from, final)
	if found.at == len(u.text) {
		return occurrence{at: u.length}
	}
	if found.length > 0 {
		found.length = u.position(found.at+found.length-1) + 1 - u.position(found.at)
	}
	found.at = u.position(found.at)
	return found
}

// position returns the position of a byte in the text with its line breaks.
func (u *unwrapped) position(at int) int {
	next := sort.Search(len(u.removed), func(i int) bool { return u.removed[i].at > at })
	if next == 0 {
		return at
	}
	return at + u.removed[next-1].total
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
