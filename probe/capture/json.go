package capture

import (
	"bufio"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Fault is why a capture is refused.
type Fault struct {
	Path    string // files["sys/block/sda/size"], "" for the whole
	Message string
}

func (f *Fault) Error() string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

// scanner reads JSON from a stranger. encoding/json would do as to syntax, but
// takes the last of two equal keys, keys of another case, broken UTF-8 and any
// depth and length, and holds what it reads. This one gives a value at a time,
// and remembers of what it has passed no more than a hash of each key.
type scanner struct {
	r       *bufio.Reader
	off     int64
	path    []byte // of the value being read
	depth   int
	entries int
	str     []byte // the string read last
	raw     []byte // the base64 read last, decoded
	seeds   [2]maphash.Seed
	seen    map[[2]uint64]struct{}
}

func newScanner(r io.Reader) *scanner {
	return &scanner{r: bufio.NewReaderSize(r, 64<<10), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, seen: map[[2]uint64]struct{}{}}
}

func (s *scanner) fault(format string, a ...any) error {
	return &Fault{string(s.path), fmt.Sprintf(format, a...)}
}

// once reports whether a key is new in its space. The hash is keyed anew for
// each reading, so nobody can make two keys collide.
func (s *scanner) once(space string, key []byte) bool {
	var sum [2]uint64
	for i := range sum {
		var h maphash.Hash
		h.SetSeed(s.seeds[i])
		h.WriteString(space)
		h.WriteByte(0)
		h.Write(key)
		sum[i] = h.Sum64()
	}
	if _, again := s.seen[sum]; again {
		return false
	}
	s.seen[sum] = struct{}{}
	return true
}

// byte returns the next byte; the end of input is a fault.
func (s *scanner) byte() (byte, error) {
	c, err := s.r.ReadByte()
	if err != nil {
		return 0, s.broken(err)
	}
	s.off++
	return c, nil
}

func (s *scanner) broken(err error) error {
	var f *Fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return s.fault("ends in the middle, after %d bytes", s.off)
	}
	return &readError{err}
}

// readError is an input that could not be read, which is no fault of its
// content.
type readError struct{ err error }

func (e *readError) Error() string { return "read the capture: " + e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// next returns the next byte that is no white space.
func (s *scanner) next() (byte, error) {
	for {
		c, err := s.byte()
		if err != nil {
			return 0, err
		}
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		}
		return c, nil
	}
}

func (s *scanner) back() {
	_ = s.r.UnreadByte() // after ReadByte it cannot fail
	s.off--
}

func (s *scanner) unexpected(c byte, want string) error {
	return s.fault("byte %d is %q, want %s", s.off, c, want)
}

func (s *scanner) enter() error {
	if s.depth++; s.depth > maxDepth {
		return s.fault("nested more than %d deep", maxDepth)
	}
	return nil
}

func (s *scanner) entry() error {
	if s.entries++; s.entries > maxEntries {
		return s.fault("more than %d entries", maxEntries)
	}
	return nil
}

// object reads an object and calls each for every key, which has to read the
// value. Keys are at most maxName bytes and occur once.
func (s *scanner) object(each func(key string) error) error {
	return s.objectOf(func(string) error {
		if !s.once("key", s.path) {
			return s.fault("occurs twice")
		}
		return nil
	}, each)
}

