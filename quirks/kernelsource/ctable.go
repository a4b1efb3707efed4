package kernelsource

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds on hostile input: the largest file read here has 7,000 lines.
const (
	maxSource = 8 << 20
	maxTokens = 2 << 20
	maxDepth  = 32
	maxExpand = 64 // macros in one cell

	maxMacro    = 512 // tokens of a macro with arguments
	maxIncludes = 256
)

type kind uint8

const (
	tokIdent kind = iota
	tokNumber
	tokString
	tokPunct
)

// token is one token of C. text of a string is decoded, and may hold any byte.
type token struct {
	kind kind
	text string
	line int
	bol  bool   // in the first column
	cond string // the #if around it, "" for none
}

// source is a C file as tokens, with its object-like macros. It is not a
// preprocessor: both branches of an #if stay, and each token says under what
// condition it stands. Only #if 0 is left out.
type source struct {
	toks     []token
	defines  map[string][]token
	macros   map[string][]token // bodies of macros with arguments
	twice    map[string]bool    // defined again, otherwise: which one counts hangs on the build
	includes []string           // as written, with their quotes or angles
}

var errTooLong = errors.New("longer than a kernel source file")

// scanC splits a C file into tokens.
func scanC(text string) (*source, error) {
	if len(text) > maxSource {
		return nil, errTooLong
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	s := &source{defines: map[string][]token{}, macros: map[string][]token{}, twice: map[string]bool{}}
	var conds condStack
	line, n := 1, 0
	atStart := true // nothing but blanks on the line so far
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '\n':
			line++
			i++
			atStart = true
			continue
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			i++
			continue
		case c == '\\' && i+1 < len(text) && text[i+1] == '\n':
			line++
			i += 2
			continue
		case strings.HasPrefix(text[i:], "//"), strings.HasPrefix(text[i:], "/*"):
			j := skipComment(text, i)
			line += strings.Count(text[i:j], "\n")
			i = j
			continue
		case c == '#' && atStart:
			body, j := directive(text, i)
			if err := conds.apply(body, s, line); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			line += strings.Count(text[i:j], "\n")
			i = j
			continue
		}
		atStart = false
		t, j, err := scanToken(text, i)
		if err != nil && conds.dead() { // prose, with an apostrophe
			i++
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		t.line, t.bol = line, i == 0 || text[i-1] == '\n'
		line += strings.Count(text[i:j], "\n")
		i = j
		if n++; n > maxTokens {
			return nil, errTooLong
		}
		if conds.dead() {
			continue
		}
		t.cond = conds.text
		s.toks = append(s.toks, t)
	}
	return s, nil
}

// skipComment returns the place behind a comment; one that never ends takes
// the rest.
func skipComment(text string, i int) int {
	end, n := "*/", 2
	if text[i+1] == '/' {
		end, n = "\n", 0
	}
	k := strings.Index(text[i+2:], end)
	if k < 0 {
		return len(text)
	}
	return i + 2 + k + n
}

// directive returns a preprocessor line without its comments, continued lines
// joined, and the place of the line end.
func directive(text string, i int) (body string, end int) {
	var b strings.Builder
	for i++; i < len(text) && text[i] != '\n'; {
		switch {
		case strings.HasPrefix(text[i:], "\\\n"):
			b.WriteByte(' ')
			i += 2
		case strings.HasPrefix(text[i:], "/*"), strings.HasPrefix(text[i:], "//"):
			b.WriteByte(' ')
			i = skipComment(text, i)
		default:
			b.WriteByte(text[i])
			i++
		}
	}
	return strings.Join(strings.Fields(b.String()), " "), i
}

// condStack is the #if lines around a place.
type condStack struct {
	conds []string
	text  string
}

func (c *condStack) dead() bool {
	for _, s := range c.conds {
		if s == "0" {
			return true
		}
	}
	return false
}

