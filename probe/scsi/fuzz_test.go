package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// The fuzz targets encode again what was parsed. The result must be the input's
// own bytes, up to the end of the structure and with reserved bits masked.

func encodeHeader(h PageHeader) []byte {
	return []byte{h.PeripheralQualifier<<5 | h.PeripheralDeviceType, h.PageCode, byte(h.PageLength >> 8), byte(h.PageLength)}
}

// same compares re-encoded bytes with the start of the input; mask holds the
// bits to ignore by offset.
func same(t *testing.T, in, got []byte, reserved map[int]byte) {
	t.Helper()
	if len(got) > len(in) {
		t.Fatalf("%d bytes were made of %d", len(got), len(in))
	}
	want := bytes.Clone(in[:len(got)])
	for i, bits := range reserved {
		if i < len(want) {
			want[i] &^= bits
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("encoded again:\n got % x\nwant % x", got, want)
	}
}

// wholePage fails when what was taken from a page is not all of it, and checks
// that only a page that claims too much is truncated.
func wholePage(t *testing.T, in []byte, h PageHeader, encoded int) {
	t.Helper()
	if want := min(len(in), 4+int(h.PageLength)); encoded != want {
		t.Fatalf("took %d bytes of a page of %d", encoded, want)
	}
	if h.Truncated != (4+int(h.PageLength) > len(in)) {
		t.Fatalf("Truncated = %t with %d bytes of %d", h.Truncated, len(in), 4+int(h.PageLength))
	}
}

func FuzzInquiry(f *testing.F) {
	seed(f, "inq", "")
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ParseInquiry(b)
		if err != nil {
			return
		}
		same(t, b, []byte{q.PeripheralQualifier<<5 | q.PeripheralDeviceType, byte(btoi(q.Removable)) << 7, q.Version}, map[int]byte{1: 0x7f})
		text := q.Vendor + q.Product + q.Revision
		if len(q.Vendor) > 8 || len(q.Product) > 16 || len(q.Revision) > 4 {
			t.Fatalf("too long: %q %q %q", q.Vendor, q.Product, q.Revision)
		}
		if want := max(0, min(len(b), 36)-8); len(text) != want {
			t.Fatalf("%d characters, want %d", len(text), want)
		}
		if len(b) > 8 {
			same(t, b[8:], []byte(text), nil)
		}
	})
}

func FuzzPageHeader(f *testing.F) {
	for _, d := range dumps(f) {
		f.Add(d.data)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParsePageHeader(b)
		if err != nil {
			return
		}
		same(t, b, encodeHeader(h), nil)
	})
}

func FuzzSupportedPages(f *testing.F) {
	seed(f, "vpd", "00")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseSupportedPages(b)
		if err != nil {
			return
		}
		got := append(encodeHeader(p.PageHeader), p.Pages...)
		same(t, b, got, nil)
		wholePage(t, b, p.PageHeader, len(got))
	})
}

func FuzzUnitSerialNumber(f *testing.F) {
	seed(f, "vpd", "80")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseUnitSerialNumber(b)
		if err != nil {
			return
		}
		got := append(encodeHeader(p.PageHeader), p.ProductSerialNumber...)
		same(t, b, got, nil)
		wholePage(t, b, p.PageHeader, len(got))
	})
}

func FuzzDeviceIdentification(f *testing.F) {
	seed(f, "vpd", "83")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseDeviceIdentification(b)
		if err != nil {
			return
		}
		got := encodeHeader(p.PageHeader)
		reserved := map[int]byte{}
		for _, d := range p.Designators {
			reserved[len(got)+1], reserved[len(got)+2] = 0x40, 0xff
			got = append(got, d.ProtocolID<<4|byte(d.CodeSet), byte(btoi(d.PIV))<<7|byte(d.Association)<<4|byte(d.Type), 0, byte(len(d.Designator)))
			got = append(got, d.Designator...)
		}
		same(t, b, got, reserved)
		// A page that is not truncated was taken to its last byte.
		if !p.Truncated {
			wholePage(t, b, p.PageHeader, len(got))
		}
	})
}

func FuzzATAInformation(f *testing.F) {
	seed(f, "vpd", "89")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseATAInformation(b)
		if err != nil {
			return
		}
		got := append(encodeHeader(p.PageHeader), 0, 0, 0, 0)
		got = append(got, p.SATVendor+p.SATProduct+p.SATRevision...)
		got = append(got, p.DeviceSignature[:]...)
		got = append(got, p.CommandCode)
		reserved := map[int]byte{4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 57: 0xff, 58: 0xff, 59: 0xff}
		if data, ok := p.Identify(); ok {
			got = append(append(got, 0, 0, 0), data[:]...)
		}
		same(t, b, got, reserved)
		if len(got) > 4+int(p.PageLength) {
			t.Fatalf("took %d bytes of a page of %d", len(got), 4+int(p.PageLength))
		}
	})
}

