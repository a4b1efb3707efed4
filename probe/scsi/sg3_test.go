package scsi

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A dump is one line of testdata/expected.jsonl with the bytes it is about.
type dump struct {
	File     string
	Kind     string // inq, vpd or readcap16
	Expected struct {
		SgVPD []string `json:"sg_vpd_1_46"`
		SgInq []string `json:"sg_inq_1_46"`
		Page  string

		// kind inq
		Vendor, Product, Revision string
		PDT, Version              uint8

		// kind readcap16
		LastLBA       uint64 `json:"last_lba"`
		BlockLength   uint32 `json:"block_length"`
		ProtEn        uint8  `json:"prot_en"`
		LBPPBE        uint8
		LBPME         uint8
		LBPRZ         uint8
		LowestAligned uint16 `json:"lowest_aligned"`
	}
	data []byte
}

// dumps reads testdata and fails when a file has no answer or there is none.
func dumps(t testing.TB) []dump {
	t.Helper()
	f, err := os.Open("testdata/expected.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []dump
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var d dump
		if err := json.Unmarshal(sc.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("testdata", d.File))
		if err != nil {
			t.Fatal(err)
		}
		if d.data, err = hex.DecodeString(strings.Join(strings.Fields(string(text)), "")); err != nil {
			t.Fatalf("%s: %v", d.File, err)
		}
		all = append(all, d)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 || len(files) != len(all) {
		t.Fatalf("%d dumps, %d answers in expected.jsonl", len(files), len(all))
	}
	return all
}

// seed adds the dumps of one kind and page to a fuzz target's corpus, whole and
// cut.
func seed(f *testing.F, kind, page string) {
	f.Helper()
	n := 0
	for _, d := range dumps(f) {
		if d.Kind == kind && d.Expected.Page == page {
			f.Add(d.data)
			f.Add(d.data[:len(d.data)/2])
			n++
		}
	}
	if n == 0 {
		f.Fatalf("no dump of kind %s page %q", kind, page)
	}
}

// fields compares values by name and counts them.
type fields struct {
	t *testing.T
	n int
}

func (c *fields) equal(name string, got, want any) {
	c.t.Helper()
	c.n++
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// lines looks up what a tool printed, line by line, and remembers what nobody
// has asked for.
type lines struct {
	*fields
	values map[string]string
}

func newLines(c *fields, printed []string, sep string) *lines {
	l := &lines{fields: c, values: map[string]string{}}
	for _, line := range printed[1:] { // the first is the name of the page
		key, value, _ := strings.Cut(strings.TrimSpace(line), sep)
		l.values[key] = strings.TrimSpace(value)
	}
	return l
}

func (l *lines) take(key string) string {
	l.t.Helper()
	v, ok := l.values[key]
	if !ok {
		l.t.Fatalf("the tool printed no %q", key)
	}
	delete(l.values, key)
	return v
}

var number = regexp.MustCompile(`^(0x[0-9a-f]+|\d+)`)

// num compares a number with the one that starts the printed value.
func (l *lines) num(key string, got uint64) {
	l.t.Helper()
	want, err := strconv.ParseUint(number.FindString(l.take(key)), 0, 64)
	if err != nil {
		l.t.Fatalf("%s: %v", key, err)
	}
	l.equal(key, got, want)
}

// num32 is num for an accessor that takes zero for not reported.
func (l *lines) num32(key string, n uint32, ok bool) {
	l.t.Helper()
	l.num(key, uint64(n))
	if ok != (n != 0) {
		l.t.Errorf("%s: %d with ok %t", key, n, ok)
	}
}

// held is num for an accessor whose zero is a value, on a page that holds it.
func (l *lines) held(key string, n uint32, ok bool) {
	l.t.Helper()
	l.num(key, uint64(n))
	if !ok {
		l.t.Errorf("%s: ok is false though the page holds it", key)
	}
}

func (l *lines) flag(key string, got bool) {
	l.t.Helper()
	l.equal(key, got, l.take(key) == "1")
}

// done fails for a printed line that was not compared.
func (l *lines) done() {
	l.t.Helper()
	for key, v := range l.values {
		l.t.Errorf("not compared: %q: %q", key, v)
	}
}

func TestAgainstSG3Utils(t *testing.T) {
	files, compared := 0, 0
	for _, d := range dumps(t) {
		t.Run(d.File, func(t *testing.T) {
			c := &fields{t: t}
			switch d.Kind {
			case "inq":
				compareInquiry(c, d)
			case "readcap16":
				compareReadCapacity16(c, d)
			case "vpd":
				compareVPD(c, d)
			default:
				t.Fatalf("unknown kind %q", d.Kind)
			}
			if c.n == 0 {
				t.Error("nothing was compared")
			}
			files++
			compared += c.n
		})
	}
	t.Logf("compared %d fields in %d files", compared, files)
}

func compareInquiry(c *fields, d dump) {
	c.t.Helper()
	q, err := ParseInquiry(d.data)
	if err != nil {
		c.t.Fatal(err)
	}
	e := d.Expected
	c.equal("vendor", q.Vendor, e.Vendor)
	c.equal("product", q.Product, e.Product)
	c.equal("revision", q.Revision, e.Revision)
	c.equal("pdt", q.PeripheralDeviceType, e.PDT)
	c.equal("version", q.Version, e.Version)
	c.equal("truncated", q.Truncated, false)

	printed := strings.Join(e.SgInq, "\n")
	for _, want := range []string{
		fmt.Sprintf("PQual=%d  PDT=%d  RMB=%d ", q.PeripheralQualifier, q.PeripheralDeviceType, btoi(q.Removable)),
		fmt.Sprintf("version=0x%02x ", q.Version),
		fmt.Sprintf("length=%d ", int(q.AdditionalLength)+5),
		"Vendor identification: " + strings.TrimRight(q.Vendor, " ") + "\n",
		"Product identification: " + strings.TrimRight(q.Product, " ") + "\n",
		"Product revision level: " + strings.TrimRight(q.Revision, " "),
	} {
		c.n++
		if !strings.Contains(printed, want) {
			c.t.Errorf("sg_inq did not print %q but\n%s", want, printed)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compareReadCapacity16(c *fields, d dump) {
	c.t.Helper()
	rc, err := ParseReadCapacity16(d.data)
	if err != nil {
		c.t.Fatal(err)
	}
	e := d.Expected
	blocks, ok := rc.Blocks()
	c.equal("blocks", blocks, e.LastLBA+1)
	block, ok2 := rc.LogicalBlockBytes()
	c.equal("block length", block, e.BlockLength)
	physical, ok3 := rc.PhysicalBlockBytes()
	c.equal("physical block length", physical, uint64(e.BlockLength)<<e.LBPPBE)
	size, ok4 := rc.SizeBytes()
	c.equal("size", size, (e.LastLBA+1)*uint64(e.BlockLength))
	c.equal("ok", []bool{ok, ok2, ok3, ok4}, []bool{true, true, true, true})
	c.equal("lbppbe", rc.LBPPBE, e.LBPPBE)
	c.equal("prot_en", rc.ProtEn, e.ProtEn == 1)
	c.equal("lbpme", rc.LBPME, e.LBPME == 1)
	c.equal("lbprz", rc.LBPRZ, e.LBPRZ == 1)
	c.equal("lowest_aligned", rc.LowestAligned, e.LowestAligned)
	c.equal("truncated", rc.Truncated, false)
}

func compareVPD(c *fields, d dump) {
	c.t.Helper()
	h, err := ParsePageHeader(d.data)
	if err != nil {
		c.t.Fatal(err)
	}
	c.equal("page code", fmt.Sprintf("%02x", h.PageCode), d.Expected.Page)
	if d.File == "sg3_vpd_cpr.hex" { // its sample stops short of what it claims
		c.equal("truncated", h.Truncated, true)
	} else {
		c.equal("page length", int(h.PageLength)+4, len(d.data))
		c.equal("truncated", h.Truncated, false)
	}

	// A parser for one page refuses every other one.
	parsers := map[uint8]func([]byte) error{
		PageSupportedPages:             errOf(ParseSupportedPages),
		PageUnitSerialNumber:           errOf(ParseUnitSerialNumber),
		PageDeviceIdentification:       errOf(ParseDeviceIdentification),
		PageATAInformation:             errOf(ParseATAInformation),
		PageBlockLimits:                errOf(ParseBlockLimits),
		PageBlockDeviceCharacteristics: errOf(ParseBlockDeviceCharacteristics),
		PageLogicalBlockProvisioning:   errOf(ParseLogicalBlockProvisioning),
	}
	for code, parse := range parsers {
		err := parse(d.data)
		c.equal(fmt.Sprintf("page %02xh: wrong page", code), errors.Is(err, ErrPageCode), code != h.PageCode)
		if code == h.PageCode && err != nil {
			c.t.Fatal(err)
		}
	}

	switch h.PageCode {
	case PageSupportedPages:
		compareSupportedPages(c, d)
	case PageUnitSerialNumber:
		p, _ := ParseUnitSerialNumber(d.data)
		l := newLines(c, d.Expected.SgVPD, ": ")
		c.equal("serial", strings.TrimSpace(p.ProductSerialNumber), l.take("Unit serial number"))
		c.equal("length", len(p.ProductSerialNumber), int(h.PageLength))
		l.done()
	case PageDeviceIdentification:
		compareDeviceIdentification(c, d)
	case PageATAInformation:
		compareATAInformation(c, d)
	case PageBlockLimits:
		compareBlockLimits(c, d)
	case PageBlockDeviceCharacteristics:
		compareBlockDeviceCharacteristics(c, d)
	case PageLogicalBlockProvisioning:
		compareLogicalBlockProvisioning(c, d)
	}
}

func errOf[T any](parse func([]byte) (T, error)) func([]byte) error {
	return func(b []byte) error {
		_, err := parse(b)
		return err
	}
}

func compareSupportedPages(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseSupportedPages(d.data)
	codes := map[string]uint8{ // sg_vpd's abbreviations
		"sv": 0x00, "sn": 0x80, "di": 0x83, "sii": 0x84, "mna": 0x85, "ei": 0x86, "mpp": 0x87, "sp": 0x88,
		"ai": 0x89, "bl": 0xb0, "bdc": 0xb1, "lbpv": 0xb2, "ble": 0xb7, "cpr": 0xb9,
	}
	abbreviation := regexp.MustCompile(`\[(\w+)\]$`)
	var want []uint8
	for _, line := range d.Expected.SgVPD[1:] {
		m := abbreviation.FindStringSubmatch(line)
		if m == nil {
			c.t.Fatalf("no abbreviation in %q", line)
		}
		code, ok := codes[m[1]]
		if !ok {
			c.t.Fatalf("unknown abbreviation in %q", line)
		}
		want = append(want, code)
		c.equal("supports "+m[1], p.Supports(code), true)
	}
	c.equal("pages", p.Pages, want)
	c.equal("supports a page not listed", p.Supports(0xfe), false)
}

func compareATAInformation(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseATAInformation(d.data)
	l := newLines(c, d.Expected.SgVPD, ":")
	c.equal("SAT vendor", strings.TrimSpace(p.SATVendor), l.take("SAT Vendor identification"))
	c.equal("SAT product", strings.TrimSpace(p.SATProduct), l.take("SAT Product identification"))
	c.equal("SAT revision", strings.TrimSpace(p.SATRevision), l.take("SAT Product revision level"))
	l.take("Device signature indicates SATA transport")
	c.equal("signature", p.DeviceSignature[0], uint8(0x34))
	l.num("Command code", uint64(p.CommandCode))
	l.take("ATA command IDENTIFY DEVICE response summary")
	data, ok := p.Identify()
	c.equal("IDENTIFY ok", ok, true)
	// IDENTIFY words 10-19, 23-26 and 27-46; package ata does this properly.
	swapped := func(from, to int) string {
		var s []byte
		for i := from * 2; i < to*2; i += 2 {
			s = append(s, data[i+1], data[i])
		}
		return strings.TrimSpace(string(s))
	}
	c.equal("serial", swapped(10, 20), l.take("serial number"))
	c.equal("firmware", swapped(23, 27), l.take("firmware revision"))
	c.equal("model", swapped(27, 47), l.take("model"))
	l.done()
}

func compareBlockLimits(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseBlockLimits(d.data)
	l := newLines(c, d.Expected.SgVPD, ": ")
	l.flag("Write same non-zero (WSNZ)", p.WSNZ())
	l.num("Maximum compare and write length", uint64(p.MaxCompareAndWriteBlocks()))
	g, ok := p.OptimalTransferGranularityBlocks()
	l.num32("Optimal transfer length granularity", uint32(g), ok)
	n, ok := p.MaxTransferBlocks()
	l.num32("Maximum transfer length", n, ok)
	n, ok = p.OptimalTransferBlocks()
	l.num32("Optimal transfer length", n, ok)
	n, ok = p.MaxPrefetchBlocks()
	l.num32("Maximum prefetch transfer length", n, ok)
	n, ok = p.MaxUnmapLBACount()
	l.held("Maximum unmap LBA count", n, ok)
	n, ok = p.MaxUnmapBlockDescriptorCount()
	l.held("Maximum unmap block descriptor count", n, ok)
	n, ok = p.OptimalUnmapGranularityBlocks()
	l.num32("Optimal unmap granularity", n, ok)
	n, ok = p.UnmapGranularityAlignmentBlocks()
	l.equal("UGAVALID", ok, l.take("Unmap granularity alignment valid") == "true")
	l.num("Unmap granularity alignment", uint64(n))
	w, ok := p.MaxWriteSameBlocks()
	l.num("Maximum write same length", w)
	l.equal("Maximum write same length ok", ok, w != 0)
	n, ok = p.MaxAtomicTransferBlocks()
	l.num32("Maximum atomic transfer length", n, ok)
	n, ok = p.AtomicAlignmentBlocks()
	l.held("Atomic alignment", n, ok)
	n, ok = p.AtomicTransferGranularityBlocks()
	l.held("Atomic transfer length granularity", n, ok)
	n, ok = p.MaxAtomicTransferWithBoundaryBlocks()
	l.num32("Maximum atomic transfer length with atomic boundary", n, ok)
	n, ok = p.MaxAtomicBoundaryBlocks()
	l.held("Maximum atomic boundary size", n, ok)
	l.done()
}

func compareBlockDeviceCharacteristics(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseBlockDeviceCharacteristics(d.data)
	printed := map[string]bool{}
	for _, line := range d.Expected.SgVPD[1:] {
		printed[strings.TrimSpace(line)] = true
	}
	want := "Medium rotation rate is not reported"
	if rpm, ok := p.Rotation(); ok && rpm == 0 {
		want = "Non-rotating medium (e.g. solid state)"
	} else if ok {
		want = fmt.Sprintf("Nominal rotation rate: %d rpm", rpm)
	}
	c.equal(want, printed[want], true)
	want = "Nominal form factor not reported"
	if code, ok := p.NominalFormFactor(); ok {
		want = "Nominal form factor: " + map[uint8]string{
			1: "5.25 inch", 2: "3.5 inch", 3: "2.5 inch", 4: "1.8 inch", 5: "less then 1.8 inch",
		}[code]
	}
	c.equal(want, printed[want], true)
	z, ok := p.Zoned()
	want = fmt.Sprintf("ZONED=%d", z)
	c.equal(want, printed[want], true)
	c.equal("zoned ok", ok, z != 0)
}

func compareLogicalBlockProvisioning(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseLogicalBlockProvisioning(d.data)
	l := newLines(c, d.Expected.SgVPD, ": ")
	l.flag("Unmap command supported (LBPU)", p.LBPU)
	l.flag("Write same (16) with unmap bit supported (LBPWS)", p.LBPWS)
	l.flag("Write same (10) with unmap bit supported (LBPWS10)", p.LBPWS10)
	l.num("Logical block provisioning read zeros (LBPRZ)", uint64(p.LBPRZ))
	l.flag("Anchored LBAs supported (ANC_SUP)", p.ANCSup)
	l.num("Threshold exponent", uint64(p.ThresholdExponent))
	l.flag("Descriptor present (DP)", p.DP)
	l.num("Minimum percentage", uint64(p.MinimumPercentage))
	l.num("Provisioning type", uint64(p.ProvisioningType))
	l.num("Threshold percentage", uint64(p.ThresholdPercentage))
	l.done()
}

// compareDeviceIdentification prints the designators as sg_vpd does and
// compares every line.
func compareDeviceIdentification(c *fields, d dump) {
	c.t.Helper()
	p, _ := ParseDeviceIdentification(d.data)
	c.equal("truncated", p.Truncated, false)
	var got []string
	for _, a := range []struct {
		association Association
		heading     string
	}{
		{AssociationLogicalUnit, "Addressed logical unit:"},
		{AssociationTargetPort, "Target port:"},
		{AssociationTargetDevice, "Target device that contains addressed lu:"},
	} {
		headed := false
		for _, des := range p.Designators {
			if des.Association != a.association {
				continue
			}
			if !headed {
				got, headed = append(got, a.heading), true
			}
			got = append(got, printDesignator(des)...)
		}
	}
	var want []string
	for _, line := range d.Expected.SgVPD[1:] {
		want = append(want, strings.TrimSpace(line))
	}
	c.n += len(want) - 1
	c.equal("designators", got, want)
}

func printDesignator(d Designator) []string {
	types := map[DesignatorType]string{
		DesignatorVendorSpecific: "vendor specific [0x0]", DesignatorT10VendorID: "T10 vendor identification",
		DesignatorEUI64: "EUI-64 based", DesignatorNAA: "NAA", DesignatorRelativeTargetPort: "Relative target port",
		DesignatorTargetPortGroup: "Target port group", DesignatorLogicalUnitGroup: "Logical unit group",
		DesignatorMD5LogicalUnit: "MD5 logical unit identifier", DesignatorSCSIName: "SCSI name string",
		DesignatorProtocolSpecificPort: "Protocol specific port identifier", DesignatorUUID: "UUID identifier",
	}
	codeSets := map[CodeSet]string{CodeSetBinary: "Binary", CodeSetASCII: "ASCII", CodeSetUTF8: "UTF-8"}
	protocols := map[uint8]string{
		6: "Serial Attached SCSI Protocol (SPL-4)", 9: "USB Attached SCSI (UAS-2)", 10: "SCSI over PCI Express (SOP)",
	}
	name := types[d.Type]
	out := []string{fmt.Sprintf("designator type: %s,  code set: %s", name, codeSets[d.CodeSet])}
	if d.PIV {
		out = append(out, "transport: "+protocols[d.ProtocolID])
	}
	b := d.Designator
	switch d.Type {
	case DesignatorVendorSpecific:
		if d.CodeSet == CodeSetASCII {
			return append(out, strings.TrimSpace("vendor specific: "+string(b)))
		}
		out = append(out, "vendor specific:")
		return append(out, hexLines(b, true)...)
	case DesignatorT10VendorID:
		return append(out, "vendor id: "+strings.TrimSpace(string(b[:8])),
			strings.TrimSpace("vendor specific: "+string(b[8:])))
	case DesignatorEUI64, DesignatorNAA:
		return append(out, fmt.Sprintf("0x%x", b))
	case DesignatorRelativeTargetPort, DesignatorTargetPortGroup, DesignatorLogicalUnitGroup:
		return append(out, fmt.Sprintf("%s: 0x%x", name, be16(b, 2)))
	case DesignatorMD5LogicalUnit:
		return append(append(out, name+":"), hexLines(b, false)...)
	case DesignatorSCSIName:
		out = append(out, name+":")
		return append(out, strings.Split(strings.TrimRight(string(b), "\x00"), "\n")...)
	case DesignatorProtocolSpecificPort:
		if d.ProtocolID == 9 {
			return append(out, fmt.Sprintf("USB device address: 0x%x", b[0]&0x7f),
				fmt.Sprintf("USB interface number: 0x%x", b[2]))
		}
		return append(out, fmt.Sprintf("PCIe routing ID, bus number: 0x%x", b[0]),
			fmt.Sprintf("function number: 0x%x", b[1]),
			fmt.Sprintf("[or device number: 0x%x, function number: 0x%x]", b[1]>>3, b[1]&7))
	case DesignatorUUID:
		return append(out, fmt.Sprintf("Locally assigned UUID: %x-%x-%x-%x-%x", b[2:6], b[6:8], b[8:10], b[10:12], b[12:]))
	}
	return append(out, "not printed by this test")
}

// hexLines prints bytes as sg3_utils does, 16 a line.
func hexLines(b []byte, ascii bool) []string {
	var out []string
	for len(b) > 0 {
		row := b[:min(16, len(b))]
		b = b[len(row):]
		var s strings.Builder
		for i := range 16 {
			if i == 8 {
				s.WriteByte(' ')
			}
			if i < len(row) {
				fmt.Fprintf(&s, "%02x ", row[i])
			} else {
				s.WriteString("   ")
			}
		}
		if ascii {
			s.WriteString("   ")
			for _, c := range row {
				if c < ' ' || c >= 0x7f {
					c = '.'
				}
				s.WriteByte(c)
			}
		}
		out = append(out, strings.TrimSpace(s.String()))
	}
	return out
}
