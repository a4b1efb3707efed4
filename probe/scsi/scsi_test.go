package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vpd builds a VPD page with a PAGE LENGTH of claimed and these bytes after it.
func vpd(code uint8, claimed int, body ...byte) []byte {
	return append([]byte{0, code, byte(claimed >> 8), byte(claimed)}, body...)
}

func TestParseInquiry(t *testing.T) {
	full := []byte("\x00\x80\x06\x02\x1f\x00\x00\x02" + "ACME    " + "RAID8           " + "0207")
	tests := []struct {
		name string
		in   []byte
		want Inquiry
		err  error
	}{
		{name: "strings keep their padding", in: full,
			want: Inquiry{Removable: true, Version: 6, Vendor: "ACME    ", Product: "RAID8           ", Revision: "0207", AdditionalLength: 31}},
		{name: "qualifier and type share a byte", in: []byte{0x7f, 0, 0, 0, 0},
			want: Inquiry{PeripheralQualifier: 3, PeripheralDeviceType: 0x1f}},
		{name: "response that ends in the product cuts it", in: full[:20],
			want: Inquiry{Removable: true, Version: 6, Vendor: "ACME    ", Product: "RAID", AdditionalLength: 31, Truncated: true}},
		{name: "response that ends before the vendor has no strings", in: full[:5],
			want: Inquiry{Removable: true, Version: 6, AdditionalLength: 31, Truncated: true}},
		{name: "too small an ADDITIONAL LENGTH does not hide the strings", in: append([]byte{0, 0, 2, 2, 0}, full[5:]...),
			want: Inquiry{Version: 2, Vendor: "ACME    ", Product: "RAID8           ", Revision: "0207"}},
		{name: "ADDITIONAL LENGTH beyond the end is truncated", in: append([]byte{0, 0, 2, 2, 0xff}, full[5:]...),
			want: Inquiry{Version: 2, Vendor: "ACME    ", Product: "RAID8           ", Revision: "0207", AdditionalLength: 255, Truncated: true}},
		{name: "ADDITIONAL LENGTH one byte beyond the end is truncated", in: append([]byte{0, 0, 2, 2, 32}, full[5:]...),
			want: Inquiry{Version: 2, Vendor: "ACME    ", Product: "RAID8           ", Revision: "0207", AdditionalLength: 32, Truncated: true}},
		{name: "four bytes are too short", in: full[:4], err: ErrShort},
		{name: "nothing is too short", err: ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseInquiry(tt.in)
			check(t, tt.in, got, err, tt.want, tt.err)
		})
	}
}

// check compares what a parser returned. Values hold unexported fields, so
// every comparison allows them.
func check[T any](t *testing.T, in []byte, got T, err error, want T, wantErr error) {
	t.Helper()
	if !errors.Is(err, wantErr) {
		t.Fatalf("% x: error %v, want %v", in, err, wantErr)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(BlockLimits{}, BlockDeviceCharacteristics{}, ReadCapacity16{})); diff != "" {
		t.Errorf("% x (-want +got):\n%s", in, diff)
	}
}

func TestVPDHeader(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		want UnitSerialNumber
		err  error
	}{
		{name: "bytes after PAGE LENGTH are not of the page", in: vpd(0x80, 2, 'a', 'b', 'c'),
			want: UnitSerialNumber{PageHeader{PageCode: 0x80, PageLength: 2}, "ab"}},
		{name: "PAGE LENGTH beyond the end is truncated", in: vpd(0x80, 0xffff, 'a', 'b'),
			want: UnitSerialNumber{PageHeader{PageCode: 0x80, PageLength: 0xffff, Truncated: true}, "ab"}},
		{name: "empty page", in: vpd(0x80, 0), want: UnitSerialNumber{PageHeader{PageCode: 0x80}, ""}},
		{name: "qualifier and type", in: []byte{0x2d, 0x80, 0, 0},
			want: UnitSerialNumber{PageHeader{PeripheralQualifier: 1, PeripheralDeviceType: 0xd, PageCode: 0x80}, ""}},
		{name: "standard INQUIRY data instead of the page", in: []byte("\x00\x00\x05\x02\x1f\x00\x00\x02ATA     "), err: ErrPageCode},
		{name: "three bytes are too short", in: []byte{0, 0x80, 0}, err: ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseUnitSerialNumber(tt.in)
			check(t, tt.in, got, err, tt.want, tt.err)
		})
	}
}

