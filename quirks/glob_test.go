package quirks

import (
	"slices"
	"strings"
	"testing"
)

func compile(t testing.TB, text string) Pattern {
	t.Helper()
	p, err := CompilePattern(text)
	if err != nil {
		t.Fatalf("CompilePattern(%q): %v", text, err)
	}
	return p
}

func TestPatternMatch(t *testing.T) {
	for _, tt := range []struct {
		name, pattern string
		yes, no       []string
	}{
		{"a literal is anchored at both ends", "abc", []string{"abc"}, []string{"", "ab", "abcd", "xabc"}},
		{"case counts", "Abc", []string{"Abc"}, []string{"abc", "ABC"}},
		{"empty matches only empty", "", []string{""}, []string{"a", " "}},
		{"star matches any run, none too", "a*c", []string{"ac", "abc", "acbc", "a/b/c"}, []string{"a", "acb", "xac"}},
		{"star alone matches everything", "*", []string{"", "a", "a b/c"}, nil},
		{"stars in a row are one", "a***b", []string{"ab", "axb"}, []string{"a"}},
		{"star gives back what it took", "*aab", []string{"aab", "aaab", "aabaab"}, []string{"aaba", "ab"}},
		{"two stars", "*a*b", []string{"ab", "xaxb", "abab"}, []string{"ba", "aba"}},
		{"question mark is one byte, a slash and a blank too", "a?c", []string{"abc", "a/c", "a c"}, []string{"ac", "abbc"}},
		{"question mark is not the end", "abc?", []string{"abcd"}, []string{"abc"}},
		{"a byte is not a character", "?", []string{"a"}, []string{"é"}},
		{"a leading dot is nothing special", "*x", []string{".x", "/x"}, nil},
		{"class", "a[bc]d", []string{"abd", "acd"}, []string{"ad", "aad", "abcd"}},
		{"range", "[a-c]", []string{"a", "b", "c"}, []string{"", "d", "-"}},
		{"several ranges", "[a-cx-z0]", []string{"b", "y", "0"}, []string{"d", "1"}},
		{"empty range matches nothing", "[c-a]", nil, []string{"a", "b", "c", "-"}},
		{"inverted class takes one byte", "[!a-c]", []string{"d", "!", "/"}, []string{"a", "c", "", "dd"}},
		{"caret does not invert", "[^a]", []string{"^", "a"}, []string{"b"}},
		{"closing bracket first is a member", "[]a]", []string{"]", "a"}, []string{"[]a]", "b"}},
		{"closing bracket first in an inverted class", "[!]a]", []string{"b", "["}, []string{"]", "a"}},
		{"range from a closing bracket", "[]-a]", []string{"]", "^", "a"}, []string{"\\", "b"}},
		{"dash last is a member", "[a-]", []string{"a", "-"}, []string{"b"}},
		{"dash first is a member", "[-a]", []string{"-", "a"}, []string{"b"}},
		{"exclamation mark later is a member", "[a!]", []string{"a", "!"}, []string{"b"}},
		{"opening bracket is a member", "[[a]", []string{"[", "a"}, []string{"b"}},
		{"star and question mark are members", "[*?]", []string{"*", "?"}, []string{"a"}},
		{"backslash in a class is a member", `[\a]`, []string{`\`, "a"}, []string{"b"}},
		{"class that never closes is a bracket", "a[bc", []string{"a[bc"}, []string{"ab", "ac"}},
		{"empty class never closes", "[]", []string{"[]"}, []string{"]", ""}},
		{"inverted empty class never closes", "[!]", []string{"[!]"}, []string{"a"}},
		{"range cut off never closes", "[a-", []string{"[a-"}, []string{"a"}},
		{"wildcard after a bracket that never closes", "[a*", []string{"[a", "[abc"}, []string{"a"}},
		{"backslash makes the next byte literal", `a\*b\?\[c]`, []string{"a*b?[c]"}, []string{"axb?[c]"}},
		{"backslash twice", `a\\b`, []string{`a\b`}, []string{`a\\b`, "ab"}},
		{"backslash before a plain byte", `\a\b`, []string{"ab"}, []string{`\a\b`}},
		{"backslash at the end stands for the end", `ab\`, []string{"ab"}, []string{`ab\`, "abc"}},
		{"backslash at the end after a star", `a*\`, []string{"a", "abc"}, []string{"b"}},
		{"high bytes are compared unsigned", "[\x7f-\xff]", []string{"\x80", "\xff"}, []string{"a"}},
		{"libata's longest kind", "Samsung SSD 8[45]0 EVO*", []string{"Samsung SSD 850 EVO 1TB", "Samsung SSD 840 EVO"}, []string{"Samsung SSD 860 EVO", "SAMSUNG SSD 850 EVO"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, tt.pattern)
			for _, s := range tt.yes {
				if !p.Match(s) {
					t.Errorf("Pattern %q does not match %q, want a match", tt.pattern, s)
				}
				if !glob(tt.pattern, s) {
					t.Errorf("reference: %q does not match %q, want a match", tt.pattern, s)
				}
			}
			for _, s := range tt.no {
				if p.Match(s) {
					t.Errorf("Pattern %q matches %q, want no match", tt.pattern, s)
				}
				if glob(tt.pattern, s) {
					t.Errorf("reference: %q matches %q, want no match", tt.pattern, s)
				}
			}
			if p.String() != tt.pattern {
				t.Errorf("String() = %q, want %q", p.String(), tt.pattern)
			}
		})
	}
}

func TestPatternLiteral(t *testing.T) {
	for pattern, want := range map[string]string{"abc": "abc", `a\*b`: "a*b", `ab\`: "ab", "[ab": "[ab", "": ""} {
		if got, ok := compile(t, pattern).Literal(); !ok || got != want {
			t.Errorf("Literal of %q = %q, %t; want %q, true", pattern, got, ok, want)
		}
	}
	for _, pattern := range []string{"*", "a?", "[a]", "abc*"} {
		if got, ok := compile(t, pattern).Literal(); ok {
			t.Errorf("Literal of %q = %q, want none", pattern, got)
		}
	}
}

func TestPatternOfTooManyElements(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		ok      bool
	}{
		{strings.Repeat("a", maxTokens), true},
		{strings.Repeat("a", maxTokens+1), false},
		{strings.Repeat("[abc]", maxTokens), true},
		{strings.Repeat("*", 1000), true},
		{strings.Repeat("?*", 32), false},
	} {
		if _, err := CompilePattern(tt.pattern); (err == nil) != tt.ok {
			t.Errorf("CompilePattern(%.20q..., %d bytes): error %v, want ok %t", tt.pattern, len(tt.pattern), err, tt.ok)
		}
	}
	// The highest position is the sign bit of the set.
	long := strings.Repeat("a", maxTokens-1)
	if p := compile(t, long+"*"); !p.Match(long) || p.Match(long[1:]) || p.matchPrefix(long) != True {
		t.Errorf("pattern of %d elements answers wrongly", maxTokens)
	}
}

func TestMatchPrefix(t *testing.T) {
	for _, tt := range []struct {
		pattern, prefix string
		want            Truth
	}{
		{"ST380013AS", "ST38", Unknown},
		{"ST380013AS", "ST380013AS", Unknown}, // more may follow
		{"ST380013AS", "ST39", False},
		{"ST380013AS", "ST380013AS-X", False},
		{"ST38*", "ST38", True},
		{"ST38*", "ST380013AS", True},
		{"ST38*", "ST3", Unknown},
		{"ST38*AS", "ST380013AS", Unknown},
		{"ST38*AS", "ST4", False},
		{"*", "", True},
		{"*", "x", True},
		{"*EVO*", "Samsung SSD 840 ", Unknown},
		{"*EVO*", "Samsung EVO", True},
		{"", "", Unknown},
		{"", "x", False},
		{"?", "", Unknown},
		{"?", "x", Unknown},
		{"[ab]*", "a", True},
		{"[ab]*", "c", False},
	} {
		if got := compile(t, tt.pattern).matchPrefix(tt.prefix); got != tt.want {
			t.Errorf("Pattern %q, prefix %q: got %v, want %v", tt.pattern, tt.prefix, got, tt.want)
		}
	}
}

func TestMatchTail(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		lead    int
		tail    string
		want    Truth
	}{
		{"MV.R00-0", 4, "00-0", Unknown},
		{"MV.R00-0", 4, "00-1", False},
		{"MV.R00-0", 3, "00-0", False},
		{"00-0", 4, "00-0", False}, // eight characters are not four
		{"*", 4, "00-0", True},
		{"*", 0, "", True},
		{"*0", 4, "00-0", Unknown},
		{"*1", 4, "00-0", False},
		{"XC*", 4, "DL6R", Unknown},
		{"????DL6R", 4, "DL6R", Unknown},
		{"???DL6R", 4, "DL6R", False},
		{"", 0, "", Unknown},
		{"", 1, "", False},
		{"[ab]c", 1, "c", Unknown},
	} {
		if got := compile(t, tt.pattern).matchTail(tt.lead, tt.tail); got != tt.want {
			t.Errorf("Pattern %q, %d bytes and %q: got %v, want %v", tt.pattern, tt.lead, tt.tail, got, tt.want)
		}
	}
}

// glob is the reference: the rules of glob(7) as lib/glob.c states them, by
// plain recursion. It shares nothing with Pattern.
func glob(pattern, s string) bool {
	if pattern == "" {
		return s == ""
	}
	head, rest := pattern[0], pattern[1:]
	one := func(ok func(byte) bool) bool { return s != "" && ok(s[0]) && glob(rest, s[1:]) }
	switch head {
	case '*':
		return glob(rest, s) || s != "" && glob(pattern, s[1:])
	case '?':
		return one(func(byte) bool { return true })
	case '\\':
		if rest == "" {
			return s == ""
		}
		head, rest = rest[0], rest[1:]
	case '[':
		body, after, ok := class(rest)
		if !ok {
			break
		}
		rest = after
		return one(func(c byte) bool {
			b, not := strings.CutPrefix(body, "!")
			return classHas(b, c) != not
		})
	}
	return one(func(c byte) bool { return c == head })
}

// class cuts "ab-c]rest" into the members and the rest; a bracket closes
// unless it comes first or ends a range.
func class(s string) (body, rest string, ok bool) {
	i := 0
	if strings.HasPrefix(s, "!") {
		i = 1
	}
	for n := 0; i < len(s); n++ {
		if s[i] == ']' && n > 0 {
			return s[:i], s[i+1:], true
		}
		if i+2 < len(s) && s[i+1] == '-' && s[i+2] != ']' {
			i += 2
		}
		i++
	}
	return "", "", false
}

func classHas(body string, c byte) bool {
	for body != "" {
		lo, hi := body[0], body[0]
		if len(body) >= 3 && body[1] == '-' {
			hi = body[2]
			body = body[2:]
		}
		body = body[1:]
		if lo <= c && c <= hi {
			return true
		}
	}
	return false
}

// extensions are all strings over a small alphabet of up to n bytes.
func extensions(alphabet string, n int) []string {
	all := []string{""}
	for last := all; n > 0; n-- {
		var next []string
		for _, s := range last {
			for _, c := range []byte(alphabet) {
				next = append(next, s+string([]byte{c}))
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

var (
	shortExtensions = extensions("ab]-", 3)
	twoBytes        = slices.DeleteFunc(extensions("ab]-", 2), func(s string) bool { return len(s) != 2 })
)

// checkPattern holds a pattern against the reference: on the string, on the
// string as the beginning of a longer one, and as the end of one.
func checkPattern(t *testing.T, pattern, s string) {
	p, err := CompilePattern(pattern)
	if err != nil {
		return
	}
	if got, want := p.Match(s), glob(pattern, s); got != want {
		t.Errorf("Pattern %q on %q: got %t, reference %t", pattern, s, got, want)
	}
	if lit, ok := p.Literal(); ok && (!glob(pattern, lit) || glob(pattern, lit+"x")) {
		t.Errorf("Pattern %q: literal %q is not what the reference matches", pattern, lit)
	}
	agree := func(what string, got Truth, candidates func(yield func(string) bool)) {
		some, all := false, true
		for c := range candidates {
			if glob(pattern, c) {
				some = true
			} else {
				all = false
			}
		}
		// True must hold for all, False for none; unknown is always sound.
		if got == True && !all || got == False && some {
			t.Errorf("Pattern %q, %s %q: got %v, but brute force matches some %t, all %t", pattern, what, s, got, some, all)
		}
		// And unknown is not said where a pattern without classes decides.
		if got == Unknown && what == "tail" && !some && !strings.ContainsAny(pattern, `[?\`) && onlyOf(pattern, "ab]-*") {
			t.Errorf("Pattern %q, tail %q: got unknown, but nothing matches", pattern, s)
		}
	}
	agree("prefix", p.matchPrefix(s), func(yield func(string) bool) {
		for _, x := range shortExtensions {
			if !yield(s + x) {
				return
			}
		}
	})
	agree("tail", p.matchTail(2, s), func(yield func(string) bool) {
		for _, x := range twoBytes {
			if !yield(x + s) {
				return
			}
		}
	})
}

func onlyOf(s, set string) bool { return strings.Trim(s, set) == "" }

func TestPatternAgainstReference(t *testing.T) {
	// Every pattern of up to four bytes over the bytes that mean something,
	// on strings of up to three.
	strs := extensions("a]-", 2)
	for _, pattern := range extensions(`a*?[]!-\`, 4) {
		p := compile(t, pattern)
		for _, s := range strs {
			if got, want := p.Match(s), glob(pattern, s); got != want {
				t.Fatalf("Pattern %q on %q: got %t, reference %t", pattern, s, got, want)
			}
		}
	}
	for _, pattern := range extensions("ab*?", 3) {
		for _, s := range extensions("ab", 2) {
			checkPattern(t, pattern, s)
		}
	}
}

func FuzzPattern(f *testing.F) {
	f.Add("Samsung SSD 8[45]0*", "Samsung SSD 850 EVO")
	f.Add("[]-a]*[!a-c]?", "]xd")
	f.Add(`a[b\`, `a[b`)
	f.Add("*a*ab", "aaab")
	f.Add("a[!b", "a[!b")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		// The reference takes exponential time on many stars.
		if len(pattern) > 24 || len(s) > 24 || strings.Count(pattern, "*") > 4 {
			return
		}
		checkPattern(t, pattern, s)
	})
}

func TestOverlapsAndCovers(t *testing.T) {
	for _, c := range []struct {
		p, q             string
		overlaps, covers bool // covers: p covers q
	}{
		{"A", "A", true, true},
		{"A", "B", false, false},
		{"*", "A*B", true, true},
		{"A*", "*A", true, false},
		{"Samsung SSD 840*", "Samsung SSD 840 EVO*", true, true},
		{"Samsung SSD 840 EVO*", "Samsung SSD 840*", true, false},
		{"INTEL*SSD*", "INTEL*SSDSC2CT*", true, true},
		{"INTEL*SSD*", "SSD*INTEL*", false, false},
		{"CT*0BX*00SSD1", "CT500BX100SSD1", true, true},
		{"Micron_M5[15]0_*", "Micron_M500_*", false, false},
		{"ST[1248]0[!F]", "ST10G", true, true},
		{"ST[1248]0[!F]", "ST10F", false, false},
		{"A?C", "ABC", true, true},
		{"AB", "A?", true, false},
		{"", "*", true, false},
		{"*", "", true, true},
		{"A**B", "A*B", true, true},
	} {
		p, errP := CompilePattern(c.p)
		q, errQ := CompilePattern(c.q)
		if errP != nil || errQ != nil {
			t.Fatal(errP, errQ)
		}
		if got := p.Overlaps(q); got != c.overlaps {
			t.Errorf("%q overlaps %q: %v, want %v", c.p, c.q, got, c.overlaps)
		}
		if got := q.Overlaps(p); got != c.overlaps {
			t.Errorf("%q overlaps %q: %v, want %v", c.q, c.p, got, c.overlaps)
		}
		if got := p.Covers(q); got != c.covers {
			t.Errorf("%q covers %q: %v, want %v", c.p, c.q, got, c.covers)
		}
	}
	// Too involved to tell: bounded in time, and on the cautious side.
	p, _ := CompilePattern("*a??????????????????????????")
	q, _ := CompilePattern("*b??????????????????????????c*")
	if !p.Overlaps(q) || p.Covers(q) {
		t.Error("patterns too involved: want overlap and no cover")
	}
}
