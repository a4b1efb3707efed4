// Package decode tells what the bytes of one answer of a device say, field by
// field: standard INQUIRY data, a VPD page, IDENTIFY DEVICE data, Identify
// Controller data. The parsers are those that the probe uses.
//
// What a person pastes is often cut. Everything that the bytes present decide
// is decoded, and every other field says that it is missing: unlike the
// parsers, which refuse data that ends before a field they need, and never as
// zero, which is a value.
package decode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/probe/ata"
	"github.com/quirkcheck/quirkcheck/probe/nvme"
	"github.com/quirkcheck/quirkcheck/probe/scsi"
)

// State tells why a field has a value or none.
type State uint8

// The states of a field.
const (
	Known       State = iota
	NotReported       // the device writes the standard's value for no limit or not reported
	Missing           // the bytes end before the field does
	Absent            // the device's data end before the field does: it is of an older standard
)

// Field is one thing that the data say.
type Field struct {
	Name    string // as in a report's JSON where that has it
	Value   any    // nil unless Known: a string, bool, uint64, []string or []uint64
	State   State
	Where   string // the standard's name of it, and its place
	Meaning string // what the value means, for people; "" where it speaks for itself; of a list, one line each or one for all

	// Personal marks what tells one device from all others of its kind.
	Personal bool
}

// Structure is the data of one answer.
type Structure struct {
	Title     string // "VPD page b0h, Block Limits"
	Length    int    // bytes present; 0 where it was made from text
	Claimed   int    // bytes that the device or the standard says there are; 0: not known
	Truncated bool   // fewer are present, or a length inside claims more
	Fields    []Field
	Notes     []string
}

// Field returns the field of a name.
func (s *Structure) Field(name string) (f Field, ok bool) {
	i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return s.Fields[i], true
}

// Names returns the names of the fields in a state, in order.
func (s *Structure) Names(state State) []string {
	names := []string{}
	for _, f := range s.Fields {
		if f.State == state {
			names = append(names, f.Name)
		}
	}
	return names
}

func (s *Structure) note(format string, a ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, a...))
}

// OtherError is the error for data that are of another kind.
type OtherError struct {
	What string // what they are
	Kind string // which kind of KIND in "quirkcheck decode KIND" that is
}

func (e *OtherError) Error() string { return "this is " + e.What }

// number is any unsigned field of the parsers.
type number interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64
}

// maybe gives nil for a value that is not reported, for add.
func maybe[T number](n T, ok bool) any {
	if !ok {
		return nil
	}
	return uint64(n)
}

func text(s string) string { return strings.Trim(s, " \x00") }

// add appends a field whose last byte is before end; nil is not reported.
func (s *Structure) add(name string, v any, end int, where, meaning string) *Field {
	f := Field{Name: name, Value: v, Where: where, Meaning: meaning}
	switch {
	case s.Claimed > 0 && end > s.Claimed:
		f.Value, f.State, f.Meaning = nil, Absent, ""
	case end > s.Length:
		f.Value, f.State, f.Meaning = nil, Missing, ""
	case v == nil:
		f.State = NotReported
	}
	s.Fields = append(s.Fields, f)
	return &s.Fields[len(s.Fields)-1]
}

// placed adds fields of a SCSI layout by the standard's name.
func placed(s *Structure, layout []scsi.Field) func(name, standard string, v any, meaning string) *Field {
	return func(name, standard string, v any, meaning string) *Field {
		i := slices.IndexFunc(layout, func(f scsi.Field) bool { return f.Name == standard })
		if i < 0 {
			panic("decode: no field " + standard + " in the layout") // a test decodes every page
		}
		f := layout[i]
		where := fmt.Sprintf("%s, byte %d", standard, f.Offset)
		if f.Size > 1 {
			where = fmt.Sprintf("%s, bytes %d-%d", standard, f.Offset, f.End()-1)
		}
		return s.add(name, v, f.End(), where, meaning)
	}
}