func TestErrorsNamePageFieldAndOffset(t *testing.T) {
	tests := []struct {
		parse func([]byte) error
		in    []byte
		want  string
	}{
		{errOf(ParseBlockLimits), vpd(0xb0, 0x3c, 0, 0, 0, 1),
			"parse VPD page b0h: OPTIMAL TRANSFER LENGTH at byte 12 needs 16 bytes, have 8: too short"},
		{errOf(ParseBlockLimits), append(vpd(0xb0, 4), make([]byte, 60)...),
			"parse VPD page b0h: OPTIMAL TRANSFER LENGTH at byte 12 needs 16 bytes, have 8: too short"},
		{errOf(ParseBlockDeviceCharacteristics), vpd(0xb1, 3, 0, 1, 0),
			"parse VPD page b1h: NOMINAL FORM FACTOR at byte 7 needs 8 bytes, have 7: too short"},
		{errOf(ParseLogicalBlockProvisioning), vpd(0xb2, 4, 0, 0, 0),
			"parse VPD page b2h: THRESHOLD PERCENTAGE at byte 7 needs 8 bytes, have 7: too short"},
		{errOf(ParseATAInformation), append(vpd(0x89, 0x238), make([]byte, 52)...),
			"parse VPD page 89h: COMMAND CODE at byte 56 needs 57 bytes, have 56: too short"},
		{errOf(ParseReadCapacity16), make([]byte, 12),
			"parse READ CAPACITY(16): LOWEST ALIGNED LOGICAL BLOCK ADDRESS at byte 14 needs 16 bytes, have 12: too short"},
		{errOf(ParseDeviceIdentification), nil,
			"parse VPD page 83h: PAGE LENGTH at byte 2 needs 4 bytes, have 0: too short"},
		{errOf(ParseBlockLimits), vpd(0xb1, 0x3c),
			"parse VPD page b0h: PAGE CODE at byte 1 is b1h: wrong page code"},
	}
	for _, tt := range tests {
		if err := tt.parse(tt.in); err == nil || err.Error() != tt.want {
			t.Errorf("% x:\n got %v\nwant %s", tt.in, err, tt.want)
		}
	}
}

func TestParseDeviceIdentification(t *testing.T) {
	naa := []byte{0x61, 0x93, 0, 3, 1, 2, 3}
	want := Designator{Association: AssociationTargetPort, Type: DesignatorNAA, CodeSet: CodeSetBinary, PIV: true, ProtocolID: 6, Designator: []byte{1, 2, 3}}
	header := PageHeader{PageCode: 0x83}
	with := func(n uint16, truncated bool) PageHeader {
		h := header
		h.PageLength, h.Truncated = n, truncated
		return h
	}
	tests := []struct {
		name string
		in   []byte
		want DeviceIdentification
	}{
		{"no designator", vpd(0x83, 0), DeviceIdentification{header, nil}},
		{"one designator", vpd(0x83, 7, naa...), DeviceIdentification{with(7, false), []Designator{want}}},
		{"zero length is a designator and ends", vpd(0x83, 11, append([]byte{0, 0, 0, 0}, naa...)...),
			DeviceIdentification{with(11, false), []Designator{{Designator: []byte{}}, want}}},
		{"length beyond the page keeps the ones before", vpd(0x83, 14, append(bytes.Clone(naa), 0x01, 0x03, 0, 0xff, 1, 2, 3)...),
			DeviceIdentification{with(14, true), []Designator{want}}},
		{"header cut by the page keeps the ones before", vpd(0x83, 9, append(bytes.Clone(naa), 0x01, 0x03)...),
			DeviceIdentification{with(9, true), []Designator{want}}},
		{"length beyond PAGE LENGTH does not read on", vpd(0x83, 6, naa...), DeviceIdentification{with(6, true), nil}},
		{"page that ends early keeps the whole ones", vpd(0x83, 100, naa...),
			DeviceIdentification{with(100, true), []Designator{want}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseDeviceIdentification(tt.in)
			check(t, tt.in, got, err, tt.want, nil)
		})
	}
}