func (c *condStack) apply(body string, s *source, line int) error {
	word, rest, _ := strings.Cut(body, " ")
	if w, ok := strings.CutPrefix(word, "if("); ok { // #if(X)
		word, rest = "if", "("+w+" "+rest
	}
	top := len(c.conds) - 1
	switch word {
	case "if", "ifdef", "ifndef":
		if len(c.conds) >= maxDepth {
			return fmt.Errorf("#%s nested more than %d deep", word, maxDepth)
		}
		c.conds = append(c.conds, map[string]string{"if": "", "ifdef": "defined ", "ifndef": "not defined "}[word]+rest)
	case "elif", "else":
		if top < 0 {
			return fmt.Errorf("#%s without #if", word)
		}
		switch {
		case word == "elif":
			c.conds[top] = rest
		case c.conds[top] == "0":
			c.conds[top] = "1"
		case c.conds[top] == "1":
			c.conds[top] = "0"
		default:
			c.conds[top] = "not (" + c.conds[top] + ")"
		}
	case "endif":
		if top < 0 {
			return errors.New("#endif without #if")
		}
		c.conds = c.conds[:top]
	case "define":
		if !c.dead() {
			s.define(rest, line)
		}
	case "include":
		if !c.dead() && len(s.includes) < maxIncludes {
			s.includes = append(s.includes, rest)
		}
	}
	var parts []string
	for _, p := range c.conds {
		if p != "1" {
			parts = append(parts, p)
		}
	}
	c.text = strings.Join(parts, " and ")
	if len(c.text) > 4096 {
		return errors.New("condition of #if lines too long")
	}
	return nil
}

// define keeps an object-like macro, and the body of one with arguments: the
// reader of a table knows what to make of it.
func (s *source) define(rest string, line int) {
	n := 0
	for n < len(rest) && isIdent(rest[n]) {
		n++
	}
	name, body := rest[:n], rest[n:]
	if name == "" {
		return
	}
	into, most := s.defines, maxExpand
	if strings.HasPrefix(body, "(") {
		_, after, ok := strings.Cut(body, ")")
		if !ok {
			return
		}
		into, most, body = s.macros, maxMacro, after
	}
	var toks []token
	for i := 0; i < len(body); {
		if body[i] == ' ' {
			i++
			continue
		}
		t, j, err := scanToken(body, i)
		if err != nil || len(toks) >= most {
			s.twice[name] = true // not kept, so no other body is the only one
			return
		}
		t.line = line
		toks = append(toks, t)
		i = j
	}
	if old, ok := into[name]; ok && !sameText(old, toks) {
		s.twice[name] = true
	}
	into[name] = toks
}

func sameText(a, b []token) bool {
	return slices.EqualFunc(a, b, func(x, y token) bool { return x.kind == y.kind && x.text == y.text })
}