// objectOf is object with its own check of a key, which has to see to it that
// it occurs once.
func (s *scanner) objectOf(check, each func(key string) error) error {
	c, err := s.next()
	if err != nil {
		return err
	}
	if c != '{' {
		return s.unexpected(c, "an object")
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer func() { s.depth-- }()
	here := len(s.path)
	for first := true; ; first = false {
		if c, err = s.next(); err != nil {
			return err
		}
		if c == '}' {
			return nil
		}
		if !first {
			if c != ',' {
				return s.unexpected(c, "a comma or the end of the object")
			}
			if c, err = s.next(); err != nil {
				return err
			}
		}
		if c != '"' {
			return s.unexpected(c, "a key")
		}
		if err := s.text(maxName); err != nil {
			return err
		}
		if err := s.entry(); err != nil {
			return err
		}
		key := string(s.str)
		s.push(key)
		if err := check(key); err != nil {
			return err
		}
		if c, err = s.next(); err != nil {
			return err
		}
		if c != ':' {
			return s.unexpected(c, "a colon")
		}
		if err := each(key); err != nil {
			return err
		}
		s.path = s.path[:here]
	}
}

// push appends a key to the path; one that is no plain word is quoted.
func (s *scanner) push(key string) {
	plain, escapes := key != "", false
	for i := 0; i < len(key); i++ {
		c := key[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			plain = false
			escapes = escapes || c < ' ' || c >= 0x7f || c == '"' || c == '\\'
		}
	}
	switch {
	case !plain && !escapes: // a file name, of which a capture has thousands
		s.path = append(append(append(s.path, '[', '"'), key...), '"', ']')
	case !plain:
		s.path = append(s.path, '[')
		s.path = strconv.AppendQuote(s.path, key)
		s.path = append(s.path, ']')
	case len(s.path) > 0:
		s.path = append(append(s.path, '.'), key...)
	default:
		s.path = append(s.path, key...)
	}
}

// array reads an array and calls each for every item, which has to read it.
func (s *scanner) array(each func() error) error {
	c, err := s.next()
	if err != nil {
		return err
	}
	if c != '[' {
		return s.unexpected(c, "a list")
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer func() { s.depth-- }()
	here := len(s.path)
	for i := 0; ; i++ {
		if c, err = s.next(); err != nil {
			return err
		}
		switch {
		case c == ']':
			return nil
		case i == 0:
			s.back()
		case c != ',':
			return s.unexpected(c, "a comma or the end of the list")
		}
		if err := s.entry(); err != nil {
			return err
		}
		s.path = append(strconv.AppendInt(append(s.path[:here], '['), int64(i), 10), ']')
		if err := each(); err != nil {
			return err
		}
		s.path = s.path[:here]
	}
}

// string reads a string of at most limit bytes.
func (s *scanner) string(limit int) (string, error) {
	c, err := s.next()
	if err != nil {
		return "", err
	}
	if c != '"' {
		return "", s.unexpected(c, "a string")
	}
	if err := s.text(limit); err != nil {
		return "", err
	}
	return string(s.str), nil
}

// text reads the rest of a string, whose quote has been read, into s.str.
func (s *scanner) text(limit int) error {
	s.str = s.str[:0]
	ascii := true
	for {
		// What is buffered up to the next byte of meaning is taken at once.
		run, _ := s.r.Peek(s.r.Buffered())
		n := 0
		for n < len(run) && run[n] != '"' && run[n] != '\\' && run[n] >= 0x20 && run[n] < utf8.RuneSelf {
			n++
		}
		if n > 0 {
			s.str = append(s.str, run[:n]...)
			_, _ = s.r.Discard(n) // it is buffered
			s.off += int64(n)
			if len(s.str) > limit {
				return s.fault("a string of more than %d bytes", limit)
			}
		}
		c, err := s.byte()
		if err != nil {
			return err
		}
		switch {
		case c == '"':
			if !ascii && !utf8.Valid(s.str) {
				return s.fault("a string before byte %d is not UTF-8", s.off)
			}
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
			ascii = false
		case c < 0x20:
			return s.fault("byte %d: a control character in a string", s.off)
		default:
			if c >= utf8.RuneSelf {
				ascii = false
			}
			s.str = append(s.str, c)
		}
		if len(s.str) > limit {
			return s.fault("a string of more than %d bytes", limit)
		}
	}
}

func (s *scanner) escape() error {
	c, err := s.byte()
	if err != nil {
		return err
	}
	switch c {
	case '"', '\\', '/':
		s.str = append(s.str, c)
	case 'b':
		s.str = append(s.str, '\b')
	case 'f':
		s.str = append(s.str, '\f')
	case 'n':
		s.str = append(s.str, '\n')
	case 'r':
		s.str = append(s.str, '\r')
	case 't':
		s.str = append(s.str, '\t')
	case 'u':
		r, err := s.hex4()
		if err != nil {
			return err
		}
		if utf16.IsSurrogate(r) {
			for _, want := range []byte{'\\', 'u'} {
				if c, err := s.byte(); err != nil {
					return err
				} else if c != want {
					return s.fault("byte %d: half a surrogate pair", s.off)
				}
			}
			low, err := s.hex4()
			if err != nil {
				return err
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return s.fault("byte %d: half a surrogate pair", s.off)
			}
		}
		s.str = utf8.AppendRune(s.str, r)
	default:
		return s.fault("byte %d: \\%c is no escape", s.off, c)
	}
	return nil
}

func (s *scanner) hex4() (rune, error) {
	var r rune
	for range 4 {
		c, err := s.byte()
		if err != nil {
			return 0, err
		}
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, s.fault("byte %d: %q is no hexadecimal digit", s.off, c)
		}
		r = r<<4 | rune(c)
	}
	return r, nil
}

// bare reads a number, true, false or null and returns it as it stands there.
func (s *scanner) bare() (string, error) {
	c, err := s.next()
	if err != nil {
		return "", err
	}
	word := make([]byte, 0, 32)
	for {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', c == '-', c == '+', c == '.', c == 'E':
			word = append(word, c)
		default:
			if len(word) == 0 {
				return "", s.unexpected(c, "a value")
			}
			s.back()
			return s.word(word)
		}
		if len(word) > 32 {
			return "", s.fault("a number of more than 32 characters")
		}
		if c, err = s.r.ReadByte(); err != nil {
			if errors.Is(err, io.EOF) && s.depth == 0 {
				return s.word(word)
			}
			return "", s.broken(err)
		}
		s.off++
	}
}

func (s *scanner) word(word []byte) (string, error) {
	w := string(word)
	switch w {
	case "true", "false", "null":
		return w, nil
	}
	if !isNumber(w) {
		return "", s.fault("before byte %d: %q is no value", s.off, w)
	}
	return w, nil
}

// isNumber follows RFC 8259.
func isNumber(s string) bool {
	digits := func() bool {
		n := 0
		for len(s) > 0 && '0' <= s[0] && s[0] <= '9' {
			s, n = s[1:], n+1
		}
		return n > 0
	}
	if s != "" && s[0] == '-' {
		s = s[1:]
	}
	if len(s) > 1 && s[0] == '0' && '0' <= s[1] && s[1] <= '9' || !digits() {
		return false
	}
	if s != "" && s[0] == '.' {
		if s = s[1:]; !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		if s = s[1:]; s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}

// peek tells the kind of the value to come by its first byte.
func (s *scanner) peek() (byte, error) {
	c, err := s.next()
	if err != nil {
		return 0, err
	}
	s.back()
	return c, nil
}

// skip reads a value that this version does not know.
func (s *scanner) skip() error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	switch c {
	case '{':
		return s.object(func(string) error { return s.skip() })
	case '[':
		return s.array(s.skip)
	case '"':
		_, err = s.next()
		if err == nil {
			err = s.text(maxContentText)
		}
		return err
	}
	_, err = s.bare()
	return err
}

// end checks that nothing follows but white space.
func (s *scanner) end() error {
	for {
		c, err := s.r.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.broken(err)
		}
		s.off++
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		}
		return s.fault("data after the end, from byte %d on", s.off)
	}
}
