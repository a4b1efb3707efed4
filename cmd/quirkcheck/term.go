package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes a string from outside fit for a terminal: control characters,
// invisible ones and broken UTF-8 show as escapes.
func clean(s string) string {
	plain := true
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// escapeJSON escapes what JSON may hold as it is and a terminal should not
// see: DEL, C1 controls and invisible runes. They occur in strings only.
func escapeJSON(b []byte) []byte {
	if !bytes.ContainsFunc(b, hostile) {
		return b
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case !hostile(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

func hostile(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// colorer paints words where colour is wanted.
type colorer bool

func (c colorer) red(s string) string    { return c.paint("31;1", s) }
func (c colorer) yellow(s string) string { return c.paint("33", s) }

func (c colorer) paint(code, s string) string {
	if !c {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// color is on only where stdout is a terminal and NO_COLOR is not set.
func (a *app) color() colorer {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return colorer(isTerminal(a.stdout))
}
