// Package dump reads the bytes that a tool has printed: hex text as of sg_inq,
// sg_vpd, hdparm, nvme, xxd, hexdump and od, plain hex, and bytes themselves.
//
// It is a leaf: pure functions with no I/O. What it reads was pasted, mailed and
// edited, and is not trusted. It never guesses: a line is a dump's, a heading's
// or an error with its number. Where a dump prints offsets, each must be the
// number of bytes read so far, so that a line that got lost is noticed.
package dump

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds on the input and on the bytes read from it.
const (
	MaxText  = 1 << 20
	MaxBytes = 64 << 10
)

// Names of the formats, as in Dump.Format.
const (
	FormatBytes   = "bytes"
	FormatHex     = "hex"        // groups of digits and nothing else
	FormatSG      = "sg3_utils"  // sg_inq -H, sg_vpd -H
	FormatXXD     = "xxd"        // also nvme, whose offsets end in a colon too
	FormatXXDE    = "xxd -e"     // each group little-endian
	FormatHexdump = "hexdump -C" // offset without a colon, byte by byte; also od -tx1
	FormatOD      = "od"         // offset without a colon, groups in host order; also hexdump
)

// Dump is one run of bytes.
type Dump struct {
	Data    []byte
	Format  string
	Heading string // the line above, "" for none
	Line    int    // the number of its first line, from 1; 0 for bytes

	// Words says that the digits came in groups of four, in FormatHex. Tools
	// print SCSI and NVMe data so byte by byte, and ATA data as 16-bit words,
	// whose low byte then comes last: SwapWords is for those.
	Words bool

	// Notes are remarks on the dump: text beside the digits that disagrees.
	Notes []string
}

// SwapWords returns the data with the bytes of each 16-bit word exchanged. An odd
// last byte stays.
func (d Dump) SwapWords() []byte {
	b := bytes.Clone(d.Data)
	for i := 0; i+1 < len(b); i += 2 {
		b[i], b[i+1] = b[i+1], b[i]
	}
	return b
}

// Error says what is wrong with the input, and where.
type Error struct {
	Line   int // from 1; 0 for the input as a whole
	Reason string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
}

func errorAt(line int, format string, a ...any) error {
	return &Error{Line: line, Reason: fmt.Sprintf(format, a...)}
}

// Parse returns the dumps in an input, in order. Input with a NUL byte before
// its end is bytes, and one dump; any other is text. Headings, blank lines and lines
// that start with # separate dumps or are passed over; there is no dump in text
// of headings alone, and none in an empty input. The error is an *Error.
func Parse(input []byte) ([]Dump, error) {
	if !isText(input) {
		if len(input) > MaxBytes {
			return nil, errorAt(0, "more than %d bytes", MaxBytes)
		}
		return []Dump{{Data: bytes.Clone(input), Format: FormatBytes}}, nil
	}
	if len(input) > MaxText {
		return nil, errorAt(0, "more than %d bytes of text", MaxText)
	}
	var all []Dump
	var block []line
	heading, total := "", 0
	flush := func() error {
		if len(block) == 0 {
			return nil
		}
		d, err := parseBlock(block, MaxBytes-total)
		if err != nil {
			return err
		}
		d.Heading, heading, block = heading, "", nil
		total += len(d.Data)
		all = append(all, d)
		return nil
	}
	for _, l := range lines(input) {
		switch kind := classify(l.text); {
		case kind == lineBlank, kind == lineColumns && len(block) == 0:
		case kind == lineHeading:
			if err := flush(); err != nil {
				return nil, err
			}
			heading = strings.TrimSpace(l.text)
		case kind == lineOther:
			return nil, errorAt(l.number, "not hex: %s", excerpt(l.text))
		default:
			block = append(block, l)
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return all, nil
}

// isText reports whether Parse takes the input for text. Sysfs pads with NULs.
func isText(input []byte) bool {
	return bytes.IndexByte(bytes.TrimRight(input, "\x00"), 0) < 0 && (len(input) == 0 || input[0] != 0)
}

// line is a line of text with its number, from 1.
type line struct {
	text   string
	number int
}

// lines splits text, without a byte order mark, carriage returns, and NULs at the
// end, and with each tab and no-break blank as a blank.
func lines(input []byte) []line {
	text := strings.TrimRight(strings.TrimPrefix(string(input), "\ufeff"), "\x00")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\t", " ", "\u00a0", " ").Replace(text)
	parts := strings.Split(text, "\n")
	all := make([]line, len(parts))
	for i, s := range parts {
		all[i] = line{strings.TrimRight(s, " "), i + 1}
	}
	return all
}

type lineKind uint8

const (
	lineData lineKind = iota
	lineBlank
	lineColumns // nvme's " 0  1  2 ... f" above the digits
	lineHeading
	lineOther
)

// columns is nvme's line above the digits, blanks apart.
const columns = "0 1 2 3 4 5 6 7 8 9 a b c d e f"

var (
	// A heading is what tools print above a dump: a line with a colon, a line in
	// brackets, a shell prompt. It does not start with hex digits, and holds no more
	// bytes than a CDB, which tools print too.
	headingForm = regexp.MustCompile(`^(\$ .*|\[.*\]|[^:]*:.*)$`)
	dataForm    = regexp.MustCompile(`^((0[xX])?[0-9a-fA-F]{2,}([,;]|$)|(0[xX])?[0-9a-fA-F]+:)`)
	digitsForm  = regexp.MustCompile(`^([0-9a-fA-F]{2}){1,2}$`)
)

// maxCDB is the number of bytes in the longest CDB of fixed length.
const maxCDB = 16

// classify tells what a line is. lineData only says that it starts like a dump's.
func classify(text string) lineKind {
	fields := strings.Fields(text)
	switch {
	case len(fields) == 0 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], "//"):
		return lineBlank
	case text == "*":
		return lineData
	case strings.Join(fields, " ") == columns:
		return lineColumns
	case dataForm.MatchString(fields[0]) && !(len(fields) == 1 && strings.HasSuffix(fields[0], ":")):
		return lineData
	case headingForm.MatchString(strings.TrimSpace(text)) && bytesIn(fields) < maxCDB:
		return lineHeading
	}
	return lineOther
}