// peripheral names the values of PERIPHERAL DEVICE TYPE (SPC-5, Peripheral
// device type) that storage has.
func peripheral(code uint8) string {
	switch code {
	case 0x00:
		return "disk"
	case 0x01:
		return "tape"
	case 0x04:
		return "write-once disk"
	case 0x05:
		return "CD or DVD"
	case 0x07:
		return "optical memory"
	case 0x08:
		return "medium changer"
	case 0x0c:
		return "storage array controller"
	case 0x0d:
		return "enclosure"
	case 0x0e:
		return "reduced block command disk"
	case 0x14:
		return "host-managed zoned disk"
	case 0x1e:
		return "well-known logical unit"
	case 0x1f:
		return "no device"
	}
	return ""
}

// version names the values of VERSION (SPC-5, Standard INQUIRY data).
func version(code uint8) string {
	switch code {
	case 0x03:
		return "SPC"
	case 0x04:
		return "SPC-2"
	case 0x05:
		return "SPC-3"
	case 0x06:
		return "SPC-4"
	case 0x07:
		return "SPC-5"
	}
	return ""
}

// Inquiry decodes standard INQUIRY data. It needs the first byte. The error
// wraps scsi.ErrShort, or is an *OtherError for a VPD page.
func Inquiry(b []byte) (*Structure, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("parse INQUIRY: no byte: %w", scsi.ErrShort)
	}
	if h, err := scsi.ParsePageHeader(b); err == nil && len(b) > 4 && int(h.PageLength)+4 == len(b) && int(b[4])+5 != len(b) {
		return nil, &OtherError{fmt.Sprintf("VPD page %02xh", h.PageCode), "vpd"}
	}
	layout := scsi.InquiryLayout()
	last := layout[len(layout)-1].End()
	q, err := scsi.ParseInquiry(padded(b, last))
	if err != nil {
		return nil, err
	}
	s := &Structure{Title: "standard INQUIRY data", Length: len(b), Truncated: true}
	if len(b) > 4 {
		s.Claimed = int(q.AdditionalLength) + 5
		s.Truncated = len(b) < s.Claimed
	}
	if s.Claimed > 0 && s.Claimed < last && len(b) >= last {
		s.note("ADDITIONAL LENGTH ends the data at byte %d, before the strings end; the kernel reads them all the same", s.Claimed)
	}
	// Strings that are present count, whatever the device claims.
	part := &Structure{Length: len(b)}
	if s.Claimed > 0 {
		part.Claimed = max(s.Claimed, min(len(b), last))
	}
	add := placed(part, layout)
	vendor := add("vendor", "T10 VENDOR IDENTIFICATION", text(q.Vendor), "").Value
	add("product", "PRODUCT IDENTIFICATION", text(q.Product), "")
	add("revision", "PRODUCT REVISION LEVEL", text(q.Revision), "")
	add("peripheral_qualifier", "PERIPHERAL QUALIFIER", uint64(q.PeripheralQualifier), "")
	add("peripheral_device_type", "PERIPHERAL DEVICE TYPE", uint64(q.PeripheralDeviceType), peripheral(q.PeripheralDeviceType))
	add("removable", "RMB", q.Removable, "")
	add("version", "VERSION", uint64(q.Version), version(q.Version))
	add("additional_length", "ADDITIONAL LENGTH", uint64(q.AdditionalLength), "bytes after byte 4")
	s.Fields = part.Fields
	s.rest(max(s.Claimed, last))
	if vendor == "ATA" {
		s.note("vendor ATA is an ATA device seen through SAT: a product of 16 characters may be cut, and the revision is half of the firmware; VPD page 89h has both whole")
	}
	return s, nil
}

// padded returns b with zeros up to n bytes.
func padded(b []byte, n int) []byte {
	out := make([]byte, max(n, len(b)))
	copy(out, b)
	return out
}

