package nvme

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxText bounds the text that ParseText reads; that of a controller is some ten
// kilobytes.
const maxText = 1 << 20

var textLine = regexp.MustCompile(`^([a-z]+) *: ?(.*)$`)

// IsText reports whether b is what nvme id-ctrl prints for people, with or without
// -H and -V: it has a line of vid.
func IsText(b []byte) bool {
	if len(b) > maxText || bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	for _, l := range strings.Split(string(b), "\n") {
		if m := textLine.FindStringSubmatch(l); m != nil && m[1] == "vid" {
			return true
		}
	}
	return false
}

// ParseText reads back the fields that nvme id-ctrl prints for people, one a
// line. It returns the data structure with these fields in place and all other
// bytes zero, and the names, as in Layout, of those that were printed: what is not
// among them is not known. The first of two lines of the same name holds. An
// error names the line, from 1.
func ParseText(text []byte) (data []byte, printed map[string]bool, line int, err error) {
	if len(text) > maxText {
		return nil, nil, 0, fmt.Errorf("more than %d bytes of text", maxText)
	}
	layout := map[string]Field{}
	for _, f := range Layout() {
		layout[f.Name] = f
	}
	data, printed = make([]byte, IdentifyBytes), map[string]bool{}
	for i, l := range strings.Split(string(text), "\n") {
		m := textLine.FindStringSubmatch(strings.TrimSuffix(l, "\r"))
		if m == nil {
			continue // -H indents what bits mean, -V dumps bytes after vs[]:
		}
		f, ok := layout[m[1]]
		if !ok || printed[f.Name] {
			continue
		}
		if err := putText(data[f.Offset:f.End()], f.Name, m[2]); err != nil {
			return nil, nil, i + 1, err
		}
		printed[f.Name] = true
	}
	return data, printed, 0, nil
}

// putText writes a field as printed: strings as they are, numbers in decimal
// or with 0x, the OUI in bare hex.
func putText(b []byte, name, value string) error {
	switch name {
	case "sn", "mn", "fr":
		value = strings.TrimRight(value, " ")
		if len(value) > len(b) {
			return fmt.Errorf("%s has %d characters, more than %d", name, len(value), len(b))
		}
		copy(b, bytes.Repeat([]byte{' '}, len(b)))
		copy(b, value)
		return nil
	case "subnqn":
		if value = strings.TrimSpace(value); len(value) > len(b) {
			return fmt.Errorf("%s has %d characters, more than %d", name, len(value), len(b))
		}
		copy(b, value)
		return nil
	}
	number, base := strings.TrimSpace(value), 0
	if name == "ieee" {
		base = 16
	}
	n, err := strconv.ParseUint(number, base, 8*len(b))
	if err != nil {
		return fmt.Errorf("%s: %q is no number of %d bits", name, number, 8*len(b))
	}
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], n)
	copy(b, le[:])
	return nil
}