// bytesIn counts the bytes in groups of two and four digits.
func bytesIn(fields []string) int {
	n := 0
	for _, f := range fields {
		if digitsForm.MatchString(f) {
			n += len(f) / 2
		}
	}
	return n
}

// excerpt quotes the start of a line.
func excerpt(text string) string {
	text = strings.TrimSpace(text)
	const most = 40
	if len(text) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		return strconv.Quote(text[:cut]) + "..."
	}
	return strconv.Quote(text)
}

// row is a line taken apart.
type row struct {
	line   int
	offset string   // "" for none
	groups []string // hex digits
	text   string   // the column of text, "" for none
	repeat bool     // hexdump's *: the row before, up to the next offset
}

// The offsets that formats print.
var (
	sgForm    = regexp.MustCompile(`^ *([0-9a-fA-F]{2,8}) {3,}([0-9a-fA-F]{2}( .*)?)$`)
	colonForm = regexp.MustCompile(`^ *(?:0[xX])?([0-9a-fA-F]{1,16}):(.*)$`)
	plainForm = regexp.MustCompile(`^ *([0-9a-fA-F]{6,16})( .*)?$`)
)

// format tells a block's format by its first line.
func format(first string) string {
	switch {
	case colonForm.MatchString(first):
		return FormatXXD
	case sgForm.MatchString(first):
		return FormatSG
	}
	fields := strings.Fields(first)
	// An offset has another number of digits than the groups after it.
	if plainForm.MatchString(first) && len(fields) > 1 && len(fields[0]) != len(fields[1]) {
		return FormatHexdump
	}
	return FormatHex
}

// parseBlock reads the lines of one dump into at most most bytes.
func parseBlock(lines []line, most int) (Dump, error) {
	first := lines[0]
	if first.text == "*" {
		return Dump{}, errorAt(first.number, "* stands for the line above, and there is none")
	}
	form := format(first.text)
	rows := make([]row, 0, len(lines))
	for _, l := range lines {
		r, err := split(l, form)
		if err != nil {
			return Dump{}, err
		}
		rows = append(rows, r)
	}
	d := Dump{Format: form, Line: first.number}
	digits := groupDigits(rows)
	if form == FormatHexdump && digits > 2 {
		d.Format = FormatOD
		for i := range rows {
			for j, g := range rows[i].groups {
				rows[i].groups[j] = reverse(g)
			}
		}
	}
	var err error
	if d.Data, err = assemble(rows, 16, most); form == FormatHexdump && len(rows[0].offset) == 7 {
		// od prints octal offsets as wide as hexdump's.
		octal, octalErr := assemble(rows, 8, most)
		switch {
		case err == nil && octalErr == nil && !bytes.Equal(d.Data, octal):
			return Dump{}, errorAt(first.number, "the offsets may be hexadecimal (%d bytes) or octal (%d bytes): dump it with hexdump -C", len(d.Data), len(octal))
		case err != nil && octalErr == nil:
			d.Data, err = octal, nil
		}
	}
	if err != nil {
		return Dump{}, err
	}
	d.Words = form == FormatHex && digits == 4
	d.compareText(rows)
	return d, nil
}