// PageName returns the standard's name of a VPD page (SPC-5, SBC-4, SAT-4), "" for
// one not known here.
func PageName(code uint8) string {
	switch code {
	case 0x00:
		return "Supported VPD Pages"
	case 0x80:
		return "Unit Serial Number"
	case 0x83:
		return "Device Identification"
	case 0x84:
		return "Software Interface Identification"
	case 0x85:
		return "Management Network Addresses"
	case 0x86:
		return "Extended INQUIRY Data"
	case 0x87:
		return "Mode Page Policy"
	case 0x88:
		return "SCSI Ports"
	case 0x89:
		return "ATA Information"
	case 0x8a:
		return "Power Condition"
	case 0x8f:
		return "Third-party Copy"
	case 0x92:
		return "SCSI Feature Sets"
	case 0xb0:
		return "Block Limits"
	case 0xb1:
		return "Block Device Characteristics"
	case 0xb2:
		return "Logical Block Provisioning"
	case 0xb3:
		return "Referrals"
	case 0xb4:
		return "Supported Block Lengths and Protection Types"
	case 0xb5:
		return "Block Device Characteristics Extension"
	case 0xb6:
		return "Zoned Block Device Characteristics"
	case 0xb7:
		return "Block Limits Extension"
	case 0xb8:
		return "Format Presets"
	case 0xb9:
		return "Concurrent Positioning Ranges"
	}
	return ""
}

// VPD decodes a VPD page. It needs its four bytes of header; of a page without
// parser it tells the header alone. The error wraps scsi.ErrShort, or is an
// *OtherError for standard INQUIRY data.
func VPD(b []byte) (*Structure, error) {
	if looksLikeInquiry(b) {
		return nil, &OtherError{"standard INQUIRY data", "inquiry"}
	}
	h, err := scsi.ParsePageHeader(b)
	if err != nil {
		return nil, err
	}
	s := &Structure{Title: fmt.Sprintf("VPD page %02xh", h.PageCode), Length: len(b), Claimed: int(h.PageLength) + 4, Truncated: h.Truncated}
	if name := PageName(h.PageCode); name != "" {
		s.Title += ", " + name
	}
	s.add("page_code", fmt.Sprintf("%02x", h.PageCode), 2, "PAGE CODE, byte 1", "")
	s.add("page_length", uint64(h.PageLength), 4, "PAGE LENGTH, bytes 2-3", "bytes after byte 3")
	s.add("peripheral_qualifier", uint64(h.PeripheralQualifier), 1, "PERIPHERAL QUALIFIER, byte 0", "")
	s.add("peripheral_device_type", uint64(h.PeripheralDeviceType), 1, "PERIPHERAL DEVICE TYPE, byte 0", peripheral(h.PeripheralDeviceType))

	// The parser gets as many bytes as its last field takes, so that it refuses
	// nothing; add then takes away what is not in b.
	whole := b
	if layout := scsi.Layout(h.PageCode); layout != nil {
		whole = padded(b, layout[len(layout)-1].End())
		if n := len(whole) - 4; int(h.PageLength) < n {
			whole = slices.Clone(whole)
			whole[2], whole[3] = byte(n>>8), byte(n)
		}
	}
	switch h.PageCode {
	case scsi.PageSupportedPages:
		err = s.supportedPages(b)
	case scsi.PageUnitSerialNumber:
		err = s.unitSerialNumber(b)
	case scsi.PageDeviceIdentification:
		err = s.deviceIdentification(b)
	case scsi.PageATAInformation:
		err = s.ataInformation(whole)
	case scsi.PageBlockLimits:
		err = s.blockLimits(whole)
	case scsi.PageBlockDeviceCharacteristics:
		err = s.blockDeviceCharacteristics(whole)
	case scsi.PageLogicalBlockProvisioning:
		err = s.logicalBlockProvisioning(whole)
	default:
		s.note("fields of page %02xh are not decoded", h.PageCode)
	}
	if err != nil {
		return nil, err
	}
	s.rest(s.Claimed)
	return s, nil
}

// rest notes bytes behind the end of the device's data.
func (s *Structure) rest(end int) {
	if s.Claimed > 0 && s.Length > end {
		s.note("the device's data end after %d bytes; the %d behind them are not decoded", end, s.Length-end)
	}
}

// looksLikeInquiry tells standard INQUIRY data from a VPD page: the byte of the PAGE
// CODE is RMB then, and the length would be VERSION and RESPONSE DATA FORMAT.
func looksLikeInquiry(b []byte) bool {
	return len(b) >= 36 && b[1]&0x7f == 0 && b[2] >= 2 && b[2] <= 7 && b[3]&0x0f == 2 && int(b[2])<<8+int(b[3])+4 != len(b)
}

