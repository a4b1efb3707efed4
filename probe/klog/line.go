package klog

import "bytes"

// record is one line without what the logger put in front.
type record struct {
	time    []byte // as written
	seconds float64
	timed   bool // seconds hold the time since the start of the kernel
	text    []byte
}

// tag is what journald and syslog daemons put before the kernel's words.
var tag = []byte(" kernel: ")

// cut takes the logger's part off a line. It knows
//
//	[  191.641315] text, also [  191.641315][ T1] and <3>[...]   dmesg, -r, console
//	kern  :err   : [  191.641315] text                            dmesg -x
//	[Wed Dec 10 18:58:49 2025] text                               dmesg -T
//	2025-12-10T18:58:49,641315+00:00 text                         dmesg --time-format iso
//	6,339,5140900,-;text                                          /dev/kmsg
//	Dec 10 18:58:49 host kernel: text, with [  191.6] or without  journalctl, syslog
//	2025-12-10T18:58:49+0000 host kernel: text                    journalctl -o short-iso
//	[  191.641315] host kernel: text                              journalctl -o short-monotonic
//
// and takes anything else for the kernel's words alone.
func cut(line []byte) record {
	line = bytes.TrimRight(line, " \t\r\n")
	r := record{text: line}
	if len(line) == 0 {
		return r
	}
	switch c := line[0]; {
	case c == '<':
		if i := bytes.IndexByte(line, '>'); i > 1 && i < 5 && allDigits(line[1:i]) {
			return cut(line[i+1:])
		}
		return r
	case c == '[':
		r.bracket(line)
		if text, _, ok := afterTag(r.text); ok {
			r.text = text
		}
		return r
	case c == 'k' && bytes.HasPrefix(line, []byte("kern ")):
		if i := bytes.Index(line[:min(len(line), 32)], []byte(": [")); i > 0 {
			r.bracket(line[i+2:])
			return r
		}
	case isDigit(c):
		if i := bytes.IndexByte(line[:min(len(line), 80)], ';'); i > 0 && r.kmsg(line[:i], line[i+1:]) {
			return r
		}
	}
	if text, head, ok := afterTag(line); ok {
		r.text, r.time = text, timeOf(head)
		if len(text) > 0 && text[0] == '[' { // the kernel's own time
			own := record{text: text}
			if own.bracket(text); own.timed {
				r.text, r.seconds, r.timed = own.text, own.seconds, true
			}
		}
		return r
	}
	if len(line) > 20 && line[4] == '-' && line[7] == '-' && line[10] == 'T' {
		if i := bytes.IndexByte(line, ' '); i > 18 && i < 36 {
			r.time, r.text = line[:i], line[i+1:]
		}
	}
	return r
}

// bracket takes "[time] " and "[ T12] " off the start of line.
func (r *record) bracket(line []byte) {
	i := bytes.IndexByte(line, ']')
	if i < 2 || i > 40 {
		return
	}
	inside := bytes.TrimLeft(line[1:i], " ")
	if len(inside) == 0 {
		return
	}
	if s, ok := seconds(inside); ok {
		r.seconds, r.timed = s, true
	} else if !isTimeStart(inside) {
		return
	}
	r.time, r.text = inside, line[i+1:]
	// CONFIG_PRINTK_CALLER: [    T1] or [   C52]; some vendors: [ 2].
	for len(r.text) > 2 && r.text[0] == '[' {
		j := bytes.IndexByte(r.text, ']')
		if j < 0 || j > 12 {
			break
		}
		r.text = r.text[j+1:]
	}
	r.text = bytes.TrimPrefix(r.text, []byte(" "))
}

// isTimeStart tells the time of dmesg -T from a text in brackets, [drm].
func isTimeStart(b []byte) bool {
	return len(b) >= 19 && (isDigit(b[0]) || bytes.IndexByte(b, ':') > 0)
}

// kmsg reads the prefix of a /dev/kmsg record: priority, sequence number, time
// in microseconds, flags (Documentation/ABI/testing/dev-kmsg).
func (r *record) kmsg(head, text []byte) bool {
	fields := 0
	for rest := head; ; fields++ {
		f, more, found := bytes.Cut(rest, []byte(","))
		if fields < 3 && !allDigits(f) {
			return false
		}
		if fields == 2 {
			us, ok := number(f)
			if !ok {
				return false
			}
			r.seconds, r.timed = float64(us)/1e6, true
			r.time = f
		}
		if !found {
			break
		}
		rest = more
	}
	if fields < 2 {
		return false
	}
	r.text = text
	return true
}

// afterTag returns what follows " kernel: ". The tag must be that of the line:
// any other program's tag, which ends in a colon and a blank, comes first.
func afterTag(line []byte) (text, head []byte, ok bool) {
	head = line[:min(len(line), 160)]
	i := bytes.Index(head, tag)
	if i < 0 {
		if bytes.HasPrefix(line, tag[1:]) {
			return line[len(tag)-1:], nil, true
		}
		return nil, nil, false
	}
	if bytes.Contains(head[:i+1], []byte(": ")) {
		return nil, nil, false
	}
	return line[i+len(tag):], head[:i], true
}

// timeOf takes the host's name off the end of what stands before the tag. Times
// end in a digit, a zone or, of OpenWrt, a facility; a host name is the last word.
func timeOf(head []byte) []byte {
	i := bytes.LastIndexByte(head, ' ')
	if i < 0 {
		return head
	}
	last := head[i+1:]
	if len(last) >= 8 && isDigit(last[0]) && bytes.Count(last, []byte(":")) == 2 { // 18:58:49, no host
		return head
	}
	return bytes.TrimRight(head[:i], " ")
}

// seconds reads 191.641315. More than some 300 years is no time.
func seconds(b []byte) (float64, bool) {
	whole, frac, ok := bytes.Cut(b, []byte("."))
	if !ok || len(whole) > 10 || len(frac) > 9 || !allDigits(whole) || !allDigits(frac) {
		return 0, false
	}
	n, _ := number(whole)
	s := float64(n)
	scale := 0.1
	for _, c := range frac {
		s += float64(c-'0') * scale
		scale /= 10
	}
	return s, true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func allDigits(b []byte) bool {
	for _, c := range b {
		if !isDigit(c) {
			return false
		}
	}
	return len(b) > 0
}

// number reads a decimal number that fits.
func number(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	n := uint64(0)
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// leading reads the decimal number at the start of b.
func leading(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	n, ok = number(b[:i])
	return n, b[i:], ok
}

// hexByte reads two hex digits.
func hexByte(b []byte) (byte, bool) {
	if len(b) < 2 {
		return 0, false
	}
	hi, ok1 := hexDigit(b[0])
	lo, ok2 := hexDigit(b[1])
	return hi<<4 | lo, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case isDigit(c):
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