// split takes a line apart.
func split(l line, form string) (row, error) {
	r := row{line: l.number}
	if l.text == "*" {
		r.repeat = true
		return r, nil
	}
	rest := l.text
	switch form {
	case FormatXXD:
		m := colonForm.FindStringSubmatch(l.text)
		if m == nil {
			return r, errorAt(l.number, "want an offset and a colon, as on the lines above: %s", excerpt(l.text))
		}
		r.offset, rest = m[1], strings.TrimPrefix(m[2], " ")
		rest, r.text = cut(rest, "  ")
		if before, after, ok := strings.Cut(rest, `"`); ok { // nvme
			rest, r.text = before, strings.TrimSuffix(after+r.text, `"`)
		}
	case FormatSG:
		m := sgForm.FindStringSubmatch(l.text)
		if m == nil {
			return r, errorAt(l.number, "want an offset, blanks and bytes, as on the lines above: %s", excerpt(l.text))
		}
		r.offset = m[1]
		rest, r.text = cut(m[2], "    ")
	case FormatHexdump:
		m := plainForm.FindStringSubmatch(l.text)
		if m == nil {
			return r, errorAt(l.number, "want an offset and bytes, as on the lines above: %s", excerpt(l.text))
		}
		r.offset, rest = m[1], m[2]
		if i := strings.IndexAny(rest, "|>"); i >= 0 {
			end := closing(rest[i])
			if i == len(rest)-1 || rest[len(rest)-1] != end {
				return r, errorAt(l.number, "the column of text does not end with %c: the line is cut", end)
			}
			rest, r.text = rest[:i], rest[i+1:len(rest)-1]
		}
	}
	for _, g := range strings.Fields(rest) {
		digits := strings.TrimRight(g, ",;")
		if form == FormatHex {
			digits = strings.TrimPrefix(strings.TrimPrefix(digits, "0x"), "0X")
		} else if digits != g {
			return r, errorAt(l.number, "not hex: %s", strconv.Quote(g))
		}
		if _, err := hex.DecodeString(digits); err != nil || digits == "" {
			if len(digits)%2 != 0 && strings.Trim(digits, "0123456789abcdefABCDEF") == "" {
				return r, errorAt(l.number, "%s has an odd number of digits", excerpt(g))
			}
			return r, errorAt(l.number, "not hex: %s", excerpt(g))
		}
		r.groups = append(r.groups, digits)
	}
	n := len(strings.Join(r.groups, "")) / 2
	if t := strings.TrimSpace(r.text); form == FormatXXD && len(t) == n+2 && t[0] == '"' && t[n+1] == '"' { // nvme's last row
		r.text = t[1 : n+1]
	}
	// Were the text longer, then part of it would be bytes.
	if t := utf8.RuneCountInString(strings.TrimSpace(r.text)); t > n {
		return r, errorAt(l.number, "%d bytes, and text of %d characters beside them: %s", n, t, excerpt(r.text))
	}
	return r, nil
}

func closing(open byte) byte {
	if open == '>' {
		return '<'
	}
	return open
}

// cut returns what is before and after the first separator.
func cut(s, separator string) (before, after string) {
	before, after, _ = strings.Cut(s, separator)
	return before, after
}

// groupDigits returns the number of digits that all groups but the last of a row have;
// 0 when they differ.
func groupDigits(rows []row) int {
	digits := 0
	for _, r := range rows {
		for _, g := range r.groups {
			switch {
			case digits == 0:
				digits = len(g)
			case digits != len(g):
				return 0
			}
		}
	}
	return digits
}

// reverse exchanges the bytes of a group.
func reverse(group string) string {
	var b strings.Builder
	for i := len(group) - 2; i >= 0; i -= 2 {
		b.WriteString(group[i : i+2])
	}
	return b.String()
}