func (s *Structure) supportedPages(b []byte) error {
	p, err := scsi.ParseSupportedPages(b)
	if err != nil {
		return err
	}
	pages, names := []string{}, []string{}
	for _, code := range p.Pages {
		pages = append(pages, fmt.Sprintf("%02x", code))
		names = append(names, PageName(code))
	}
	s.add("supported_pages", pages, 4, "from byte 4", strings.Join(names, "\n"))
	if s.Truncated {
		s.note("%d of %d pages are missing", s.Claimed-s.Length, s.Claimed-4)
	}
	if !slices.IsSorted(p.Pages) {
		s.note("the pages are not in ascending order, as the standard wants them")
	}
	return nil
}

func (s *Structure) unitSerialNumber(b []byte) error {
	p, err := scsi.ParseUnitSerialNumber(b)
	if err != nil {
		return err
	}
	// A cut serial number is another one.
	s.add("serial", text(p.ProductSerialNumber), s.Claimed, "PRODUCT SERIAL NUMBER, from byte 4", "").Personal = true
	return nil
}

// enumerated looks up the name of a code.
func enumerated(names []string, code uint8) string {
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("reserved-%d", code)
}

func (s *Structure) deviceIdentification(b []byte) error {
	p, err := scsi.ParseDeviceIdentification(b)
	if err != nil {
		return err
	}
	s.Truncated = s.Truncated || p.Truncated
	associations := []string{"logical-unit", "target-port", "target-device"}
	types := []string{"vendor-specific", "t10-vendor-id", "eui64", "naa", "relative-target-port", "target-port-group", "logical-unit-group",
		"md5", "scsi-name", "protocol-port", "uuid"}
	sets := []string{"reserved-0", "binary", "ascii", "utf-8"}
	kinds, values := []string{}, []string{}
	ports := map[scsi.DesignatorType]any{}
	for _, d := range p.Designators {
		kind := fmt.Sprintf("%s %s %s %d", enumerated(associations, uint8(d.Association)), enumerated(types, uint8(d.Type)),
			enumerated(sets, uint8(d.CodeSet)), len(d.Designator))
		kinds = append(kinds, kind)
		value := fmt.Sprintf("%x", d.Designator)
		if d.CodeSet == scsi.CodeSetASCII || d.CodeSet == scsi.CodeSetUTF8 {
			value = text(string(d.Designator))
		}
		values = append(values, value)
		if (d.Type == scsi.DesignatorRelativeTargetPort || d.Type == scsi.DesignatorTargetPortGroup) && len(d.Designator) == 4 && ports[d.Type] == nil {
			ports[d.Type] = uint64(d.Designator[2])<<8 | uint64(d.Designator[3])
		}
	}
	s.add("designators", kinds, 4, "from byte 4", "association, type, code set, bytes")
	s.add("designator_values", values, 4, "DESIGNATOR of each", "").Personal = true
	for _, t := range []scsi.DesignatorType{scsi.DesignatorRelativeTargetPort, scsi.DesignatorTargetPortGroup} {
		name := enumerated(types, uint8(t))
		f := Field{Name: strings.ReplaceAll(name, "-", "_"), Value: ports[t], Where: "DESIGNATOR of type " + name}
		switch {
		case f.Value == nil && s.Truncated: // it may be in what is missing
			f.State = Missing
		case f.Value == nil:
			f.State = NotReported
		}
		s.Fields = append(s.Fields, f)
	}
	if s.Truncated {
		s.note("the list of designators is cut; those before the cut are shown")
	}
	return nil
}

