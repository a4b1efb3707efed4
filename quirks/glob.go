package quirks

import (
	"fmt"
	"math/bits"
	"strings"
)

// Pattern is a compiled identity pattern with the rules of the kernel's
// glob_match (lib/glob.c), which libata applies to model and firmware: `*`
// any run, `?` any one byte, `[a-z]` and `[!a-z]` a class, `\` makes the next
// byte literal; a class that never closes is a literal `[`. Matching is
// anchored at both ends and case counts.
//
// A pattern can also be asked about a string of which only a part is known,
// since SCSI shows 16 of 40 characters of an ATA model (see matchCut).
type Pattern struct {
	text    string
	literal string
	isLit   bool
	toks    []token
	stars   positions // of toks that are tokStar, never two in a row
	lead    string    // the literal text before the first wildcard
	open    bool      // nothing but lead and a star
}

type token struct {
	kind  tokenKind
	b     byte
	class *[32]byte // bit set of accepted bytes, tokClass
}

type tokenKind uint8

const (
	tokByte tokenKind = iota
	tokAny
	tokClass
	tokStar
)

// maxTokens bounds a pattern so that a set of positions fits one word.
const maxTokens = 63

// CompilePattern compiles text. It fails on patterns of more than 63 elements.
func CompilePattern(text string) (Pattern, error) {
	p := Pattern{text: text}
	var lit strings.Builder
	isLit := true
	for i := 0; i < len(text); {
		switch c := text[i]; c {
		case '*':
			isLit = false
			if n := len(p.toks); n == 0 || p.toks[n-1].kind != tokStar {
				p.toks = append(p.toks, token{kind: tokStar})
			}
			i++
		case '?':
			isLit = false
			p.toks = append(p.toks, token{kind: tokAny})
			i++
		case '[':
			class, n := GlobClass(text[i:])
			if n == 0 { // never closes: literal
				lit.WriteByte(c)
				p.toks = append(p.toks, token{kind: tokByte, b: c})
				i++
				break
			}
			isLit = false
			p.toks = append(p.toks, token{kind: tokClass, class: class})
			i += n
		case '\\':
			if i++; i == len(text) {
				break // the kernel then compares the terminating NUL: the end
			}
			c = text[i]
			lit.WriteByte(c)
			p.toks = append(p.toks, token{kind: tokByte, b: c})
			i++
		default:
			lit.WriteByte(c)
			p.toks = append(p.toks, token{kind: tokByte, b: c})
			i++
		}
	}
	if len(p.toks) > maxTokens {
		return Pattern{}, fmt.Errorf("pattern %q: more than %d elements", text, maxTokens)
	}
	for i, t := range p.toks {
		if t.kind == tokStar {
			p.stars |= 1 << i
		}
	}
	p.lead = p.leadText()
	p.open = !isLit && len(p.toks) == len(p.lead)+1 && p.stars != 0
	if isLit {
		p.isLit, p.literal = true, lit.String()
	}
	return p, nil
}

// GlobClass parses "[...]" at the start of s into the set of bytes it accepts,
// one bit each. n is its length, 0 when it never closes.
func GlobClass(s string) (class *[32]byte, n int) {
	i := 1
	inverted := false
	if i < len(s) && s[i] == '!' {
		inverted = true
		i++
	}
	var set [32]byte
	for first := true; ; first = false {
		if i >= len(s) {
			return nil, 0
		}
		a := s[i]
		if a == ']' && !first {
			break
		}
		i++
		b := a
		if i+1 < len(s) && s[i] == '-' && s[i+1] != ']' {
			b = s[i+1]
			i += 2
		}
		for c := int(a); c <= int(b); c++ {
			set[c>>3] |= 1 << (c & 7)
		}
	}
	if inverted {
		for j := range set {
			set[j] = ^set[j]
		}
	}
	return &set, i + 1
}

// String returns the pattern as written.
func (p Pattern) String() string { return p.text }

// Literal returns the one string a pattern without wildcards matches.
func (p Pattern) Literal() (string, bool) { return p.literal, p.isLit }

func (p Pattern) leadText() string {
	var b strings.Builder
	for _, t := range p.toks {
		if t.kind != tokByte {
			break
		}
		b.WriteByte(t.b)
	}
	return b.String()
}

// Match reports whether the pattern matches the whole of s.
func (p Pattern) Match(s string) bool {
	switch {
	case p.isLit:
		return p.literal == s
	case !strings.HasPrefix(s, p.lead):
		return false
	case p.open:
		return true
	}
	return p.accepts(p.run(p.start(), s))
}

// positions is a set of token indices that may come next; bit len(toks) means
// that the pattern is used up.
type positions uint64

func (p Pattern) start() positions { return p.skipStars(1) }

// skipStars adds the positions reached by letting stars match nothing.
func (p Pattern) skipStars(at positions) positions { return at | (at&p.stars)<<1 }