func FuzzBlockLimits(f *testing.F) {
	seed(f, "vpd", "b0")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseBlockLimits(b)
		if err != nil {
			return
		}
		got := append(encodeHeader(p.PageHeader), byte(btoi(p.WSNZ())), p.MaxCompareAndWriteBlocks())
		g, ok := p.OptimalTransferGranularityBlocks()
		if ok != (g != 0) {
			t.Fatalf("granularity %d, %t", g, ok)
		}
		got = binary.BigEndian.AppendUint16(got, g)
		end := min(len(b), 4+int(p.PageLength), 64)
		// put checks ok against the end of the page. Zero in a field of which it
		// means not reported is not ok either.
		put := func(n uint32, ok, zeroIsValue bool) {
			held := len(got)+4 <= end
			if want := held && (n != 0 || zeroIsValue); ok != want {
				t.Fatalf("byte %d: %d with ok %t in a page of %d", len(got), n, ok, end)
			}
			if !held && n != 0 {
				t.Fatalf("byte %d: %d from beyond a page of %d", len(got), n, end)
			}
			got = binary.BigEndian.AppendUint32(got, n)
		}
		n, ok := p.MaxTransferBlocks()
		put(n, ok, false)
		n, ok = p.OptimalTransferBlocks()
		put(n, ok, false)
		n, ok = p.MaxPrefetchBlocks()
		put(n, ok, false)
		n, ok = p.MaxUnmapLBACount()
		put(n, ok, true)
		n, ok = p.MaxUnmapBlockDescriptorCount()
		put(n, ok, true)
		n, ok = p.OptimalUnmapGranularityBlocks()
		put(n, ok, false)
		n, ok = p.UnmapGranularityAlignmentBlocks()
		if ok {
			n |= ugavalid
		} else if len(got)+4 <= end && b[len(got)]&0x80 != 0 {
			t.Fatal("UGAVALID is lost")
		}
		got = binary.BigEndian.AppendUint32(got, n)
		w, ok := p.MaxWriteSameBlocks()
		if ok != (w != 0) || w != 0 && len(got)+8 > end {
			t.Fatalf("write same %d, %t in a page of %d", w, ok, end)
		}
		got = binary.BigEndian.AppendUint64(got, w)
		n, ok = p.MaxAtomicTransferBlocks()
		put(n, ok, false)
		n, ok = p.AtomicAlignmentBlocks()
		put(n, ok, true)
		n, ok = p.AtomicTransferGranularityBlocks()
		put(n, ok, true)
		n, ok = p.MaxAtomicTransferWithBoundaryBlocks()
		put(n, ok, false)
		n, ok = p.MaxAtomicBoundaryBlocks()
		put(n, ok, true)
		// A field that the page cuts is not taken at all.
		whole := end &^ 3
		if whole > 36 && whole < 44 {
			whole = 36
		}
		same(t, b, got[:whole], map[int]byte{4: 0xfe})
	})
}

func FuzzBlockDeviceCharacteristics(f *testing.F) {
	seed(f, "vpd", "b1")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseBlockDeviceCharacteristics(b)
		if err != nil {
			return
		}
		code, _ := p.NominalFormFactor()
		got := append(encodeHeader(p.PageHeader), byte(p.MediumRotationRate>>8), byte(p.MediumRotationRate), 0, code)
		z, ok := p.Zoned()
		if min(len(b), 4+int(p.PageLength)) > 8 {
			got = append(got, byte(z)<<4)
		} else if ok {
			t.Fatal("ZONED from beyond the page")
		}
		same(t, b, got, map[int]byte{6: 0xff, 7: 0xf0, 8: 0xcf})
		if rpm, ok := p.Rotation(); ok && rpm != 0 && rpm != p.MediumRotationRate {
			t.Fatalf("%d rpm from %04xh", rpm, p.MediumRotationRate)
		}
	})
}

func FuzzLogicalBlockProvisioning(f *testing.F) {
	seed(f, "vpd", "b2")
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseLogicalBlockProvisioning(b)
		if err != nil {
			return
		}
		flags := btoi(p.LBPU)<<7 | btoi(p.LBPWS)<<6 | btoi(p.LBPWS10)<<5 | int(p.LBPRZ)<<2 | btoi(p.ANCSup)<<1 | btoi(p.DP)
		same(t, b, append(encodeHeader(p.PageHeader), p.ThresholdExponent, byte(flags),
			p.MinimumPercentage<<3|byte(p.ProvisioningType), p.ThresholdPercentage), nil)
	})
}

func FuzzReadCapacity16(f *testing.F) {
	seed(f, "readcap16", "")
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseReadCapacity16(b)
		if err != nil {
			return
		}
		length, _ := c.LogicalBlockBytes()
		got := binary.BigEndian.AppendUint64(nil, c.LastLBA)
		got = binary.BigEndian.AppendUint32(got, length)
		aligned := btoi(c.LBPME)<<15 | btoi(c.LBPRZ)<<14 | int(c.LowestAligned)
		got = append(got, c.PType<<1|byte(btoi(c.ProtEn)), c.PIExponent<<4|c.LBPPBE, byte(aligned>>8), byte(aligned))
		same(t, b, got, map[int]byte{12: 0xf0})
		blocks, _ := c.Blocks()
		if size, ok := c.SizeBytes(); ok && (size%uint64(length) != 0 || size/uint64(length) != blocks) {
			t.Fatalf("%d bytes of %d blocks of %d", size, blocks, length)
		}
	})
}
