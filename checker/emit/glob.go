package emit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// token is one element of a pattern: a byte, any byte, a class or any run.
type token struct {
	kind  tokenKind
	b     byte
	class string // "[abc]" as every consumer reads it, tokClass
}

type tokenKind uint8

const (
	tokByte tokenKind = iota
	tokAny
	tokClass
	tokStar
)

// glob is a pattern every consumer can read: specials of any of them have
// become `?`. lost counts these.
type glob struct {
	toks []token
	lost int
}

// plain are the bytes besides letters and digits that mean nothing to any
// consumer between double quotes.
const plain = " ._:/+=@#()-"

func alnum(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isPlain(c byte) bool { return alnum(c) || strings.IndexByte(plain, c) >= 0 }

func (g *glob) literal(c byte) {
	if isPlain(c) {
		g.toks = append(g.toks, token{kind: tokByte, b: c})
		return
	}
	g.toks = append(g.toks, token{kind: tokAny})
	g.lost++
}

// literalGlob is the pattern of one string, in which nothing is a wildcard.
func literalGlob(s string) glob {
	var g glob
	for _, c := range []byte(strings.Trim(s, " \x00")) {
		g.literal(c)
	}
	return g
}

// parseGlob reads a pattern of an entry (quirks.Pattern).
func parseGlob(text string) glob {
	var g glob
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			if n := len(g.toks); n == 0 || g.toks[n-1].kind != tokStar {
				g.toks = append(g.toks, token{kind: tokStar})
			}
		case '?':
			g.toks = append(g.toks, token{kind: tokAny})
		case '[':
			set, n := quirks.GlobClass(text[i:])
			if n == 0 { // never closes: a literal
				g.literal(c)
				break
			}
			if class := classText(set); class != "" {
				g.toks = append(g.toks, token{kind: tokClass, class: class})
			} else {
				g.toks = append(g.toks, token{kind: tokAny})
				g.lost++
			}
			i += n - 1
		case '\\':
			if i++; i < len(text) {
				g.literal(text[i])
			}
		default:
			g.literal(c)
		}
	}
	return g.trim()
}

// classText writes a class of letters and digits, or all but some of these;
// "" where it has others.
func classText(class *[32]byte) string {
	set := func(c int) bool { return class[c>>3]&(1<<(c&7)) != 0 }
	in, out := "", ""
	for c := range 256 {
		switch {
		case !alnum(byte(c)):
		case set(c):
			in += string(byte(c))
		default:
			out += string(byte(c))
		}
	}
	others := 0
	for c := range 256 {
		if set(c) && !alnum(byte(c)) {
			others++
		}
	}
	switch {
	case others == 0 && in != "":
		return "[" + in + "]"
	case others == 256-62 && out != "":
		return "[!" + out + "]"
	}
	return ""
}

// trim takes blanks off both ends: every consumer sees names without them.
func (g glob) trim() glob {
	blank := func(t token) bool { return t.kind == tokByte && t.b == ' ' }
	for len(g.toks) > 0 && blank(g.toks[len(g.toks)-1]) {
		g.toks = g.toks[:len(g.toks)-1]
	}
	for len(g.toks) > 0 && blank(g.toks[0]) {
		g.toks = g.toks[1:]
	}
	return g
}

// any reports whether the pattern asks nothing.
func (g glob) any() bool { return len(g.toks) == 1 && g.toks[0].kind == tokStar }

// fixed reports whether all matches have one length.
func (g glob) fixed() bool {
	for _, t := range g.toks {
		if t.kind == tokStar {
			return false
		}
	}
	return true
}

// check refuses a pattern that has lost what made it specific. atLeast is how
// many letters and digits must be left where some character was lost.
func (g glob) check(what string, atLeast int) error {
	if g.any() {
		return nil
	}
	n := 0
	for _, t := range g.toks {
		if t.kind == tokByte && alnum(t.b) {
			n++
		}
	}
	if n == 0 || g.lost > 0 && n < atLeast {
		return fmt.Errorf("%s: nothing specific is left of it once special characters are taken out", what)
	}
	return nil
}