func (p Pattern) step(at positions, c byte) positions {
	var next positions
	for rest := at; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(uint64(rest))
		if i == len(p.toks) {
			break
		}
		switch t := &p.toks[i]; t.kind {
		case tokByte:
			if t.b == c {
				next |= 1 << (i + 1)
			}
		case tokAny:
			next |= 1 << (i + 1)
		case tokClass:
			if t.class[c>>3]&(1<<(c&7)) != 0 {
				next |= 1 << (i + 1)
			}
		case tokStar:
			next |= 1 << i
		}
	}
	return p.skipStars(next)
}

// stepAny is step over any byte at all.
func (p Pattern) stepAny(at positions) positions {
	var next positions
	for i, t := range p.toks {
		if at&(1<<i) == 0 {
			continue
		}
		if t.kind == tokStar {
			next |= 1 << i
		} else {
			next |= 1 << (i + 1)
		}
	}
	return p.skipStars(next)
}

func (p Pattern) run(at positions, s string) positions {
	for i := 0; i < len(s) && at != 0; i++ {
		at = p.step(at, s[i])
	}
	return at
}

func (p Pattern) accepts(at positions) bool { return at&(1<<len(p.toks)) != 0 }

// matchPrefix answers for a string known only by its first bytes; more may
// follow. True where the pattern ends in `*` and the bytes satisfy it already,
// so that whatever follows cannot matter.
func (p Pattern) matchPrefix(prefix string) Truth {
	at := p.run(p.start(), prefix)
	switch n := len(p.toks); {
	case at == 0:
		return False
	case n > 0 && p.toks[n-1].kind == tokStar && at&(1<<(n-1)) != 0:
		return True
	}
	return Unknown
}

// goesOn reports whether a longer string that begins with text and n blanks
// can match. One blank may fall to a star; more are taken for padding unless
// the pattern itself has them.
func (p Pattern) goesOn(text string, n int) bool {
	at := p.run(p.start(), text)
	for range n {
		if n > 1 {
			for i, t := range p.toks {
				if t.kind == tokStar {
					at &^= 1 << i
				}
			}
		}
		at = p.step(at, ' ')
	}
	return at != 0
}

// matchTail answers for a string of which the last bytes are known and lead
// unknown bytes come before them.
func (p Pattern) matchTail(lead int, tail string) Truth {
	at := p.start()
	for range lead {
		at = p.stepAny(at)
	}
	if !p.accepts(p.run(at, tail)) {
		return False
	}
	if len(p.toks) == 1 && p.toks[0].kind == tokStar {
		return True
	}
	return Unknown
}

// Overlaps reports whether some string satisfies both patterns. Of two that
// are too involved to tell it says true.
func (p Pattern) Overlaps(q Pattern) bool {
	for i := range min(len(p.toks), len(q.toks)) {
		a, b := p.toks[i], q.toks[i]
		if a.kind != tokByte || b.kind != tokByte {
			break
		}
		if a.b != b.b { // most pairs of a table end here
			return false
		}
	}
	found := false
	whole := p.walk(q, func(pEnd, qEnd bool) bool {
		found = pEnd && qEnd
		return !found
	})
	return found || !whole
}

// Covers reports whether p matches every string that q matches. Of two that
// are too involved to tell it says false.
func (p Pattern) Covers(q Pattern) bool {
	covers := true
	whole := p.walk(q, func(pEnd, qEnd bool) bool {
		covers = pEnd || !qEnd
		return covers
	})
	return covers && whole
}

// maxPairs bounds walk; the patterns of real tables need a few hundred.
const maxPairs = 20_000

// walk visits what strings that lead somewhere in q lead to in both patterns,
// each pair of position sets once, until visit returns false; whole is false
// where there are too many.
func (p Pattern) walk(q Pattern, visit func(pEnd, qEnd bool) bool) (whole bool) {
	type pair struct{ p, q positions }
	// Bytes that neither pattern tells apart need one of them only.
	var bytes []byte
	other := false
	for b := range 256 {
		named := false
		for _, t := range append(p.toks[:len(p.toks):len(p.toks)], q.toks...) {
			named = named || t.kind == tokByte && t.b == byte(b) || t.kind == tokClass && t.class[b>>3]&(1<<(b&7)) != 0
		}
		if named || !other {
			bytes = append(bytes, byte(b))
			other = other || !named
		}
	}
	start := pair{p.start(), q.start()}
	seen := map[pair]bool{start: true}
	todo := []pair{start}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !visit(p.accepts(at.p), q.accepts(at.q)) {
			return true
		}
		if len(seen) > maxPairs {
			return false
		}
		for _, b := range bytes {
			next := pair{p.step(at.p, b), q.step(at.q, b)}
			if next.q != 0 && !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return true
}