func TestDesignatorsDoNotAliasTheInput(t *testing.T) {
	in := vpd(0x83, 5, 1, 3, 0, 1, 0xaa)
	p, err := ParseDeviceIdentification(in)
	if err != nil {
		t.Fatal(err)
	}
	in[8] = 0
	if got := p.Designators[0].Designator[0]; got != 0xaa {
		t.Errorf("designator changed with the buffer: %02x", got)
	}
}

func TestATAInformationIdentify(t *testing.T) {
	whole := append(vpd(0x89, 568), bytes.Repeat([]byte{0x11}, 568)...)
	whole[ataCommandCode] = CommandIdentifyDevice
	with := func(offset int, v byte) []byte {
		b := bytes.Clone(whole)
		b[offset] = v
		return b
	}
	tests := []struct {
		name string
		in   []byte
		ok   bool
	}{
		{"whole page", whole, true},
		{"packet device", with(ataCommandCode, CommandIdentifyPacketDevice), true},
		{"command code of neither", with(ataCommandCode, 0), false},
		{"one byte missing", whole[:571], false},
		{"PAGE LENGTH one byte less", with(3, 0x37), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ParseATAInformation(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			data, ok := p.Identify()
			if ok != tt.ok {
				t.Errorf("ok = %t, want %t", ok, tt.ok)
			}
			if !ok && data != [512]byte{} {
				t.Error("data that is not ok is not zero")
			}
			if p.SATVendor != strings.Repeat("\x11", 8) {
				t.Errorf("SATVendor = %q", p.SATVendor)
			}
		})
	}
}