func (s *Structure) ataInformation(whole []byte) error {
	p, err := scsi.ParseATAInformation(whole)
	if err != nil {
		return err
	}
	layout := scsi.Layout(scsi.PageATAInformation)
	add := placed(s, layout)
	add("sat_vendor", "SAT VENDOR IDENTIFICATION", text(p.SATVendor), "of the translation layer, not of the disk")
	add("sat_product", "SAT PRODUCT IDENTIFICATION", text(p.SATProduct), "")
	add("sat_revision", "SAT PRODUCT REVISION LEVEL", text(p.SATRevision), "")
	transport := any(nil)
	switch p.DeviceSignature[0] {
	case 0x34:
		transport = "sata"
	case 0x00:
		transport = "pata"
	}
	add("device_signature", "ATA DEVICE SIGNATURE", transport, "")
	command := ""
	switch p.CommandCode {
	case scsi.CommandIdentifyDevice:
		command = "IDENTIFY DEVICE"
	case scsi.CommandIdentifyPacketDevice:
		command = "IDENTIFY PACKET DEVICE"
	}
	add("command_code", "COMMAND CODE", fmt.Sprintf("%02x", p.CommandCode), command)

	if command == "" && s.Fields[len(s.Fields)-1].State == Known {
		s.note("COMMAND CODE names neither IDENTIFY command, so what follows means nothing")
		return nil
	}
	at := layout[len(layout)-1]
	part := &Structure{Length: max(0, s.Length-at.Offset), Claimed: max(1, s.Claimed-at.Offset)}
	part.identify(whole[at.Offset:at.End()])
	for i := range part.Fields {
		part.Fields[i].Where += fmt.Sprintf(", from byte %d", at.Offset)
	}
	s.Fields = append(s.Fields, part.Fields...)
	s.Notes = append(s.Notes, part.Notes...)
	return nil
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// noLimit is what a field of 32 bits holds where the standard means no limit.
const noLimit = 0xffffffff

func (s *Structure) blockLimits(whole []byte) error {
	p, err := scsi.ParseBlockLimits(whole)
	if err != nil {
		return err
	}
	add := placed(s, scsi.Layout(scsi.PageBlockLimits))
	or := func(none string) func(name, standard string, v any) {
		return func(name, standard string, v any) {
			meaning := "blocks"
			if v == nil {
				meaning = none
			}
			add(name, standard, v, meaning)
		}
	}
	limit, advice := or("no limit reported"), or("none reported")
	// unmap is for counts in which zero is a value and all ones is no limit.
	unmap := func(name, standard string, n uint32, ok bool) {
		switch {
		case ok && n == noLimit:
			add(name, standard, nil, "no limit")
		case ok && n == 0:
			add(name, standard, uint64(0), "UNMAP is not implemented")
		default:
			add(name, standard, maybe(n, ok), "")
		}
	}
	zero := func(n uint32, meaning string) string {
		if n == 0 {
			return meaning
		}
		return "blocks"
	}

	limit("vpd_max_transfer_blocks", "MAXIMUM TRANSFER LENGTH", maybe(p.MaxTransferBlocks()))
	advice("vpd_optimal_transfer_blocks", "OPTIMAL TRANSFER LENGTH", maybe(p.OptimalTransferBlocks()))
	advice("vpd_optimal_granularity_blocks", "OPTIMAL TRANSFER LENGTH GRANULARITY", maybe(p.OptimalTransferGranularityBlocks()))
	limit("vpd_max_prefetch_blocks", "MAXIMUM PREFETCH LENGTH", maybe(p.MaxPrefetchBlocks()))
	caw := p.MaxCompareAndWriteBlocks()
	add("vpd_max_compare_and_write_blocks", "MAXIMUM COMPARE AND WRITE LENGTH", uint64(caw), zero(uint32(caw), "COMPARE AND WRITE is not implemented"))
	lbas, ok := p.MaxUnmapLBACount()
	unmap("vpd_max_unmap_blocks", "MAXIMUM UNMAP LBA COUNT", lbas, ok)
	descriptors, ok := p.MaxUnmapBlockDescriptorCount()
	unmap("vpd_max_unmap_descriptors", "MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT", descriptors, ok)
	advice("vpd_optimal_unmap_granularity_blocks", "OPTIMAL UNMAP GRANULARITY", maybe(p.OptimalUnmapGranularityBlocks()))
	or("not valid")("vpd_unmap_alignment_blocks", "UNMAP GRANULARITY ALIGNMENT", maybe(p.UnmapGranularityAlignmentBlocks()))
	limit("vpd_max_write_same_blocks", "MAXIMUM WRITE SAME LENGTH", maybe(p.MaxWriteSameBlocks()))
	add("vpd_write_same_nonzero", "WSNZ", p.WSNZ(), "")
	limit("vpd_max_atomic_transfer_blocks", "MAXIMUM ATOMIC TRANSFER LENGTH", maybe(p.MaxAtomicTransferBlocks()))
	n, ok := p.AtomicAlignmentBlocks()
	add("vpd_atomic_alignment_blocks", "ATOMIC ALIGNMENT", maybe(n, ok), zero(n, "none required"))
	n, ok = p.AtomicTransferGranularityBlocks()
	add("vpd_atomic_granularity_blocks", "ATOMIC TRANSFER LENGTH GRANULARITY", maybe(n, ok), zero(n, "none required"))
	limit("vpd_max_atomic_with_boundary_blocks", "MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY", maybe(p.MaxAtomicTransferWithBoundaryBlocks()))
	n, ok = p.MaxAtomicBoundaryBlocks()
	add("vpd_max_atomic_boundary_blocks", "MAXIMUM ATOMIC BOUNDARY SIZE", maybe(n, ok), zero(n, "one block"))
	return nil
}

func (s *Structure) blockDeviceCharacteristics(whole []byte) error {
	p, err := scsi.ParseBlockDeviceCharacteristics(whole)
	if err != nil {
		return err
	}
	add := placed(s, scsi.Layout(scsi.PageBlockDeviceCharacteristics))
	rotation := maybe(p.Rotation())
	add("rotation_rpm", "MEDIUM ROTATION RATE", rotation, rotationMeaning(rotation))
	form := maybe(p.NominalFormFactor())
	meaning := "not reported"
	if form != nil {
		code, _ := p.NominalFormFactor()
		meaning = enumerated([]string{"", "5.25 inch", "3.5 inch", "2.5 inch", "1.8 inch", "less than 1.8 inch"}, code)
	}
	add("form_factor", "NOMINAL FORM FACTOR", form, meaning)
	zoned := maybe(p.Zoned())
	meaning = "not reported"
	if z, ok := p.Zoned(); ok {
		meaning = enumerated([]string{"", "host-aware", "device-managed"}, uint8(z))
	}
	add("zoned", "ZONED", zoned, meaning)
	return nil
}

func rotationMeaning(rpm any) string {
	switch rpm {
	case nil:
		return "not reported"
	case uint64(0):
		return "does not rotate"
	}
	return "per minute"
}

func (s *Structure) logicalBlockProvisioning(whole []byte) error {
	p, err := scsi.ParseLogicalBlockProvisioning(whole)
	if err != nil {
		return err
	}
	add := placed(s, scsi.Layout(scsi.PageLogicalBlockProvisioning))
	add("lbpu", "LBPU", p.LBPU, "UNMAP")
	add("lbpws", "LBPWS", p.LBPWS, "WRITE SAME(16) with UNMAP")
	add("lbpws10", "LBPWS10", p.LBPWS10, "WRITE SAME(10) with UNMAP")
	add("lbprz", "LBPRZ", uint64(p.LBPRZ), "1: unmapped blocks read as zeros")
	add("anc_sup", "ANC_SUP", p.ANCSup, "anchored blocks")
	add("descriptor_present", "DP", p.DP, "")
	add("threshold_exponent", "THRESHOLD EXPONENT", nonzero(p.ThresholdExponent), "")
	add("provisioning_type", "PROVISIONING TYPE", uint64(p.ProvisioningType), enumerated([]string{"full, or not reported", "resource", "thin"}, uint8(p.ProvisioningType)))
	add("minimum_percentage", "MINIMUM PERCENTAGE", nonzero(p.MinimumPercentage), "")
	add("threshold_percentage", "THRESHOLD PERCENTAGE", nonzero(p.ThresholdPercentage), "")
	return nil
}

func nonzero(n uint8) any { return maybe(n, n != 0) }

// Identify decodes IDENTIFY DEVICE data, 256 words with the low byte first, or
// the words at its start. It needs one byte. The error wraps ata.ErrLength, or
// ata.ErrNoData where all bytes are zero.
func Identify(b []byte) (*Structure, error) {
	if len(b) == 0 || len(b) > ata.IdentifyBytes {
		if h, err := scsi.ParsePageHeader(b); err == nil && h.PageCode == scsi.PageATAInformation && int(h.PageLength)+4 == len(b) {
			return nil, &OtherError{"VPD page 89h, which holds IDENTIFY data", "vpd"}
		}
		return nil, fmt.Errorf("parse IDENTIFY DEVICE: %d bytes, want %d: %w", len(b), ata.IdentifyBytes, ata.ErrLength)
	}
	if allZero(b) {
		return nil, fmt.Errorf("parse IDENTIFY DEVICE: all bytes are zero: %w", ata.ErrNoData)
	}
	s := &Structure{Title: "ATA IDENTIFY DEVICE data", Length: len(b), Claimed: ata.IdentifyBytes, Truncated: len(b) < ata.IdentifyBytes}
	s.identify(padded(b, ata.IdentifyBytes))
	return s, nil
}

// identify adds the fields of IDENTIFY data, which are filled up with anything.
func (s *Structure) identify(data []byte) {
	layout := map[string]ata.Field{}
	for _, f := range ata.Layout() {
		layout[f.Name] = f
	}
	id, err := ata.ParseIdentify(data)
	if err != nil && s.Length >= len(data) {
		s.note("the IDENTIFY data are all zeros: no device answered")
	}
	add := func(name, of string, v any, meaning string) *Field {
		f, ok := layout[of]
		if !ok {
			panic("decode: no " + of + " in the layout") // a test decodes IDENTIFY data
		}
		if err != nil {
			v, meaning = nil, ""
		}
		return s.add(name, v, 2*f.Need, f.Words, meaning)
	}
	add("model", "Model", id.Model, "")
	add("firmware", "Firmware", id.Firmware, "")
	add("serial", "Serial", id.Serial, "").Personal = true
	wwn := any(nil)
	if n, ok := id.WWN(); ok {
		wwn = fmt.Sprintf("%016x", n)
	}
	add("wwn", "WWN", wwn, "").Personal = true
	add("packet_device", "ATAPI", id.ATAPI, "")
	logical := maybe(id.LogicalSectorBytes())
	add("logical_block_size", "LogicalSectorBytes", logical, "bytes")
	physical := maybe(id.PhysicalSectorBytes())
	reported := physical != nil
	meaning := "bytes"
	if !reported && logical != nil {
		physical, meaning = logical, "bytes; not reported, the logical size is taken for it, as the kernel does"
	}
	add("physical_block_size", "PhysicalSectorBytes", physical, meaning)
	add("physical_block_size_reported", "PhysicalSectorBytes", reported, "")
	add("sectors", "Sectors", maybe(id.Sectors()), "logical sectors")
	size := any(nil)
	if n, ok := id.Sectors(); ok {
		if l, ok := id.LogicalSectorBytes(); ok && n <= ^uint64(0)/l {
			size = n * l
		}
	}
	// The words of the sector size lie behind those of the number of sectors.
	add("size_bytes", "LogicalSectorBytes", size, "").Where = "sectors times logical_block_size"
	rotation := maybe(id.Rotation())
	add("rotation_rpm", "Rotation", rotation, rotationMeaning(rotation))
	add("trim", "TRIM", id.TRIM, "")
	add("trim_deterministic", "DRAT", id.DRAT, "")
	add("trim_zeroed", "RZAT", id.RZAT, "")
	add("ncq", "NCQ", id.NCQ, "")
	add("queue_depth", "QueueDepth", maybe(id.QueueDepth()), "")
	add("checksum", "ChecksumState", id.ChecksumState.String(), "")
	// A signature in the wrong half says that somebody has swapped the words.
	if signature := byte(0xa5); s.Length >= len(data) && data[510] != signature && data[511] == signature {
		s.note("the signature A5h lies in the wrong half of word 255: the bytes of each word seem to be swapped")
	}
}

// sectorBytes is the unit of limits.
const sectorBytes = 512

// IdentifyController decodes NVMe Identify Controller data, or the bytes at its
// start, given the bytes of the smallest page (CAP.MPSMIN), which is not in the
// data. printed holds the names of the fields that are known when b was made
// from text, nil when all bytes present are. It needs one byte. The error wraps
// nvme.ErrShort, or nvme.ErrNoData where all fields are zero.
func IdentifyController(b []byte, mpsMinBytes uint64, printed map[string]bool) (*Structure, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("parse Identify Controller: no byte: %w", nvme.ErrShort)
	}
	if len(b) > nvme.IdentifyBytes {
		return nil, fmt.Errorf("parse Identify Controller: %d bytes, more than %d", len(b), nvme.IdentifyBytes)
	}
	c, err := nvme.ParseIdentifyController(padded(b, nvme.IdentifyBytes))
	if err != nil {
		return nil, err
	}
	s := &Structure{Title: "NVMe Identify Controller data", Length: len(b), Claimed: nvme.IdentifyBytes, Truncated: len(b) < nvme.IdentifyBytes}
	layout := map[string]nvme.Field{}
	for _, f := range nvme.Layout() {
		layout[f.Name] = f
	}
	add := func(name, of string, v any, meaning string) *Field {
		at, ok := layout[of]
		if !ok {
			panic("decode: no " + of + " in the layout") // a test decodes Identify Controller data
		}
		where := fmt.Sprintf("%s, bytes %d-%d", strings.ToUpper(of), at.Offset, at.End()-1)
		if at.Size == 1 {
			where = fmt.Sprintf("%s, byte %d", strings.ToUpper(of), at.Offset)
		}
		f := s.add(name, v, at.End(), where, meaning)
		if printed != nil && !printed[of] {
			f.Value, f.State, f.Meaning = nil, Missing, ""
		}
		return f
	}
	add("model", "mn", c.MN, "")
	add("firmware", "fr", c.FR, "")
	add("serial", "sn", c.SN, "").Personal = true
	nqn := any(nil)
	if n, ok := c.SUBNQN(); ok {
		nqn = n
	}
	add("subnqn", "subnqn", nqn, "").Personal = true
	add("vid", "vid", uint64(c.VID), fmt.Sprintf("PCI vendor %04x", c.VID))
	add("ssvid", "ssvid", uint64(c.SSVID), fmt.Sprintf("PCI subsystem vendor %04x", c.SSVID))
	add("mdts", "mdts", nonzero(c.MDTS), "")
	sectors := any(nil)
	meaning := "no limit"
	if n, ok := c.MaxTransferBytes(mpsMinBytes); ok {
		sectors = n / sectorBytes
		meaning = fmt.Sprintf("512-byte sectors, where a page (CAP.MPSMIN) has %d bytes", mpsMinBytes)
	} else if c.MDTS != 0 {
		meaning = "no limit within 64 bits"
	}
	add("mdts_sectors", "mdts", sectors, meaning)
	ver := ""
	if major, minor, tertiary, ok := c.Version(); ok {
		ver = fmt.Sprintf("NVMe %d.%d.%d", major, minor, tertiary)
	}
	add("ver", "ver", maybe(c.VER, c.VER != 0), ver)
	add("cntlid", "cntlid", uint64(c.CNTLID), "")
	add("rab", "rab", uint64(c.RAB), "")
	add("ieee", "ieee", uint64(c.IEEE[0])|uint64(c.IEEE[1])<<8|uint64(c.IEEE[2])<<16, fmt.Sprintf("OUI %02x%02x%02x", c.IEEE[2], c.IEEE[1], c.IEEE[0]))
	add("cmic", "cmic", uint64(c.CMIC), "")
	add("oaes", "oaes", uint64(c.OAES), "")
	add("ctratt", "ctratt", uint64(c.CTRATT), "")
	add("oacs", "oacs", uint64(c.OACS), "")
	add("frmw", "frmw", uint64(c.FRMW), "")
	add("apsta", "apsta", uint64(c.APSTA), "")
	add("nn", "nn", uint64(c.NN), "namespaces at most")
	add("oncs", "oncs", uint64(c.ONCS), "")
	add("vwc", "vwc", uint64(c.VWC), "")
	add("volatile_write_cache", "vwc", c.VolatileWriteCache(), "")
	add("sgls", "sgls", uint64(c.SGLS), "")
	if printed != nil {
		s.Length, s.Claimed, s.Truncated = 0, 0, len(s.Names(Missing)) > 0
	}
	return s, nil
}