// assemble joins rows, whose offsets are written in base, and checks these.
func assemble(rows []row, base, most int) ([]byte, error) {
	var data, last []byte
	repeat, ended := false, false
	for i, r := range rows {
		if r.repeat {
			if rows[0].offset == "" || i == len(rows)-1 || rows[i+1].repeat {
				return nil, errorAt(r.line, "* stands for lines up to the next offset, and there is none")
			}
			repeat = true
			continue
		}
		if ended {
			return nil, errorAt(r.line, "bytes after the end of the dump on the line above")
		}
		if r.offset != "" {
			n, err := strconv.ParseUint(r.offset, base, 32)
			if err != nil {
				return nil, errorAt(r.line, "offset %s is out of bounds", r.offset)
			}
			offset := int(n)
			if repeat && len(last) > 0 {
				if offset > most {
					return nil, errorAt(r.line, "more than %d bytes", most)
				}
				if offset <= len(data) || (offset-len(data))%len(last) != 0 && len(r.groups) > 0 {
					return nil, errorAt(r.line, "offset %s does not follow from the repeated lines of %d bytes", r.offset, len(last))
				}
				for len(data) < offset {
					data = append(data, last[:min(len(last), offset-len(data))]...)
				}
			}
			repeat = false
			if len(r.groups) == 0 { // the length, at the end
				ended = true
				// od fills up the last group.
				if len(rows) > 1 && offset < len(data) && len(data)-offset < groupDigits(rows)/2 {
					data = data[:offset]
				}
			}
			switch {
			case offset == len(data):
			case i == 0:
				return nil, errorAt(r.line, "the dump starts at offset %s: its beginning is missing", r.offset)
			default:
				return nil, errorAt(r.line, "offset %s after %d bytes (%xh): lines are missing or changed", r.offset, len(data), len(data))
			}
		}
		if len(r.groups) == 0 {
			continue
		}
		b, err := hex.DecodeString(strings.Join(r.groups, ""))
		if err != nil {
			return nil, errorAt(r.line, "not hex")
		}
		if len(data)+len(b) > most {
			return nil, errorAt(r.line, "more than %d bytes", most)
		}
		data, last = append(data, b...), b
	}
	return data, nil
}

// compareText compares the bytes with the column of text beside them. Where all
// rows agree once each group is turned around, the dump is little-endian;
// where some disagree, they are noted: a hand has changed the one and not
// the other.
func (d *Dump) compareText(rows []row) {
	if d.Format != FormatXXD && d.Format != FormatHexdump {
		return
	}
	straight, turned := 0, 0 // rows that disagree
	firstBad, compared := 0, false
	for _, r := range rows {
		if r.text == "" {
			continue
		}
		b, _ := hex.DecodeString(strings.Join(r.groups, ""))
		var back []byte
		for _, g := range r.groups {
			part, _ := hex.DecodeString(reverse(g))
			back = append(back, part...)
		}
		compared = true
		if !agree(b, r.text) {
			if straight == 0 {
				firstBad = r.line
			}
			straight++
		}
		if !agree(back, r.text) {
			turned++
		}
	}
	switch {
	case !compared || straight == 0:
	case turned == 0 && d.Format == FormatXXD:
		d.Format = FormatXXDE
		for i := range rows {
			for j, g := range rows[i].groups {
				rows[i].groups[j] = reverse(g)
			}
		}
		if data, err := assemble(rows, 16, MaxBytes); err == nil {
			d.Data = data
		}
	default:
		d.Notes = append(d.Notes, fmt.Sprintf("line %d: the column of text does not agree with the bytes; one of them was changed", firstBad))
	}
}

// agree reports whether text is how a tool shows the bytes: a dot for what it
// does not print, which may be a blank, and blanks at the end may be lost.
// xxd fills up its last row before the text, which may have blanks ahead then.
func agree(b []byte, text string) bool {
	shown := make([]byte, len(b))
	for i, c := range b {
		if c <= ' ' || c >= 0x7f {
			c = '.'
		}
		shown[i] = c
	}
	end := strings.TrimRight(string(shown), ".")
	blanks := len(text) - len(strings.TrimLeft(text, " "))
	text = strings.TrimRight(strings.ReplaceAll(text, " ", "."), ".")
	ahead := len(text) - len(end)
	return ahead >= 0 && ahead <= blanks && text[ahead:] == end
}