// text writes the pattern for udev, where it stands between double quotes.
func (g glob) text() string {
	var b strings.Builder
	for _, t := range g.toks {
		switch t.kind {
		case tokByte:
			b.WriteByte(t.b)
		case tokAny:
			b.WriteByte('?')
		case tokStar:
			b.WriteByte('*')
		case tokClass:
			b.WriteString(t.class)
		}
	}
	return b.String()
}

// env writes the pattern as udev's helpers write names into properties: each
// run of blanks is one `_`, and so is each character that is not a letter, a
// digit or one of #+-.:=@_ (systemd, udev-util.c).
func (g glob) env() string {
	var b strings.Builder
	blank := false
	for _, t := range g.toks {
		was := blank
		blank = t.kind == tokByte && t.b == ' '
		switch {
		case blank && was:
		case t.kind == tokByte && (alnum(t.b) || strings.IndexByte("#+-.:=@_", t.b) >= 0):
			b.WriteByte(t.b)
		case t.kind == tokByte:
			b.WriteByte('_')
		default:
			b.WriteString(glob{toks: []token{t}}.text())
		}
	}
	return b.String()
}

// ere writes the pattern as an anchored POSIX extended regular expression.
func ere(globs []glob) string {
	alts := make([]string, len(globs))
	for i, g := range globs {
		var b strings.Builder
		for _, t := range g.toks {
			switch {
			case t.kind == tokAny:
				b.WriteByte('.')
			case t.kind == tokStar:
				b.WriteString(".*")
			case t.kind == tokClass:
				b.WriteString(strings.Replace(t.class, "[!", "[^", 1))
			case strings.IndexByte(".+()", t.b) >= 0:
				b.WriteString("[" + string(t.b) + "]")
			default:
				b.WriteByte(t.b)
			}
		}
		alts[i] = b.String()
	}
	if len(alts) == 1 {
		return "^" + alts[0] + "$"
	}
	return "^(" + strings.Join(alts, "|") + ")$"
}

// modelView is what SCSI shows of an ATA model, its first 16 characters, and
// whether the pattern is about more than that. A product of 16 characters may
// be cut or not, so a pattern that can match one is about more.
func modelView(g glob) (view glob, cut bool) {
	const seen = 16
	for i, t := range g.toks {
		if t.kind != tokStar {
			continue
		}
		if i > seen {
			break
		}
		view = glob{toks: append(g.toks[:i:i], token{kind: tokStar}), lost: g.lost}
		return view, i < len(g.toks)-1 // what follows the star may lie past the cut
	}
	if len(g.toks) < seen {
		return g, false
	}
	return glob{toks: g.toks[:seen:seen], lost: g.lost}.trim(), true
}

// firmwareView is what SCSI shows of an ATA firmware revision of 8 characters:
// its last 4, or its first 4 where those are blank.
func firmwareView(g glob) (view glob, cut bool) {
	switch {
	case !g.fixed():
		return glob{toks: []token{{kind: tokStar}}}, !g.any()
	case len(g.toks) <= 4:
		return g, false
	}
	return glob{toks: g.toks[4:], lost: g.lost}.trim(), true
}

// greater is a udev pattern that matches exactly the decimal numbers above n,
// as sysfs writes them: without a sign or leading zeros.
func greater(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var alts []string
	for i := len(s) - 1; i >= 0; i-- {
		rest := strings.Repeat("[0-9]", len(s)-1-i)
		switch c := s[i]; c {
		case '9':
		case '8':
			alts = append(alts, s[:i]+"9"+rest)
		default:
			alts = append(alts, s[:i]+"["+string(c+1)+"-9]"+rest)
		}
	}
	alts = append(alts, "[1-9]"+strings.Repeat("[0-9]", len(s))+"*")
	return strings.Join(alts, "|")
}

// comment makes any text fit for one line of a comment in every format.
func comment(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r >= 0x20 && r < 0x7f:
			b.WriteByte(byte(r))
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return strings.TrimRight(b.String(), " \\") // a backslash at the end would join lines
}

// number is a decimal.
func number(n uint64) string { return strconv.FormatUint(n, 10) }