func isIdent(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func scanToken(text string, i int) (token, int, error) {
	switch c := text[i]; {
	case c == '"':
		s, j, err := scanString(text, i)
		return token{kind: tokString, text: s}, j, err
	case c == '\'':
		j := i + 1
		for j < len(text) && text[j] != '\'' && text[j] != '\n' {
			if text[j] == '\\' {
				j++
			}
			j++
		}
		if j >= len(text) || text[j] != '\'' {
			return token{}, 0, errors.New("character that never closes")
		}
		return token{kind: tokPunct, text: text[i : j+1]}, j + 1, nil
	case isIdent(c):
		j := i
		for j < len(text) && isIdent(text[j]) {
			j++
		}
		t := token{kind: tokIdent, text: text[i:j]}
		if c >= '0' && c <= '9' {
			t.kind = tokNumber
		}
		return t, j, nil
	}
	for _, two := range []string{"<<", ">>"} {
		if strings.HasPrefix(text[i:], two) {
			return token{kind: tokPunct, text: two}, i + 2, nil
		}
	}
	return token{kind: tokPunct, text: text[i : i+1]}, i + 1, nil
}

// scanString decodes a string literal as C does.
func scanString(text string, i int) (string, int, error) {
	var b strings.Builder
	for i++; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return b.String(), i + 1, nil
		case '\n':
			return "", 0, errors.New("string that never closes")
		case '\\':
			if i++; i == len(text) {
				return "", 0, errors.New("string that never closes")
			}
			n, err := escape(&b, text[i:])
			if err != nil {
				return "", 0, err
			}
			i += n - 1
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, errors.New("string that never closes")
}

// escape decodes what follows a backslash and says how long it is.
func escape(b *strings.Builder, s string) (int, error) {
	if i := strings.IndexByte("abfnrtv", s[0]); i >= 0 {
		b.WriteByte("\a\b\f\n\r\t\v"[i])
		return 1, nil
	}
	switch c := s[0]; {
	case c == '\n': // the string goes on in the next line
		return 1, nil
	case c >= '0' && c <= '7':
		n := 1
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		v, err := strconv.ParseUint(s[:n], 8, 8)
		if err != nil {
			return 0, fmt.Errorf("escape \\%s", s[:n])
		}
		b.WriteByte(byte(v))
		return n, nil
	case c == 'x':
		n := 1
		for n < len(s) && n < 9 && strings.IndexByte("0123456789abcdefABCDEF", s[n]) >= 0 {
			n++
		}
		v, err := strconv.ParseUint(s[1:n], 16, 8)
		if err != nil {
			return 0, fmt.Errorf("escape \\%s", s[:n])
		}
		b.WriteByte(byte(v))
		return n, nil
	default:
		b.WriteByte(c)
		return 1, nil
	}
}

// cell is one element of an initialiser: tokens, or a list in braces.
type cell struct {
	field string // of .field = value, "" where the place says it
	toks  []token
	list  []cell
	brace bool
	line  int
	cond  string
}

// table returns the elements of the array NAME that has an initialiser.
// found is false where there is none.
func (s *source) table(name string) (rows []cell, found bool, err error) {
	for i := 0; i+1 < len(s.toks); i++ {
		if s.toks[i].kind != tokIdent || s.toks[i].text != name || s.toks[i+1].text != "[" {
			continue
		}
		j := i + 1
		for j < len(s.toks) && s.toks[j].text != "=" && s.toks[j].text != ";" && s.toks[j].text != "{" && s.toks[j].text != "(" {
			j++
		}
		if j+1 >= len(s.toks) || s.toks[j].text != "=" || s.toks[j].kind != tokPunct || s.toks[j+1].text != "{" || s.toks[j+1].kind != tokPunct {
			continue
		}
		c, _, err := s.braces(j+1, 0)
		return c.list, true, err
	}
	return nil, false, nil
}

// braces reads a list in braces that opens at toks[i].
func (s *source) braces(i, depth int) (cell, int, error) {
	out := cell{brace: true, line: s.toks[i].line, cond: s.toks[i].cond}
	if depth >= maxDepth {
		return out, 0, fmt.Errorf("line %d: braces nested more than %d deep", out.line, maxDepth)
	}
	i++
	for i < len(s.toks) {
		if s.toks[i].kind == tokPunct && s.toks[i].text == "}" {
			return out, i + 1, nil
		}
		c, next, err := s.element(i, depth+1)
		if err != nil {
			return out, 0, err
		}
		if c.brace || len(c.toks) > 0 {
			out.list = append(out.list, c)
		}
		i = next
		if i < len(s.toks) && s.toks[i].kind == tokPunct && s.toks[i].text == "," {
			i++
		}
	}
	return out, 0, fmt.Errorf("line %d: brace that never closes", out.line)
}

// element reads up to the next comma or closing brace of its own level.
func (s *source) element(i, depth int) (cell, int, error) {
	c := cell{line: s.toks[i].line, cond: s.toks[i].cond}
	if i+2 < len(s.toks) && s.toks[i].text == "." && s.toks[i].kind == tokPunct && s.toks[i+1].kind == tokIdent && s.toks[i+2].text == "=" {
		c.field = s.toks[i+1].text
		i += 3
	}
	if i < len(s.toks) && s.toks[i].kind == tokPunct && s.toks[i].text == "{" {
		b, next, err := s.braces(i, depth)
		b.field = c.field
		return b, next, err
	}
	parens := 0
	for ; i < len(s.toks); i++ {
		t := s.toks[i]
		if t.kind == tokPunct {
			switch t.text {
			case "(":
				parens++
			case ")":
				parens--
			case ",", "}":
				if parens <= 0 || t.text == "}" {
					return c, i, nil
				}
			case "{":
				return c, 0, fmt.Errorf("line %d: brace inside an expression", t.line)
			}
		}
		c.toks = append(c.toks, t)
	}
	return c, i, nil
}

// call is a macro with its arguments, NAME(a, b, ...).
type call struct {
	name string
	args []cell
	line int
	cond string
}

// calls returns the uses of the named macros at the top level of the file.
func (s *source) calls(names ...string) ([]call, error) {
	var out []call
	depth := 0
	for i := 0; i < len(s.toks); i++ {
		t := s.toks[i]
		if t.kind == tokPunct {
			switch t.text {
			case "{":
				depth++
			case "}":
				depth--
			}
			continue
		}
		if depth > 0 || t.kind != tokIdent || i+1 >= len(s.toks) || s.toks[i+1].text != "(" {
			continue
		}
		for _, name := range names {
			if t.text != name {
				continue
			}
			args, next, err := s.args(i + 1)
			if err != nil {
				return out, err
			}
			out = append(out, call{name, args, t.line, t.cond})
			i = next - 1
			break
		}
	}
	return out, nil
}

// args reads (a, b, ...) from toks[i], the opening parenthesis.
func (s *source) args(i int) ([]cell, int, error) {
	return splitArgs(s.toks, i)
}

func splitArgs(toks []token, i int) ([]cell, int, error) {
	open := toks[i].line
	var args []cell
	c := cell{line: open}
	parens := 0
	for i++; i < len(toks); i++ {
		t := toks[i]
		if t.kind == tokPunct {
			switch {
			case t.text == "(":
				parens++
			case t.text == ")" && parens == 0:
				return append(args, c), i + 1, nil
			case t.text == ")":
				parens--
			case t.text == "," && parens == 0:
				args = append(args, c)
				c = cell{line: t.line}
				continue
			}
		}
		c.toks = append(c.toks, t)
	}
	return nil, 0, fmt.Errorf("line %d: parenthesis that never closes", open)
}

// expand replaces object-like macros of the file.
func (s *source) expand(toks []token) ([]token, error) {
	for round := 0; ; round++ {
		var out []token
		changed := false
		for _, t := range toks {
			body, ok := s.defines[t.text]
			if t.kind != tokIdent || !ok || len(body) == 1 && body[0].text == t.text {
				out = append(out, t)
				continue
			}
			out = append(out, body...)
			changed = true
			if len(out) > 1024 {
				return nil, fmt.Errorf("macro %s expands without end", t.text)
			}
		}
		if !changed {
			return out, nil
		}
		if round >= maxExpand {
			return nil, errors.New("macros that expand without end")
		}
		toks = out
	}
}

// text reads a cell that holds a string, in one piece or several, or NULL.
func (s *source) text(c cell) (text string, ok bool, err error) {
	toks, err := s.expand(c.toks)
	if err != nil {
		return "", false, err
	}
	if len(toks) == 1 && (toks[0].text == "NULL" && toks[0].kind == tokIdent || toks[0].text == "0" && toks[0].kind == tokNumber) {
		return "", false, nil
	}
	if len(toks) == 0 {
		return "", false, errors.New("an empty cell where a string belongs")
	}
	var b strings.Builder
	for _, t := range toks {
		if t.kind != tokString {
			return "", false, fmt.Errorf("%q where a string belongs", t.text)
		}
		b.WriteString(t.text)
	}
	if b.Len() > 256 {
		return "", false, fmt.Errorf("a string of %d characters", b.Len())
	}
	return b.String(), true, nil
}

// flags reads A | B | C, in the order of the source; 0 is none.
func (s *source) flags(c cell) ([]string, error) {
	var names []string
	if c.brace {
		return nil, errors.New("braces where flags belong")
	}
	wantName := true
	for _, t := range c.toks {
		switch {
		case t.kind == tokPunct && (t.text == "(" || t.text == ")"):
		case t.kind == tokPunct && t.text == "|" && !wantName:
			wantName = true
		case wantName && t.kind == tokIdent && len(t.text) <= 80:
			names = append(names, t.text)
			wantName = false
		case wantName && t.kind == tokNumber && strings.Trim(t.text, "0xXuUlL") == "":
			wantName = false
		default:
			return nil, fmt.Errorf("%q among flags", t.text)
		}
	}
	if wantName {
		return nil, errors.New("no flags where they belong")
	}
	return names, nil
}

// number reads a cell that holds one number, or a macro for one.
func (s *source) number(c cell) (uint64, error) {
	toks, err := s.expand(c.toks)
	if err != nil {
		return 0, err
	}
	for len(toks) > 2 && toks[0].text == "(" && toks[len(toks)-1].text == ")" {
		toks = toks[1 : len(toks)-1]
	}
	if len(toks) != 1 || toks[0].kind != tokNumber {
		return 0, fmt.Errorf("%s where a number belongs", textOf(toks))
	}
	n, err := strconv.ParseUint(strings.TrimRight(toks[0].text, "uUlL"), 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%q where a number belongs", toks[0].text)
	}
	return n, nil
}

func textOf(toks []token) string {
	parts := make([]string, 0, len(toks))
	for i, t := range toks {
		if i == 16 {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, t.text)
	}
	return strconv.Quote(strings.Join(parts, " "))
}