func TestBlockLimits(t *testing.T) {
	type answer struct {
		N  uint64
		OK bool
	}
	all := func(p BlockLimits) map[string]answer {
		m := map[string]answer{}
		add := func(name string, n uint32, ok bool) { m[name] = answer{uint64(n), ok} }
		g, ok := p.OptimalTransferGranularityBlocks()
		add("granularity", uint32(g), ok)
		n, ok := p.MaxTransferBlocks()
		add("max", n, ok)
		n, ok = p.OptimalTransferBlocks()
		add("optimal", n, ok)
		n, ok = p.MaxPrefetchBlocks()
		add("prefetch", n, ok)
		n, ok = p.MaxUnmapLBACount()
		add("unmap lba", n, ok)
		n, ok = p.MaxUnmapBlockDescriptorCount()
		add("unmap descriptors", n, ok)
		n, ok = p.OptimalUnmapGranularityBlocks()
		add("unmap granularity", n, ok)
		n, ok = p.UnmapGranularityAlignmentBlocks()
		add("unmap alignment", n, ok)
		w, ok := p.MaxWriteSameBlocks()
		m["write same"] = answer{w, ok}
		n, ok = p.MaxAtomicTransferBlocks()
		add("atomic", n, ok)
		n, ok = p.AtomicAlignmentBlocks()
		add("atomic alignment", n, ok)
		n, ok = p.AtomicTransferGranularityBlocks()
		add("atomic granularity", n, ok)
		n, ok = p.MaxAtomicTransferWithBoundaryBlocks()
		add("atomic with boundary", n, ok)
		n, ok = p.MaxAtomicBoundaryBlocks()
		add("atomic boundary", n, ok)
		for name, a := range m {
			if a == (answer{}) {
				delete(m, name)
			}
		}
		return m
	}
	// Each field holds its own offset.
	body := make([]byte, 0, 60)
	for offset := 4; offset < 64; offset += 4 {
		body = binary.BigEndian.AppendUint32(body, uint32(offset))
	}
	body[2], body[3] = 0, 6
	body[28] |= 0x80 // UGAVALID
	short := map[string]answer{"granularity": {6, true}, "max": {8, true}, "optimal": {12, true}}
	prefetch := map[string]answer{"granularity": {6, true}, "max": {8, true}, "optimal": {12, true}, "prefetch": {16, true}}
	full := map[string]answer{
		"granularity": {6, true}, "max": {8, true}, "optimal": {12, true}, "prefetch": {16, true},
		"unmap lba": {20, true}, "unmap descriptors": {24, true}, "unmap granularity": {28, true}, "unmap alignment": {32, true},
		"write same": {36<<32 | 40, true}, "atomic": {44, true}, "atomic alignment": {48, true},
		"atomic granularity": {52, true}, "atomic with boundary": {56, true}, "atomic boundary": {60, true},
	}
	// Where zero is a value, a page that holds the field answers ok.
	zero := map[string]answer{
		"unmap lba": {0, true}, "unmap descriptors": {0, true}, "atomic alignment": {0, true},
		"atomic granularity": {0, true}, "atomic boundary": {0, true},
	}
	tests := []struct {
		name      string
		in        []byte
		want      map[string]answer
		truncated bool
	}{
		{"page of 3Ch", vpd(0xb0, 0x3c, body...), full, false},
		{"page of 0Ch ends after the optimal length", vpd(0xb0, 0x0c, body[:12]...), short, false},
		{"page of 10h ends after the prefetch length", vpd(0xb0, 0x10, body[:16]...), prefetch, false},
		{"page of 0Ch in a bigger buffer", vpd(0xb0, 0x0c, body...), short, false},
		{"page cut inside a field", vpd(0xb0, 0x3c, body[:18]...), prefetch, true},
		{"page cut inside the write same length", vpd(0xb0, 0x3c, body[:38]...), map[string]answer{
			"granularity": {6, true}, "max": {8, true}, "optimal": {12, true}, "prefetch": {16, true},
			"unmap lba": {20, true}, "unmap descriptors": {24, true}, "unmap granularity": {28, true}, "unmap alignment": {32, true},
		}, true},
		{"page longer than the standard's", append(vpd(0xb0, 0x7c, body...), make([]byte, 64)...), full, false},
		{"zero means no limit reported", vpd(0xb0, 0x3c, make([]byte, 60)...), zero, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ParseBlockLimits(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, all(p)); diff != "" {
				t.Errorf("% x (-want +got):\n%s", tt.in, diff)
			}
			if p.Truncated != tt.truncated {
				t.Errorf("Truncated = %t, want %t", p.Truncated, tt.truncated)
			}
		})
	}

	t.Run("alignment without UGAVALID is not valid", func(t *testing.T) {
		b := vpd(0xb0, 0x3c, body...)
		b[blUnmapGranularityAlignment] = 0
		p, err := ParseBlockLimits(b)
		if n, ok := p.UnmapGranularityAlignmentBlocks(); err != nil || ok {
			t.Errorf("got %d, %t, %v", n, ok, err)
		}
	})
	t.Run("WSNZ and compare and write share no bit", func(t *testing.T) {
		p, err := ParseBlockLimits(vpd(0xb0, 0x0c, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
		if err != nil || p.WSNZ() || p.MaxCompareAndWriteBlocks() != 0x80 {
			t.Errorf("got %t, %d, %v", p.WSNZ(), p.MaxCompareAndWriteBlocks(), err)
		}
	})
}

func TestRotation(t *testing.T) {
	tests := []struct {
		in  uint16
		rpm uint16
		ok  bool
	}{
		{0, 0, false}, {1, 0, true}, {2, 0, false}, {0x400, 0, false}, {0x401, 0x401, true},
		{7200, 7200, true}, {0xfffe, 0xfffe, true}, {0xffff, 0, false},
	}
	for _, tt := range tests {
		p, err := ParseBlockDeviceCharacteristics(vpd(0xb1, 4, byte(tt.in>>8), byte(tt.in), 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if rpm, ok := p.Rotation(); rpm != tt.rpm || ok != tt.ok {
			t.Errorf("%04xh: got %d, %t, want %d, %t", tt.in, rpm, ok, tt.rpm, tt.ok)
		}
	}
}

func TestZoned(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		want Zoned
		ok   bool
	}{
		{"host aware", vpd(0xb1, 5, 0, 1, 0, 0xf0, 0x10), ZonedHostAware, true},
		{"device managed", vpd(0xb1, 5, 0, 1, 0, 0xf0, 0x2f), ZonedDeviceManaged, true},
		{"zero is not reported", vpd(0xb1, 5, 0, 1, 0, 0xf0, 0xcf), 0, false},
		{"page ends before the field", vpd(0xb1, 4, 0, 1, 0, 0xf0, 0x10), 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ParseBlockDeviceCharacteristics(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if z, ok := p.Zoned(); z != tt.want || ok != tt.ok {
				t.Errorf("got %d, %t, want %d, %t", z, ok, tt.want, tt.ok)
			}
			if code, ok := p.NominalFormFactor(); ok {
				t.Errorf("form factor %d from the bits beside it", code)
			}
		})
	}
}

func TestReadCapacity16(t *testing.T) {
	type answer struct {
		N  uint64
		OK bool
	}
	tests := []struct {
		name                          string
		lastLBA                       uint64
		block                         uint32
		exponents                     byte
		blocks, length, physical, all answer
	}{
		{"count is one more than the last LBA", 1953525167, 512, 0x03,
			answer{1953525168, true}, answer{512, true}, answer{4096, true}, answer{1953525168 * 512, true}},
		{"last LBA with all bits set does not overflow", math.MaxUint64, 512, 0,
			answer{0, false}, answer{512, true}, answer{512, true}, answer{0, false}},
		{"bytes beyond 64 bits", 1 << 60, 512, 0,
			answer{1<<60 + 1, true}, answer{512, true}, answer{512, true}, answer{0, false}},
		{"largest size that fits", 1<<55 - 2, 512, 0,
			answer{1<<55 - 1, true}, answer{512, true}, answer{512, true}, answer{1<<64 - 512, true}},
		{"zero is no block length", 99, 0, 0x03,
			answer{100, true}, answer{0, false}, answer{0, false}, answer{0, false}},
		{"largest exponent does not overflow", 0, math.MaxUint32, 0xff,
			answer{1, true}, answer{math.MaxUint32, true}, answer{math.MaxUint32 << 15, true}, answer{math.MaxUint32, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := binary.BigEndian.AppendUint64(nil, tt.lastLBA)
			b = binary.BigEndian.AppendUint32(b, tt.block)
			b = append(b, 0, tt.exponents, 0, 0)
			c, err := ParseReadCapacity16(b)
			if err != nil {
				t.Fatal(err)
			}
			blocks, ok1 := c.Blocks()
			length, ok2 := c.LogicalBlockBytes()
			physical, ok3 := c.PhysicalBlockBytes()
			size, ok4 := c.SizeBytes()
			got := []answer{{blocks, ok1}, {uint64(length), ok2}, {physical, ok3}, {size, ok4}}
			if diff := cmp.Diff([]answer{tt.blocks, tt.length, tt.physical, tt.all}, got); diff != "" {
				t.Errorf("% x (-want +got):\n%s", b, diff)
			}
			if !c.Truncated {
				t.Error("16 bytes are not Truncated")
			}
		})
	}
	t.Run("bits", func(t *testing.T) {
		b := make([]byte, 32)
		b[12], b[13], b[14], b[15] = 0x0b, 0x5a, 0xc1, 0x02
		got, err := ParseReadCapacity16(b)
		check(t, b, got, err, ReadCapacity16{ProtEn: true, PType: 5, PIExponent: 5, LBPPBE: 10, LBPME: true, LBPRZ: true, LowestAligned: 0x102}, nil)
	})
}

func TestLogicalBlockProvisioning(t *testing.T) {
	in := vpd(0xb2, 4, 3, 0xa6, 0x0a, 7)
	got, err := ParseLogicalBlockProvisioning(in)
	check(t, in, got, err, LogicalBlockProvisioning{
		PageHeader: PageHeader{PageCode: 0xb2, PageLength: 4},
		LBPU:       true, LBPWS10: true, LBPRZ: 1, ANCSup: true, ThresholdExponent: 3,
		ProvisioningType: ProvisioningThin, MinimumPercentage: 1, ThresholdPercentage: 7,
	}, nil)
}
